"""The table of a loss surface: how fast loss and error grow with the distance from the trained weights."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import xarray as xr
from rich.table import Table

from resprobe.showing.layout import empty_table, percent

NUM_ROWS = 5

Values = npt.NDArray[np.float64]


def surface(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of a loss surface, one row for each of some distances from the trained weights, and its summary.

    A row is of all points that are so far away: on both sides of each line, or in each plane around, up to half the gap
    between points.

    Args:
        dataset: A result of `surface`.

    Returns:
        The table and the lines below it.
    """
    table = empty_table([], ["distance", "points", "loss", "lowest to highest", "error", "lowest to highest"])
    distance = _distance(dataset)
    gap = float(np.ptp(dataset.direction_x.values)) / (dataset.sizes["direction_x"] - 1)
    done, loss, error = (dataset[name].values for name in ("done", "loss", "error"))
    levels = np.unique(abs(dataset.direction_x.values))
    for row in levels[np.unique(np.linspace(0, len(levels) - 1, NUM_ROWS).round().astype(int))]:
        here = (abs(distance - row) <= gap / 2 * (1 + 1e-9)) & done.astype(bool)
        if here.any():
            table.add_row(f"{row:.3g}", f"{here.sum()}", *_spread(loss[here], _number), *_spread(error[here], percent))
    return table, _summary(dataset, distance)


def _distance(dataset: xr.Dataset) -> Values:
    """Give each point's distance from the trained weights, of the surface's shape."""
    squares = dataset.direction_x**2
    if "direction_y" in dataset.dims:
        squares = squares + dataset.direction_y**2
    distance: Values = np.sqrt(squares.broadcast_like(dataset.loss).transpose(*dataset.loss.dims)).values
    return distance


def _spread(values: Values, write: Callable[[float], str]) -> tuple[str, str]:
    # NaN, which no comparison orders, stays visible
    low, middle, high = values.min(), np.median(values), values.max()
    return write(middle), f"{write(low)} to {write(high)}"


def _summary(dataset: xr.Dataset, distance: Values) -> str:
    lines = [
        f"medians over points; {_directions(dataset)}; BN mode {dataset.attrs['bn_mode']}",
        f"distance: {dataset.attrs['direction_unit']}",
    ]
    baseline = f"trained weights: loss {_number(float(dataset.baseline_loss))}"
    if np.isfinite(dataset.baseline_error):
        baseline += f", error {percent(float(dataset.baseline_error))}"
    lines.append(baseline + _lowest(dataset, distance))
    if "eigenvalue" in dataset:
        lines.append(f"eigenvalues {' and '.join(_number(float(value)) for value in dataset.eigenvalue)}")
    if int(dataset.num_nonfinite):
        lines.append(f"{int(dataset.num_nonfinite)} points have a loss that is not finite")
    done, total = int(dataset.done.sum()), dataset.done.size
    if done < total:
        lines.append(f"unfinished: {done:,} of {total:,} points; the same command goes on with them")
    return "\n".join(lines)


def _directions(dataset: xr.Dataset) -> str:
    along = "eigenvector" if dataset.attrs["directions"] == "hessian" else "random direction"
    if "direction_y" in dataset.dims:
        number = dataset.sizes.get("draw", 1)
        return f"{number} plane{'s' if number > 1 else ''} of two {along}s"
    number = max(dataset.sizes.get("draw", 1), dataset.sizes.get("rank", 1))
    return f"{number} {along}{'s' if number > 1 else ''}"


def _lowest(dataset: xr.Dataset, distance: Values) -> str:
    """Say where the loss is lowest, if anywhere lower than at the trained weights."""
    loss = dataset.loss.values
    if not np.isfinite(loss).any():
        return ""
    place = np.nanargmin(np.where(np.isfinite(loss), loss, np.nan))
    lowest = float(loss.flat[place])
    # rounding makes no minimum
    if not lowest < float(dataset.baseline_loss) * (1 - 1e-5):
        return "; no point is lower"
    return f"; lowest point {_number(lowest)} at distance {distance.flat[place]:.2g}"


def _number(value: float) -> str:
    return f"{value:.3g}"
