"""The figure of single deletions: which units does the network need?"""

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resprobe.showing.captions import names, require, title
from resprobe.showing.stages import boundaries, common_boundaries, mark_stages
from resprobe.showing.theme import (
    BASELINE_COLOUR,
    STYLE_COLOUR,
    baseline,
    colour_of,
    empty_figure,
    error_axis,
    legend_below,
    settle,
    themed,
    with_baseline,
)

MAX_BARS = 30
# Of a unit that keeps the shape, and of one that changes it, which is marked.
COLOURS = (colour_of(0), colour_of(1))
SHAPES = ("unit that keeps the shape", "unit that changes the shape")
NOT_DELETED = "unit that could not be deleted"

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def lesion(*results: xr.Dataset) -> Figure:
    """Plot the error after each deletion against the place of the unit, with its 95 % interval.

    A single result of at most 30 units is drawn as bars, a longer one as points; several results are
    overlaid, against relative depth where they differ in their number of units. Units that change the shape
    are marked, units that could not be deleted are crosses on the axis. After Veit, Wilber and Belongie
    (2016), section 4.1.

    Args:
        results: Datasets of `lesion`.

    Returns:
        A figure with one Axes.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "lesion")
    with themed():
        figure = _figure_for(results)
        axes = figure.subplots()
        if len(results) == 1:
            _draw_one(axes, results[0])
        else:
            _overlay(axes, results)
        _chance(axes, results)
        error_axis(axes, label="error with the unit deleted")
        axes.grid(visible=False, axis="x")
        axes.set_title(title("Deletion of single units", results), pad=20)
        legend_below(figure, axes)
        return settle(figure)


def _figure_for(results: Sequence[xr.Dataset]) -> Figure:
    """Return a figure wide enough for the units, and high enough for their names where these are written."""
    most_units = max(result.sizes["unit"] for result in results)
    if most_units > MAX_BARS:
        return empty_figure(width=10)
    if len(results) > 1:
        return empty_figure()
    longest_name = max(len(name) for name in results[0]["unit"].values)
    return empty_figure(height=4 + 0.07 * longest_name)


def _draw_one(axes: Axes, result: xr.Dataset) -> None:
    """Draw one result, its units in two groups: those that keep the shape and those that change it."""
    number = result.sizes["unit"]
    place = np.arange(1, number + 1, dtype=float)
    draw = _bars if number <= MAX_BARS else _points
    changing = _changes_shape(result)
    measured = np.isfinite(result["error"].values)
    draw(axes, result, place, measured & ~changing, marked=False)
    draw(axes, result, place, measured & changing, marked=True)
    baseline(axes, result)
    _not_deleted(axes, place[~measured], BASELINE_COLOUR)
    mark_stages(axes, result["stage"].values, boundaries(result) * number + 0.5, low=0.5, high=number + 0.5)
    axes.set_xlim(0.2, number + 0.8)
    if number <= MAX_BARS:
        axes.set_xticks(place, result["unit"].values, rotation=90)
        axes.set_xlabel("unit, from input to output")
    else:
        axes.set_xlabel("place of the unit, from input to output")


def _overlay(axes: Axes, results: Sequence[xr.Dataset]) -> None:
    """Draw several results over each other, each in its colour."""
    numbers = [result.sizes["unit"] for result in results]
    relative = len(set(numbers)) > 1
    low, high = (0.0, 1.0) if relative else (0.5, numbers[0] + 0.5)
    for index, (result, name) in enumerate(zip(results, names(results), strict=True)):
        colour = colour_of(index)
        place = low + (np.arange(result.sizes["unit"]) + 0.5) / result.sizes["unit"] * (high - low)
        error = result["error"].values
        changing = _changes_shape(result)
        label = with_baseline(name, result)
        axes.plot(place, error, "o-", color=colour, linewidth=0.8, markersize=3.5, label=label)
        axes.errorbar(place, error, yerr=_interval(result), fmt="none", ecolor=colour, elinewidth=0.8)
        axes.plot(place[changing], error[changing], "D", color=colour, markersize=5, markerfacecolor="white")
        baseline(axes, result, colour=colour, label="")
        _not_deleted(axes, place[np.isnan(error)], colour, label="")
    axes.plot([], [], "--", color=STYLE_COLOUR, label="intact network")
    axes.plot([], [], "D", color=STYLE_COLOUR, markerfacecolor="white", label=SHAPES[True])
    if any(result["error"].isnull().any() for result in results):
        axes.plot([], [], "x", color=STYLE_COLOUR, label=NOT_DELETED)
    common = common_boundaries(results)
    if common is not None:
        mark_stages(axes, results[0]["stage"].values, low + common * (high - low), low=low, high=high)
    margin = 0.01 * (high - low)
    axes.set_xlim(low - margin, high + margin)
    axes.set_xlabel("relative depth of the unit" if relative else "place of the unit, from input to output")


def _bars(axes: Axes, result: xr.Dataset, place: Floats, which: Bools, *, marked: bool) -> None:
    """Draw the chosen units as bars with their intervals, hatched if marked."""
    if which.any():
        axes.bar(
            place[which],
            result["error"].values[which],
            yerr=_interval(result)[:, which],
            color=COLOURS[marked],
            hatch="//" if marked else None,
            edgecolor="white",
            error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "0.2"},
            label=SHAPES[marked],
        )


def _points(axes: Axes, result: xr.Dataset, place: Floats, which: Bools, *, marked: bool) -> None:
    """Draw the chosen units as points with their intervals, as hollow diamonds if marked."""
    if which.any():
        axes.errorbar(
            place[which],
            result["error"].values[which],
            yerr=_interval(result)[:, which],
            fmt="D" if marked else "o",
            markersize=5 if marked else 3.5,
            markerfacecolor="white" if marked else COLOURS[marked],
            color=COLOURS[marked],
            elinewidth=0.8,
            label=SHAPES[marked],
        )


def _not_deleted(axes: Axes, place: Floats, colour: object, *, label: str = NOT_DELETED) -> None:
    """Mark the units without a measurement by crosses on the axis."""
    if place.size:
        axes.plot(place, np.zeros(place.size), "x", color=colour, clip_on=False, label=label)


def _interval(result: xr.Dataset) -> Floats:
    """Return the distances of the interval's ends from the error, `(2, unit)`, rounding errors removed."""
    error = result["error"].values
    return np.stack([error - result["error_low"].values, result["error_high"].values - error]).clip(min=0)


def _changes_shape(result: xr.Dataset) -> Bools:
    """Return which units have an output of another shape than their input."""
    changes: Bools = np.isin(result["shortcut"].values, ["pad", "projection"]) | (result["bypass"].values == "pad")
    return changes


def _chance(axes: Axes, results: Sequence[xr.Dataset]) -> None:
    """Draw the error of guessing, if all results know the same number of classes."""
    facts = [json.loads(result.attrs["facts"]).get("num_classes", {}).get("value") for result in results]
    if isinstance(facts[0], int) and len(set(facts)) == 1:
        error = 1 - 1 / facts[0]
        axes.axhline(error, color="0.55", linestyle=(0, (1, 2)), linewidth=1.2, label=f"chance: {error:.0%}")
