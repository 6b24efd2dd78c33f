"""Contours of loss and error in planes through the trained weights."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from resprobe.showing.theme import empty_figure

NUM_LEVELS = 16
# From dark to light for everybody, without a confusion of red and green.
COLOUR_MAP = "viridis"
MISSING_COLOUR = "0.85"
# A linear scale hides what is so many times smaller than the largest value.
LARGEST_LINEAR_RATIO = 30

Values = npt.NDArray[np.float64]


class _Plane(NamedTuple):
    name: str
    values: xr.Dataset


class _Scale(NamedTuple):
    norm: Normalize
    levels: Values


def far_apart(values: Values) -> bool:
    """Tell whether a linear scale would hide the smallest of some values: all finite ones are above 0 and differ much.

    Args:
        values: Any.

    Returns:
        Whether a logarithmic scale is better.
    """
    finite = values[np.isfinite(values)]
    return bool(finite.size and finite.min() > 0 and finite.max() > LARGEST_LINEAR_RATIO * finite.min())


def contours(results: Sequence[xr.Dataset], names: Sequence[str], unit: str) -> Figure:
    """Draw loss and error of planes, one column for each plane; a row has one scale.

    Args:
        results: Datasets of `surface`, in planes.
        names: Their names.
        unit: What a distance is.

    Returns:
        The figure.
    """
    planes = [plane for result, name in zip(results, names, strict=True) for plane in _planes(result, name)]
    # a single plane lies flat, loss beside error
    if len(planes) == 1:
        figure = empty_figure(width=10.5, height=5.0)
        grid = figure.subplots(1, 2, sharex=True, sharey=True, squeeze=False).T
    else:
        figure = empty_figure(width=3.6 * len(planes) + 1.2, height=8.2)
        grid = figure.subplots(2, len(planes), sharex=True, sharey=True, squeeze=False)
    incomplete = False
    for row, quantity in zip(grid, ("loss", "error"), strict=True):
        heights = np.concatenate([plane.values[quantity].values.ravel() for plane in planes])
        scale = _scale(heights, logarithmic=quantity == "loss" and far_apart(heights))
        for axes, plane in zip(row, planes, strict=True):
            incomplete |= _contour(axes, plane.values[quantity], scale)
        if scale is not None:
            _colour_bar(figure, row, scale, quantity)
    for axes, plane in zip(grid[0], planes, strict=True):
        if len(planes) > 1:
            axes.set_title(plane.name, fontsize=10)
    for axes in grid.flat:
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        place = axes.get_subplotspec()
        if place.is_last_row():
            axes.set_xlabel(f"first direction: {unit}", fontsize=9)
        if place.is_first_col():
            axes.set_ylabel(f"second direction: {unit}", fontsize=9)
    _legend(figure, grid[0, 0], incomplete=incomplete)
    return figure


def _planes(result: xr.Dataset, name: str) -> list[_Plane]:
    if "draw" not in result.dims:
        return [_Plane(name, result)]
    return [_Plane(f"{name}, plane {int(draw) + 1}", result.sel(draw=draw)) for draw in result["draw"].values]


def _scale(values: Values, *, logarithmic: bool) -> _Scale | None:
    """Choose levels that all planes share; None where nothing is finite."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    low, high = float(finite.min()), float(finite.max())
    if logarithmic:
        return _Scale(LogNorm(low, high), np.geomspace(low, high, NUM_LEVELS + 1))
    # a plane without any height has a level too
    high = high if high > low else low + max(abs(low), 1.0) * 1e-3
    return _Scale(Normalize(low, high), np.linspace(low, high, NUM_LEVELS + 1))


def _contour(axes: Axes, values: xr.DataArray, scale: _Scale | None) -> bool:
    """Draw one plane, and tell whether something is missing in it."""
    axes.set_facecolor(MISSING_COLOUR)
    axes.grid(visible=False)
    # the ranges are equal; set_aspect would leave the labels no room
    axes.set_box_aspect(1)
    x, y = values["direction_x"].values, values["direction_y"].values
    height = np.ma.masked_invalid(values.transpose("direction_y", "direction_x").values)
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])
    if scale is not None and height.count():
        # rounding of the levels must not lose the lowest and the highest point
        height = np.ma.masked_invalid(np.clip(height.data, scale.levels[0], scale.levels[-1]))
        axes.contourf(x, y, height, levels=scale.levels, norm=scale.norm, cmap=COLOUR_MAP)
        axes.contour(x, y, height, levels=scale.levels[1:-1], colors="white", linewidths=0.5, alpha=0.7)
    axes.plot(0, 0, "+", color="white", markersize=11, markeredgewidth=3.5)
    axes.plot(0, 0, "+", color="black", markersize=9, markeredgewidth=1.4)
    return int(height.count()) < height.size


def _colour_bar(figure: Figure, row: Sequence[Axes], scale: _Scale, quantity: str) -> None:
    bar = figure.colorbar(ScalarMappable(scale.norm, COLOUR_MAP), ax=list(row), shrink=0.9)
    if quantity == "error":
        bar.set_label("error")
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda fraction, _: f"{round(100 * fraction, 6):g}%"))
    else:
        bar.set_label("loss [nat]")
        if isinstance(scale.norm, LogNorm):
            bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:g}"))


def _legend(figure: Figure, axes: Axes, *, incomplete: bool) -> None:
    (mark,) = axes.plot([], [], "+", color="black", markersize=9, markeredgewidth=1.4)
    handles, labels = [mark], ["trained weights"]
    if incomplete:
        handles.append(Patch(facecolor=MISSING_COLOUR))  # type: ignore[arg-type]
        labels.append("not finite or not measured")
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
