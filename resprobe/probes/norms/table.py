"""The table of lesions of batch normalisation."""

import xarray as xr
from rich.table import Table

from resprobe.showing.layout import empty_table, percent


def norm_lesion(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of replaced normalisations and its summary."""
    table = empty_table(["layer", "stage"], ["channels", "error", "change", "95 % interval", "loss"])
    baseline = float(dataset.baseline_error)
    for index in range(dataset.sizes["layer"]):
        row = dataset.isel(layer=index)
        error = float(row.error)
        table.add_row(
            str(row.layer.item()),
            str(row.stage.item()),
            str(row.num_channels.item()),
            percent(error),
            # adding 0.0 turns -0.0 into 0.0
            f"{round(100 * (error - baseline), 1) + 0.0:+.1f}",
            f"{100 * float(row.error_low):.1f} to {percent(float(row.error_high))}",
            f"{float(row.loss):.3g}",
        )
    worst = dataset.isel(layer=int(dataset.error.values.argmax()))
    median = percent(float(dataset.error.median()))
    return table, (
        f"baseline {percent(baseline)}, loss {float(dataset.baseline_loss):.3g}; median {median} over "
        f"{dataset.sizes['layer']} normalisations, worst {percent(float(worst.error))} ({worst.layer.item()})"
    )
