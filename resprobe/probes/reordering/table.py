"""The table of reorderings."""

import xarray as xr
from rich.table import Table

from resprobe.showing.layout import baseline_line, empty_table, spread_of_draws


def reorder(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of reorderings and its summary."""
    table = empty_table(["swaps"], ["Kendall tau", "median error", "5 to 95 % of draws", "mean loss"])
    for swaps in dataset.num_swaps.values:
        row = dataset.sel(num_swaps=swaps)
        tau = f"{float(row.kendall_tau.mean()):.3f}"
        table.add_row(str(swaps), tau, *spread_of_draws(row.error), f"{float(row.loss.mean()):.3f}")
    return table, baseline_line(dataset, "orders")
