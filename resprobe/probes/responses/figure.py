"""The figure of responses: how strong is the signal of each layer?"""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from resprobe.showing.captions import names, require, title
from resprobe.showing.theme import colour_of, empty_figure, legend_below, settle, themed

MAX_MARKERS = 60


def responses(*results: xr.Dataset) -> Figure:
    """Plot the standard deviation of each layer's responses, in the order of layers and sorted by size.

    After He, Zhang, Ren and Sun (2015), figure 7. Projections on shortcuts, 1x1 convolutions of the networks there,
    are layers like others. Values that are not finite are left out.

    Args:
        results: Datasets of `responses`; several are overlaid.

    Returns:
        A figure with two Axes.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "responses")
    with themed():
        figure = empty_figure(width=8, height=6.5)
        in_order, by_size = figure.subplots(2, 1)
        for index, (result, name) in enumerate(zip(results, _labels(results), strict=True)):
            std = result["response_std"].values
            depth = result["depth"].values
            shown = np.isfinite(std)
            marker = "o-" if len(std) <= MAX_MARKERS else "-"
            look = {"color": colour_of(index), "markersize": 3, "linewidth": 1.3}
            in_order.plot(depth[shown], std[shown], marker, label=name, **look)
            by_size.plot(np.arange(1, shown.sum() + 1), np.sort(std[shown])[::-1], marker, **look)
        in_order.set_xlabel("layer, from input to output")
        by_size.set_xlabel("layer, sorted by size of its responses")
        for axes in (in_order, by_size):
            axes.set_ylabel("std of responses")
            axes.set_ylim(bottom=0)
        figure.suptitle(title("Responses of convolutions", results), x=0.01, ha="left")
        legend_below(figure, in_order)
        return settle(figure)


def _labels(results: Sequence[xr.Dataset]) -> list[str]:
    """Name each result with its median."""
    medians = [float(result["response_std"].median()) for result in results]
    own = [f"{name} (" for name in names(results)] if len(results) > 1 else ["standard deviation ("]
    return [f"{name}median {median:.2f})" for name, median in zip(own, medians, strict=True)]
