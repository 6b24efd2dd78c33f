"""The table of gradients by path length."""

import xarray as xr
from rich.table import Table

from resprobe.showing.layout import empty_table, percent

# A longer table is thinned out: the rows between carry less and less.
_MAX_ROWS = 30


def paths(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of path lengths and its summary."""
    columns = {
        "coherent norm": "coherent_grad_norm",
        "single path, rms": "path_grad_rms",
        "single path, mean": "path_grad_mean",
    }
    there = {title: name for title, name in columns.items() if name in dataset}
    table = empty_table([], ["branches", "layers", "paths", *there, "share of gradient"])
    every = -(-dataset.sizes["path_length"] // _MAX_ROWS)
    for length in dataset.path_length.values[::every]:
        row = dataset.sel(path_length=length)
        table.add_row(
            str(length),
            f"{float(row.length_in_layers):g}",
            _count(row.num_paths.item()),
            *(f"{float(row[name]):.2e}" for name in there.values()),
            percent(float(row.grad_share)),
        )
    return table, _summary(dataset)


def _summary(dataset: xr.Dataset) -> str:
    low, high = float(dataset.effective_length_low), float(dataset.effective_length_high)
    lines = [
        f"effective length {float(dataset.effective_length_mean):.1f} branches, 5 to 95 % of the gradient at {low:g} "
        f"to {high:g}: {_small_percent(float(dataset.effective_path_share))} of the paths",
        f"norm of the whole gradient {float(dataset.full_grad_norm):.2e}; the sum over all lengths is that gradient "
        f"to {float(dataset.completeness_error):.0e}",
    ]
    if dataset.attrs.get("note"):
        lines.append(dataset.attrs["note"])
    return "\n".join(lines)


def _count(number: object) -> str:
    """Write a number of paths, exactly where it is short."""
    text = str(number)
    return text if len(text) <= 7 else f"{float(text):.2e}"


def _small_percent(fraction: float) -> str:
    return percent(fraction) if fraction >= 0.1 else f"{100 * fraction:.2g} %"
