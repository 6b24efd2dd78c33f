"""The figure of curvature: the density of the Hessian's eigenvalues."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resprobe.showing.captions import names, require, title
from resprobe.showing.theme import colour_of, empty_figure, legend_below, settle, themed

# What is less than this share of one eigenvalue is the tail of a Gaussian and says nothing.
LOWEST_SHARE = 0.01


def curvature(*results: xr.Dataset) -> Figure:
    """Plot the density of the eigenvalues on a log scale, and mark the largest ones and the smallest.

    The marks stand below the curve: full where the eigenvalue has converged, open where it has not.

    Args:
        results: Datasets of `curvature`.

    Returns:
        A figure with one Axes, or with a second one for the largest eigenvalue and the trace of each block.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "curvature")
    blocks = [(index, result) for index, result in enumerate(results) if "block" in result.dims]
    with themed():
        figure = empty_figure(height=4.8 + (3.2 if blocks else 0))
        rows = 2 if blocks else 1
        grid = figure.subplots(rows, 1, squeeze=False, height_ratios=[3, 2][:rows])
        _draw_densities(grid[0, 0], results)
        if blocks:
            _draw_blocks(grid[1, 0], blocks)
        figure.suptitle(title("Density of the Hessian's eigenvalues", results), x=0.01, ha="left")
        legend_below(figure, grid[0, 0])
        return settle(figure)


def _draw_densities(axes: Axes, results: tuple[xr.Dataset, ...]) -> None:
    highest = max((float(result.density.max()) for result in results if result.density.notnull().any()), default=1.0)
    floor = highest * LOWEST_SHARE / max(int(result.num_params) for result in results)
    axes.set_yscale("log")
    axes.set_ylim(floor / 10 ** (0.5 * len(results) + 0.3), highest * 3)
    for index, (name, result) in enumerate(zip(names(results), results, strict=True)):
        colour = colour_of(index)
        density = result.density.where(result.density > floor)
        axes.plot(result.eigenvalue_grid, density, color=colour, linewidth=1.4, label=f"{name}, {_trace(result)}")
        # one row of marks for each result, under the curves
        height = floor / 10 ** (0.5 * index + 0.3)
        values = np.append(result.eigenvalue.values, float(result.lowest_eigenvalue))
        converged = np.append(result.converged.values, bool(result.lowest_converged)).astype(bool)
        for chosen, face in ((converged, colour), (~converged, "white")):
            axes.plot(
                values[chosen], np.full(chosen.sum(), height), "o", color=colour, markerfacecolor=face, markersize=5
            )
    axes.plot([], [], "o", color="0.35", markersize=5, label=_marks(results))
    axes.set_xlabel("eigenvalue [nat]")
    axes.set_ylabel("density [1/nat]")


def _draw_blocks(axes: Axes, results: list[tuple[int, xr.Dataset]]) -> None:
    """Draw the largest eigenvalue of each block."""
    for index, result in results:
        place = np.arange(result.sizes["block"])
        axes.plot(place, result.block_eigenvalue.isel(rank=0), "o-", color=colour_of(index), markersize=4, linewidth=1)
    first = max((result for _, result in results), key=lambda result: result.sizes["block"])
    axes.set_xticks(np.arange(first.sizes["block"]), list(map(str, first.block.values)))
    if first.sizes["block"] > 8:
        axes.tick_params(axis="x", rotation=90, labelsize=7)
    axes.set_ylabel("largest eigenvalue\nof the block [nat]")


def _marks(results: tuple[xr.Dataset, ...]) -> str:
    """Say what the marks are, and what the open ones are where there are some."""
    converged = all(bool(result.converged.all()) and bool(result.lowest_converged) for result in results)
    return "largest eigenvalues, and the smallest" + ("" if converged else " (open: not converged)")


def _trace(result: xr.Dataset) -> str:
    sem = float(result.trace_sem)
    return f"trace {float(result.trace):.3g}" + (f" ± {sem:.1g}" if sem > 0 else "")
