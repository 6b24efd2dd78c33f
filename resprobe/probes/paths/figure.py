"""The figure of the gradient by path length: through how many branches does it flow?"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from resprobe.showing.captions import names, require, title
from resprobe.showing.theme import STYLE_COLOUR, colour_of, empty_figure, legend_below, settle, themed

Floats = npt.NDArray[np.float64]

# Of single paths, with the names that the legend gives them.
SINGLE_PATHS = {"path_grad_rms": ("root mean square", "s-"), "path_grad_mean": ("mean of samples", "^-")}


def paths(*results: xr.Dataset) -> Figure:
    """Plot how many paths there are of each length, what one of them carries, and what all of them carry together.

    Three panels: the share of the paths; the norm of a single path, on a log scale, where it was estimated; the norm
    of the sum over all paths of a length, with its standard error and the band of effective lengths. After Veit,
    Wilber and Belongie (2016), section 5, who in the third panel multiply number and single norm instead.

    Args:
        results: Datasets of `paths`.

    Returns:
        A figure with three Axes, or two where no single path was estimated.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "paths")
    with themed():
        panels: list[Callable[[Axes, xr.Dataset, object, str], None]] = [_share_of_paths, _sum_of_paths]
        if any(name in result for result in results for name in SINGLE_PATHS):
            panels.insert(1, _single_path)
        figure = empty_figure(width=3.6 * len(panels) + 1.2, height=4.2)
        all_axes: Sequence[Axes] = list(figure.subplots(1, len(panels)))
        first, labels = all_axes[0], names(results)
        for axes, draw in zip(all_axes, panels, strict=True):
            for index, (result, label) in enumerate(zip(results, labels, strict=True)):
                draw(axes, result, colour_of(index), label)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
            axes.set_xlabel("path length (branches)")
        for name, (words, style) in SINGLE_PATHS.items():
            if any(name in result for result in results):
                first.plot([], [], style, color=STYLE_COLOUR, markersize=3.5, label=f"single path, {words}")
        first.fill_between([], [], color=STYLE_COLOUR, alpha=0.2, linewidth=0, label="5 to 95 % of the norms")
        figure.suptitle(title("Gradient by path length", results), x=0.01, ha="left")
        legend_below(figure, first)
        return settle(figure)


def _share_of_paths(axes: Axes, result: xr.Dataset, colour: object, label: str) -> None:
    axes.plot(
        result["path_length"].values, result["path_share"].values, "o-", color=colour, markersize=3.5, label=label
    )
    axes.set_ylabel("share of all paths")
    axes.set_ylim(bottom=0)


def _single_path(axes: Axes, result: xr.Dataset, colour: object, label: str) -> None:
    for name, (_, style) in SINGLE_PATHS.items():
        if name in result:
            norm, sem = _positive(result[name].values), result[f"{name}_sem"].values
            axes.errorbar(
                result["path_length"].values, norm, yerr=sem, fmt=style, color=colour, markersize=3.5, elinewidth=0.8
            )
    axes.set_yscale("log")
    axes.set_ylabel("gradient norm of a single path")


def _sum_of_paths(axes: Axes, result: xr.Dataset, colour: object, label: str) -> None:
    length, norm = result["path_length"].values, result["coherent_grad_norm"].values
    sem = result["coherent_grad_norm_sem"].values
    axes.errorbar(length, norm, yerr=sem, fmt="o-", color=colour, markersize=3.5, elinewidth=0.8)
    low, high = float(result["effective_length_low"]), float(result["effective_length_high"])
    axes.axvspan(low - 0.5, high + 0.5, color=colour, alpha=0.15, linewidth=0, zorder=0.5)
    axes.set_ylabel("gradient norm of all paths together")
    axes.set_ylim(bottom=0)


def _positive(values: Floats) -> Floats:
    """Leave out what a log scale can't show."""
    return np.where(values > 0, values, np.nan)
