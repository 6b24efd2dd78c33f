"""The table of responses."""

import numpy as np
import xarray as xr
from rich.table import Table

from resprobe.showing.layout import empty_table, left_out, place_of, rounded, shown_rows


def responses(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of responses and its summary."""
    table = empty_table(["layer", "stage"], ["mean", "std", "measured at"])
    for index in shown_rows(dataset.sizes["layer"]):
        row = dataset.isel(layer=index)
        place = "" if row.measured_at.item() == row.layer.item() else str(row.measured_at.item())
        table.add_row(*place_of(row, "layer", "stage"), rounded(row.response_mean), rounded(row.response_std), place)
    std = dataset.response_std
    finite = std.where(np.isfinite(std)).dropna("layer")
    if finite.size == 0:
        return table, "no layer has finite responses"
    least, most = (finite.isel(layer=int(pick)) for pick in (finite.values.argmin(), finite.values.argmax()))
    return table, (
        f"{std.size} layers, median std {rounded(finite.median())}, least {rounded(least)} ({least.layer.item()}), "
        f"most {rounded(most)} ({most.layer.item()}){left_out(std.size)}"
    )
