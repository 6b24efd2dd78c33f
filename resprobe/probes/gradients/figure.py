"""The figure of gradients: how do they fare on their way through layers and units?"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from resprobe.showing.captions import names, require, title
from resprobe.showing.theme import colour_of, empty_figure, legend_below, settle, themed

Floats = npt.NDArray[np.float64]
MAX_MARKERS = 30
# ratios of the largest to the smallest value: below the one an axis is linear, below the other it has plain numbers
NARROW, WIDE = 10, 1000


def gradients(*results: xr.Dataset) -> Figure:
    """Plot the gradient by weights against the layer, and by activations, its gain and the branch ratio by unit.

    Axes are logarithmic, those of the ratios only where these spread over a factor of ten; bands are two standard
    errors wide on either side. Several results are overlaid, against relative depth where they differ in their number
    of layers or units; untrained networks are dashed. Values that are not finite or zero are left out. Where a result
    has it, the correlation of gradients is a fifth panel.

    Args:
        results: Datasets of `gradients`.

    Returns:
        A figure with four Axes, or five and an empty one.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "gradients")
    panels = [
        ("weight_grad_norm", "layer", "gradient by weights [nat]"),
        ("activation_grad_norm", "unit", "gradient by output [nat]"),
        ("grad_gain", "unit", "gain of gradient"),
        ("branch_ratio", "unit", "branch / shortcut"),
    ]
    if any("grad_correlation" in result for result in results):
        panels.append(("grad_correlation", "unit", "correlation of images"))
    with themed():
        figure = empty_figure(width=10, height=6 if len(panels) == 4 else 8.5)
        grid = figure.subplots((len(panels) + 1) // 2, 2, squeeze=False)
        several = names(results) if len(results) > 1 else [""]
        for axes, (name, dim, label) in zip(grid.flat, panels, strict=False):
            for index, (result, of_result) in enumerate(zip(results, several, strict=True)):
                _draw(axes, result, name, dim, colour_of(index), of_result, _is_relative(results, dim))
            axes.set_ylabel(label)
            axes.set_xlabel(_x_label(results, dim))
            _scale(axes, name)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        if any(np.isfinite(result["branch_ratio"]).any() for result in results):
            grid.flat[3].axhline(1, color="0.55", linewidth=0.9, linestyle=":", zorder=0.5)
        else:
            _say_nothing(grid.flat[3], "no shortcut beside these layers")
        grid.flat[2].axhline(1, color="0.55", linewidth=0.9, linestyle=":", zorder=0.5)
        _key(grid[0, 0], results)
        figure.align_ylabels(grid)
        figure.suptitle(title("Gradients", results), x=0.01, ha="left")
        legend_below(figure, grid[0, 0])
        return settle(figure)


def _draw(axes: Axes, result: xr.Dataset, name: str, dim: str, colour: object, label: str, relative: bool) -> None:
    """Draw one quantity of one result with its band."""
    if name not in result:
        return
    values = result[name].values
    number = len(values)
    place = (np.arange(number) + 0.5) / number if relative else np.arange(1.0, number + 1)
    shown = np.isfinite(values) & ((values > 0) | (name == "grad_correlation"))
    marker = "o" if number <= MAX_MARKERS else ""
    style = "--" if _is_untrained(result) else "-"
    look: dict[str, Any] = {"marker": marker, "linestyle": style, "markersize": 3, "linewidth": 1.3}
    axes.plot(place[shown], values[shown], color=colour, label=label, **look)
    if f"{name}_sem" in result:
        low, high = _band(values, result[f"{name}_sem"].values)
        shown &= np.isfinite(high)
        axes.fill_between(place[shown], low[shown], high[shown], color=colour, alpha=0.2, linewidth=0)


def _band(values: Floats, sem: Floats) -> tuple[Floats, Floats]:
    """Give the ends of the band; on a logarithmic axis the lower one stays above zero."""
    with np.errstate(invalid="ignore"):
        return np.maximum(values - 2 * sem, values / 10), values + 2 * sem


def _scale(axes: Axes, name: str) -> None:
    """Choose a logarithmic axis where values differ much, with plain numbers where these are short."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10]))
    drawn = np.concatenate([np.asarray(line.get_ydata(), np.float64) for line in axes.lines])
    if name == "grad_correlation" or len(drawn) == 0:
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, -0.02), max(high, 0.1))
        return
    spread = drawn.max() / drawn.min()
    if spread < NARROW and name in ("grad_gain", "branch_ratio"):
        return
    axes.set_yscale("log")
    if spread < WIDE:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _say_nothing(axes: Axes, reason: str) -> None:
    """Write why there is nothing on some axes."""
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", color="0.35")


def _is_untrained(result: xr.Dataset) -> bool:
    return "init" in json.loads(result.attrs["facts"])


def _is_relative(results: Sequence[xr.Dataset], dim: str) -> bool:
    return len({result.sizes[dim] for result in results}) > 1


def _x_label(results: Sequence[xr.Dataset], dim: str) -> str:
    if _is_relative(results, dim):
        return f"relative depth of the {dim}"
    return f"place of the {dim}, from input to output"


def _key(axes: Axes, results: Sequence[xr.Dataset]) -> None:
    """Explain the band."""
    if any(np.isfinite(result["weight_grad_norm_sem"]).any() for result in results):
        axes.fill_between([], [], color="0.35", alpha=0.2, linewidth=0, label="± 2 standard errors over batches")
    elif len(results) == 1:
        axes.plot([], [], "-", color=colour_of(0), label="mean over images (weights: of the batch)")
