"""What the tables share."""

import numpy as np
import xarray as xr
from rich.table import Table

MAX_ROWS = 30


def empty_table(texts: list[str], numbers: list[str]) -> Table:
    """Make a table with columns of texts, then of numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in texts:
        table.add_column(name, no_wrap=name != "unit", overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def percent(fraction: float) -> str:
    """Write a fraction in percent."""
    return f"{100 * fraction:.1f} %"


def place_of(row: xr.Dataset, name: str, stage: str) -> tuple[str, str]:
    """Write where a row stands: the name of its layer or unit, and its stage."""
    return str(row[name].item()), str(row[stage].item())


def shown_rows(number: int) -> list[int]:
    """Choose the rows of a long table: about so many, evenly spaced, the first and the last among them."""
    if number <= MAX_ROWS:
        return list(range(number))
    return [int(row) for row in np.unique(np.linspace(0, number - 1, MAX_ROWS).round())]


def left_out(number: int) -> str:
    """Say that a long table was cut."""
    return f"; {MAX_ROWS} of {number} rows shown, all are in the file" if number > MAX_ROWS else ""


def rounded(value: xr.DataArray | float) -> str:
    """Write a number in three digits, or a dash where it is not known."""
    number = float(value)
    return "-" if np.isnan(number) else f"{number:.3g}"


def spread_of_draws(error: xr.DataArray) -> tuple[str, str]:
    """Write the median error over draws, and where nine of ten lie."""
    low, median, high = error.quantile([0.05, 0.5, 0.95]).values
    return percent(median), f"{100 * low:.1f} to {percent(high)}"


def baseline_line(dataset: xr.Dataset, what: str) -> str:
    """Sum up an experiment with random draws."""
    return f"baseline {percent(float(dataset.baseline_error))}; {dataset.sizes['draw']} random {what} per row"
