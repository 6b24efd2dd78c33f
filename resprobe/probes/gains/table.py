"""The table of gradient gains at depth."""

import numpy as np
import xarray as xr
from rich.table import Table

from resprobe.showing.layout import empty_table


def gradient_gain(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of the gradient at the first unit, relative to the last, one row for each kind of network."""
    depths = sorted({int(depth) for depth in dataset["num_layers"].values})
    table = empty_table(["network", "norm", "init"], [*map(str, depths), "random", "a unit"])
    kinds = dict.fromkeys(zip(*(dataset[name].values.tolist() for name in ("family", "norm", "init")), strict=True))
    for family, norm, init in kinds:
        which = (dataset["family"] == family) & (dataset["norm"] == norm) & (dataset["init"] == init)
        kind = dataset.isel(checkpoint=which.values).sortby("num_layers")
        whole = whole_gain(kind).values
        # a product over the units but the last
        per_unit = whole[-1] ** (1 / (int(kind["num_units"][-1]) - 1))
        cells = dict(zip(kind["num_layers"].values.tolist(), (f"{value:.2g}" for value in whole), strict=True))
        predicted = float(kind["predicted_grad_norm"].isel(checkpoint=-1, place=0))
        table.add_row(
            family, norm, init, *(cells.get(depth, "") for depth in depths), f"{predicted:.2g}", f"{per_unit:.3f}"
        )
    deepest = depths[-1]
    return table, "\n".join([
        "gradient at the first unit's output, relative to the last's, by the number of layers: geometric mean over "
        f"{dataset.sizes['draw']} seeds",
        f"random: what random Jacobians predict; a unit: its measured mean gain; both of {deepest} layers",
        _departure(dataset),
    ])  # fmt: skip


def whole_gain(dataset: xr.Dataset) -> xr.DataArray:
    """Give the gradient at the first unit relative to the last, as the geometric mean over seeds.

    Args:
        dataset: A result of `gradient-gain`.

    Returns:
        `(checkpoint,)`.
    """
    first = dataset["relative_grad_norm"].isel(place=0)
    logs: xr.DataArray = xr.apply_ufunc(np.log, first.where(first > 0))
    mean: xr.DataArray = xr.apply_ufunc(np.exp, logs.mean("draw"))
    return mean


def _departure(dataset: xr.Dataset) -> str:
    """Say how far measured gains are from predicted ones, per unit."""
    with np.errstate(divide="ignore"):
        predicted = dataset["predicted_grad_norm"].isel(place=0).values
        logs = np.log(whole_gain(dataset).values) - np.log(predicted)
    per_unit = np.exp(logs / (dataset["num_units"].values - 1))
    parts = []
    for family in dict.fromkeys(dataset["family"].values.tolist()):
        for norm in dict.fromkeys(dataset["norm"].values.tolist()):
            which = ((dataset["family"] == family) & (dataset["norm"] == norm)).values
            ratio = per_unit[which]
            if np.isfinite(ratio).any():
                words = "with batch normalisation" if norm == "batch" else "without normalisation"
                parts.append(f"{family} {words} {np.nanmin(ratio):.3f} to {np.nanmax(ratio):.3f}")
    return f"gain per unit, measured divided by predicted: {'; '.join(parts)}"
