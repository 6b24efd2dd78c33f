"""The tables of lesions."""

import xarray as xr
from rich.table import Table

from resprobe.showing.layout import baseline_line, empty_table, percent, spread_of_draws


def lesion(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of single deletions and its summary."""
    table = empty_table(["unit", "stage"], ["error", "change", "95 % interval"])
    baseline = float(dataset.baseline_error)
    for index in range(dataset.sizes["unit"]):
        row = dataset.isel(unit=index)
        place = [str(row.unit.item()), str(row.stage.item())]
        if str(row.status.item()) != "ok":
            table.add_row(*place, "-", "-", str(row.status.item()))
            continue
        error = float(row.error)
        table.add_row(
            *place,
            percent(error),
            # adding 0.0 turns -0.0 into 0.0
            f"{round(100 * (error - baseline), 1) + 0.0:+.1f}",
            f"{100 * float(row.error_low):.1f} to {percent(float(row.error_high))}",
        )
    measured = dataset.error.dropna("unit")
    if measured.size == 0:
        return table, f"baseline {percent(baseline)}; no unit could be deleted"
    worst = measured.isel(unit=int(measured.values.argmax()))
    return table, (
        f"baseline {percent(baseline)}, median {percent(float(measured.median()))} over {measured.size} deletions, "
        f"worst {percent(float(worst))} ({worst.unit.item()})"
    )


def lesion_curve(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of growing lesions and its summary."""
    table = empty_table(["deleted"], ["median error", "5 to 95 % of draws", "mean loss"])
    for size in dataset.num_deleted.values:
        row = dataset.sel(num_deleted=size)
        table.add_row(str(size), *spread_of_draws(row.error), f"{float(row.loss.mean()):.3f}")
    return table, baseline_line(dataset, "sets of units")
