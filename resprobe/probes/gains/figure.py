"""The figure of gradient gains: does the backward signal survive the depth?"""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from resprobe.showing.captions import require, title
from resprobe.showing.theme import STYLE_COLOUR, colour_of, empty_figure, legend_below, settle, themed

MARKERS = "osD^v"
PANELS = (
    ("plain", "none", "plain, without normalisation"),
    ("plain", "batch", "plain, with batch normalisation"),
    ("resnet", "none", "residual, without normalisation"),
    ("resnet", "batch", "residual, with batch normalisation"),
)


def gradient_gain(*results: xr.Dataset) -> Figure:
    """Plot the gradient along the deepest networks, and at the first unit against the depth, relative to the last unit.

    One column for plain and residual networks with and without batch normalisation, one colour for each
    initialisation; points and thin lines are measured (median over seeds), dashed lines are predicted. The axes of
    the gradient are logarithmic and differ from panel to panel.

    Args:
        results: Datasets of `gradient-gain`, drawn over each other.

    Returns:
        A figure with eight Axes.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "gradient-gain")
    inits = list(dict.fromkeys(init for result in results for init in result["init"].values.tolist()))
    with themed():
        figure = empty_figure(width=14, height=7)
        grid = figure.subplots(2, len(PANELS))
        for (family, norm, words), above, below in zip(PANELS, *grid, strict=True):
            above.set_title(words, fontsize=10)
            for index, (init, result) in enumerate((init, result) for result in results for init in inits):
                which = (result["family"] == family) & (result["norm"] == norm) & (result["init"] == init)
                kind = result.isel(checkpoint=which.values).sortby("num_layers")
                if kind.sizes["checkpoint"]:
                    _along(above, kind.isel(checkpoint=-1), index % len(inits), init if index < len(inits) else "")
                    _by_depth(below, kind, index % len(inits))
            above.set_xlabel("place of the unit, from input to output")
            below.set_xlabel("layers")
            for axes in (above, below):
                axes.set_yscale("log")
                axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        deepest = max(int(result["num_layers"].max()) for result in results)
        grid[0, 0].set_ylabel(f"relative gradient, {deepest} layers")
        grid[1, 0].set_ylabel("relative gradient, first unit")
        grid[0, 0].plot([], [], "--", color=STYLE_COLOUR, label="random Jacobians")
        figure.align_ylabels(grid[:, 0])
        figure.suptitle(
            title("Gradient before training, relative to the last unit", results, width=150), x=0.01, ha="left"
        )
        legend_below(figure, grid[0, 0])
        return settle(figure)


def _along(axes: Axes, network: xr.Dataset, index: int, label: str) -> None:
    """Draw the gradient at each unit of one network."""
    number = int(network["num_units"])
    place = network["place"].values[:number]
    measured = network["relative_grad_norm"].median("draw").values[:number]
    marks = max(1, number // 8)
    axes.plot(
        place,
        np.where(measured > 0, measured, np.nan),
        color=colour_of(index),
        marker=MARKERS[index % len(MARKERS)],
        markersize=4,
        markevery=(index * marks // 5, marks),
        linewidth=1.1,
        label=label,
    )
    axes.plot(place, network["predicted_grad_norm"].values[:number], "--", color=colour_of(index), linewidth=1.1)


def _by_depth(axes: Axes, kind: xr.Dataset, index: int) -> None:
    """Draw the gradient at the first unit of networks of several depths, each seed as a point."""
    layers = kind["num_layers"].values
    for draw in range(kind.sizes["draw"]):
        first = kind["relative_grad_norm"].isel(draw=draw, place=0).values
        axes.plot(
            layers,
            np.where(first > 0, first, np.nan),
            linestyle="",
            color=colour_of(index),
            marker=MARKERS[index % len(MARKERS)],
            markersize=4,
        )
    axes.plot(layers, kind["predicted_grad_norm"].isel(place=0), "--", color=colour_of(index), linewidth=1.1)
