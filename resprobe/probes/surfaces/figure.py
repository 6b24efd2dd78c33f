"""The figures of loss surfaces: profiles of lines, contours of planes."""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from resprobe.errors import ResprobeError
from resprobe.probes.surfaces.contours import contours, far_apart
from resprobe.showing.captions import names, require, title
from resprobe.showing.theme import STYLE_COLOUR, colour_of, empty_figure, error_axis, legend_below, settle, themed

LINE_STYLES = ("-", "--")


def surface(*results: xr.Dataset) -> Figure:
    """Plot loss and error around the trained weights: along lines as profiles, in planes as contours.

    Profiles: one colour for each result, the median over its lines with a band from the lowest to the highest, and
    each line thin. Lines along eigenvectors are drawn one by one. Contours: one column for each plane; the trained
    weights are marked. What is not finite or not measured leaves gaps. After Li, Xu, Taylor, Studer and Goldstein
    (2018), figures 2 and 5.

    Args:
        results: Datasets of `surface`, all along lines or all in planes.

    Returns:
        A figure with Axes of the loss and of the error.

    Raises:
        ResprobeError: No result, one of another analysis, or lines and planes together.
    """
    require(results, "surface")
    planes = ["direction_y" in result.dims for result in results]
    if any(planes) and not all(planes):
        raise ResprobeError("plot: expected lines only or planes only, got both; make a figure of each")
    with themed():
        unit = " or ".join(sorted({result.attrs["direction_unit"] for result in results}))
        what = title("Loss surface", results, width=80) + _remarks(results)
        figure = contours(results, names(results), unit) if all(planes) else _profiles(results, f"distance: {unit}")
        figure.suptitle(what, x=0.01, ha="left")
        return settle(figure)


def _remarks(results: Sequence[xr.Dataset]) -> str:
    """Say what is missing in the figure."""
    missing = sum(int((result["done"] == 0).sum()) for result in results)
    bad = sum(int(result["num_nonfinite"]) for result in results)
    parts = [f"{missing:,} points not measured yet"] if missing else []
    parts += [f"{bad:,} points not finite"] if bad else []
    return f"\n({', '.join(parts)})" if parts else ""


def _profiles(results: Sequence[xr.Dataset], axis_label: str) -> Figure:
    figure = empty_figure(width=9.5)
    loss_axes, error_axes = figure.subplots(1, 2, sharex=True)
    for index, (result, name) in enumerate(zip(results, names(results), strict=True)):
        for axes, quantity in ((loss_axes, "loss"), (error_axes, "error")):
            values = result[quantity].where(np.isfinite(result[quantity]))
            if "rank" in values.dims:
                _eigenvectors(axes, values, result, colour_of(index), name)
            else:
                _lines(axes, values, colour_of(index), name)
    if any("draw" in result.dims for result in results):
        loss_axes.fill_between([], [], color=STYLE_COLOUR, alpha=0.2, linewidth=0, label="lowest to highest direction")
    _choose_scale(loss_axes)
    loss_axes.set_ylabel("loss [nat]")
    error_axis(error_axes, label="error")
    for axes in (loss_axes, error_axes):
        axes.set_xlabel(axis_label)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.axvline(0, color=STYLE_COLOUR, linewidth=0.8, linestyle=":", zorder=1)
    legend_below(figure, loss_axes)
    return figure


def _lines(axes: Axes, values: xr.DataArray, colour: object, name: str) -> None:
    """Draw a single line, or several with their median and band."""
    x = values["direction_x"].values
    if "draw" not in values.dims:
        axes.plot(x, values, "-", color=colour, linewidth=1.4, label=name)
        return
    for line in values.values:
        axes.plot(x, line, "-", color=colour, linewidth=0.6, alpha=0.5)
    axes.fill_between(x, values.min("draw"), values.max("draw"), color=colour, alpha=0.2, linewidth=0)
    number = values.sizes["draw"]
    axes.plot(
        x, values.median("draw"), "-", color=colour, linewidth=1.8, label=f"{name}, median of {number} directions"
    )


def _eigenvectors(axes: Axes, values: xr.DataArray, result: xr.Dataset, colour: object, name: str) -> None:
    for line, eigenvalue, style in zip(values.values, result["eigenvalue"].values, LINE_STYLES, strict=True):
        label = f"{name}, eigenvalue {eigenvalue:.3g}"
        axes.plot(values["direction_x"], line, style, color=colour, linewidth=1.4, label=label)


def _choose_scale(axes: Axes) -> None:
    drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines])
    if far_apart(drawn):
        axes.set_yscale("log")
    elif not (drawn < 0).any():
        axes.set_ylim(bottom=0)
