"""The figure of costs: what does the depth of a network cost?"""

import re
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from resprobe.showing.captions import names, require
from resprobe.showing.theme import STYLE_COLOUR, colour_of, empty_figure, legend_below, settle, themed

MARKERS = "osD^vPX*<>"
NEAR = 0.3  # in powers of ten


def costs(*results: xr.Dataset) -> Figure:
    """Plot parameters and measured time per image against multiply-adds, one point for each network.

    Networks whose names are the same but for their depth share colour and marker and are joined by a line. All axes
    are logarithmic; the bars are from the fastest to the median pass; hollow points are the papers' numbers.

    Args:
        results: Datasets of `costs`, of one network or several.

    Returns:
        A figure with two Axes.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "costs")
    networks = [
        network for result, name in zip(results, names(results), strict=True) for network in _split(result, name)
    ]
    with themed():
        figure = empty_figure(width=10, height=4.8)
        left, right = figure.subplots(1, 2, sharex=True)
        families: dict[str, list[tuple[str, xr.Dataset]]] = {}
        for name, network in networks:
            families.setdefault(_family(name), []).append((name, network))
        for index, (family, members) in enumerate(families.items()):
            _draw(left, right, family, members, index)
        for axes, label in ((left, "parameters [millions]"), (right, "time of a forward pass per image [ms]")):
            axes.set(xscale="log", yscale="log", xlabel="multiply-adds per image [billions]", ylabel=label)
            axes.margins(0.12)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(LogLocator(subs=(1, 3)))
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.set_minor_formatter(NullFormatter())
        if any("paper_num_params" in network for _, network in networks):
            left.plot(
                [], [], "o", color=STYLE_COLOUR, markerfacecolor="none", markersize=9, label="according to the paper"
            )
        threads = {result.attrs.get("num_threads") for result in results}
        words = f", threads: {threads.pop()}" if len(threads) == 1 and None not in threads else ""
        figure.suptitle(f"Costs of {len(networks)} networks{words}", x=0.01, ha="left")
        legend_below(figure, left)
        return settle(figure)


def _split(result: xr.Dataset, name: str) -> list[tuple[str, xr.Dataset]]:
    if "checkpoint" not in result.dims:
        return [(name, result)]
    return [(str(one), result.sel(checkpoint=one)) for one in result.checkpoint.values]


def _family(name: str) -> str:
    """Give what the networks of a family share: `resnet-v1` of `resnet50-v1`."""
    return re.sub(r"\d+", "", name, count=1)


def _depth(name: str) -> str:
    """Give the depth with which a name ends; variants of a family are where the family is, and have no label."""
    found = re.fullmatch(r"\D*(\d+)", name)
    return found[1] if found else ""


def _draw(left: Axes, right: Axes, family: str, members: list[tuple[str, xr.Dataset]], index: int) -> None:
    look: dict[str, Any] = {
        "color": colour_of(index),
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 5,
        "linewidth": 0.8,
    }
    work = np.array([float(network.multiply_adds) / 1e9 for _, network in members])
    params = np.array([float(network.num_params) / 1e6 for _, network in members])
    fastest, median = (
        np.array([1e3 * float(network[f"seconds_per_image{end}"]) for _, network in members]) for end in ("", "_median")
    )
    left.plot(work, params, label=family, **look)
    for (_, network), x, y in zip(members, work, params, strict=True):
        papers = [float(network.get(f"paper_{name}", np.nan)) for name in ("multiply_adds", "num_params")]
        if not np.isnan(papers).all():
            # a number that the paper doesn't give is where the measured one is
            shown = [p / u if p == p else m for p, u, m in zip(papers, (1e9, 1e6), (x, y), strict=True)]
            left.plot(*shown, **{**look, "markersize": 9, "markerfacecolor": "none", "linestyle": ""})
    right.errorbar(work, fastest, yerr=[0 * fastest, median - fastest], elinewidth=0.8, **look)
    for end, offset, side in ((0, (0, -15), "center"), (-1, (-2, 8), "center")):
        for axes, y in ((left, params), (right, fastest)):
            text, place = _depth(members[end][0]), (float(work[end]), float(y[end]))
            if not _is_labelled(axes, text, place) and (len(members) > 1 or end):
                axes.annotate(
                    text,
                    place,
                    xytext=offset,
                    textcoords="offset points",
                    ha=side,
                    fontsize=8,
                    color=look["color"],
                )


def _is_labelled(axes: Axes, text: str, place: tuple[float, float]) -> bool:
    """Find out whether a point nearby has the same label already."""
    labels = [label for label in axes.texts if isinstance(label, Annotation) and label.get_text() == text]
    return any(np.hypot(*np.log10(np.divide(label.xy, place))) < NEAR for label in labels)
