"""The figure of reorderings: how far may the units leave their order?"""

import math

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from resprobe.showing.captions import names, require, title
from resprobe.showing.theme import baseline, empty_figure, error_axis, legend_below, settle, themed, with_baseline


def reorder(*results: xr.Dataset) -> Figure:
    """Plot the error of each reordered network against Kendall's tau with the original order, falling from 1.

    The colour gives the number of swaps; the line joins the medians, over the draws, of both quantities at
    each number of swaps. Several results lie side by side with common axes. After Veit, Wilber and Belongie
    (2016), section 4.3.

    Args:
        results: Datasets of `reorder`.

    Returns:
        A figure with one Axes for each result, and one for the colours.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "reorder")
    with themed():
        columns = 2 if len(results) == 4 else min(len(results), 3)
        rows = math.ceil(len(results) / columns)
        figure = empty_figure(width=7 if columns == 1 else 1 + 3.6 * columns, height=1 + 3.7 * rows)
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        swaps = np.concatenate([result["num_swaps"].values for result in results])
        colours = Normalize(int(swaps.min()), max(int(swaps.max()), int(swaps.min()) + 1))
        for axes, result, name in zip(grid.flat, results, names(results), strict=False):
            points = _draw(axes, result, colours)
            baseline(axes, result, label="intact network" if len(results) > 1 else None)
            if len(results) > 1:
                axes.set_title(with_baseline(name, result))
            axes.set_xlabel("Kendall's tau with the original order")
            axes.tick_params(labelbottom=True)  # sharing hides it in all rows but the last
        for axes in grid.flat[len(results) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            error_axis(axes, label="error with the units reordered")
        _tau_axis(grid[0, 0], results)
        figure.colorbar(points, ax=grid, label="number of swaps", ticks=MaxNLocator(integer=True), pad=0.02)
        figure.suptitle(title("Reordering of units", results, width=75), x=0.01, ha="left")
        legend_below(figure, grid[0, 0])
        return settle(figure)


def _draw(axes: Axes, result: xr.Dataset, colours: Normalize) -> PathCollection:
    """Return the points of one result, drawn with their medians, which are joined in the order of tau."""
    tau, error = result["kendall_tau"].values, result["error"].values
    swaps = result["num_swaps"].broadcast_like(result["error"]).values
    points = axes.scatter(tau.ravel(), error.ravel(), c=swaps.ravel(), norm=colours, cmap="crest", s=12, alpha=0.6)
    measured = result[["kendall_tau", "error"]].dropna("num_swaps", how="all", subset=["error"])
    middle = measured.median("draw").sortby("kendall_tau", ascending=False)
    axes.plot(middle["kendall_tau"], middle["error"], "o-", color="black", markersize=3, label="median of the draws")
    return points


def _tau_axis(axes: Axes, results: tuple[xr.Dataset, ...]) -> None:
    """Let the axis fall from a little above 1 to a little below the smallest tau."""
    lowest = min(float(result["kendall_tau"].min()) for result in results)
    margin = max(0.03 * (1 - lowest), 0.01)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    axes.set_xlim(1 + margin, lowest - margin)
