"""The figure of four studies of two networks: an ensemble of paths, or a chain?"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from resprobe.probes.ensembles.ensembles import VEIT_EFFECTIVE, VEIT_FEW, VEIT_FEW_ERROR, VEIT_UNITS, chance
from resprobe.showing.captions import names, require, title
from resprobe.showing.theme import STYLE_COLOUR, colour_of, empty_figure, error_axis, settle, themed

Study = Mapping[str, xr.Dataset]
PAPER_COLOUR = "0.25"
MARKERS = ("o", "s")


def ensemble(residual: Study, plain: Study) -> Figure:
    """Plot single deletions, growing lesions, reorderings and path lengths of a residual and a plain network.

    After Veit, Wilber and Belongie (2016), whose numbers are drawn in grey where they can be, scaled to the same share
    of the units. In the last panel the full line is the norm of the sum of all paths of a length; the dotted one,
    `number x norm of one path`, ignores how they cancel, like the paper's (which takes the mean norm of sampled
    paths; here it is the root mean square over all of them).

    Args:
        residual: Results of the residual network by analysis: `lesion`, `lesion-curve`, `reorder`, `paths`.
        plain: The same of the plain network.

    Returns:
        A figure with four Axes.

    Raises:
        ResprobeError: A result is missing, or of another analysis.
    """
    for analysis in ("lesion", "lesion-curve", "reorder", "paths"):
        require([study[analysis] for study in (residual, plain) if analysis in study], analysis)
    studies = (residual, plain)
    labels = names([study["lesion"] for study in studies])
    with themed():
        figure = empty_figure(width=10, height=8)
        grid = figure.subplots(2, 2)
        for index, (study, label) in enumerate(zip(studies, labels, strict=True)):
            _lesion(grid[0, 0], study["lesion"], index, label)
            _curve(grid[0, 1], study["lesion-curve"], index, label)
            _order(grid[1, 0], study["reorder"], index, label)
        _paths(grid[1, 1], residual["paths"], plain["paths"], labels)
        for axes in (grid[0, 0], grid[0, 1], grid[1, 0]):
            axes.axhline(chance(residual["lesion"]), color="0.55", linestyle=(0, (1, 2)), linewidth=1.2, label="chance")
            error_axis(axes, label="error")
        grid[0, 1].plot(
            VEIT_FEW / VEIT_UNITS, VEIT_FEW_ERROR, "*", color=PAPER_COLOUR, markersize=11, label="Veit et al."
        )
        panels = ("One unit deleted", "Several units deleted", "Units reordered", "Gradient by path length")
        for axes, words in zip(grid.flat, panels, strict=True):
            axes.set_title(words)
        _common_legend(figure)
        figure.suptitle(title("Ensemble or chain", [study["lesion"] for study in studies]), x=0.01, ha="left")
        return settle(figure)


def _lesion(axes: Axes, result: xr.Dataset, index: int, label: str) -> None:
    error = result["error"].values
    place = (np.arange(len(error)) + 0.5) / len(error)
    axes.plot(place, error, color=colour_of(index), marker=MARKERS[index], markersize=4, linewidth=0.8, label=label)
    axes.axhline(float(result.baseline_error), color=colour_of(index), linestyle="--", linewidth=1)
    axes.set_xlabel("relative depth of the unit (dashed: intact)")


def _curve(axes: Axes, result: xr.Dataset, index: int, label: str) -> None:
    spread = result["error"].dropna("num_deleted", how="all").quantile([0.05, 0.5, 0.95], "draw")
    low, median, high = spread.transpose("quantile", "num_deleted").values
    share = np.concatenate([[0], spread["num_deleted"].values / result.sizes["unit"]])
    low, median, high = (np.concatenate([[float(result.baseline_error)], values]) for values in (low, median, high))
    axes.fill_between(share, low, high, color=colour_of(index), alpha=0.2, linewidth=0)
    axes.plot(share, median, color=colour_of(index), marker=MARKERS[index], markersize=4, label=label)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    axes.set_xlabel("share of the units deleted (band: 5 to 95 % of draws)")


def _order(axes: Axes, result: xr.Dataset, index: int, label: str) -> None:
    tau, error = result["kendall_tau"].values.ravel(), result["error"].values.ravel()
    axes.scatter(tau, error, s=9, alpha=0.35, color=colour_of(index), marker=MARKERS[index], linewidth=0)
    middle = result[["kendall_tau", "error"]].median("draw").sortby("kendall_tau", ascending=False)
    axes.plot(
        np.concatenate([[1], middle["kendall_tau"].values]),
        np.concatenate([[float(result.baseline_error)], middle["error"].values]),
        color=colour_of(index),
        marker=MARKERS[index],
        markersize=4,
        label=label,
    )
    low, high = sorted(axes.get_xlim())
    axes.set_xlim(high, low)
    axes.set_xlabel("Kendall's tau with the original order")


def _paths(axes: Axes, residual: xr.Dataset, plain: xr.Dataset, labels: list[str]) -> None:
    length = residual["path_length"].values
    number = int(length.max())
    low, high = (end / VEIT_UNITS * number for end in VEIT_EFFECTIVE)
    axes.axvspan(low, high, color="0.85", linewidth=0, zorder=0.5, label="nearly all of the gradient, Veit et al.")
    axes.plot(length, residual["path_share"], "--", color=STYLE_COLOUR, label="number of paths (binomial)")
    axes.plot(
        length,
        residual["grad_share"],
        color=colour_of(0),
        marker=MARKERS[0],
        markersize=4,
        label=labels[0],
    )
    if "path_grad_rms" in residual:
        bound = residual["path_share"].values * residual["path_grad_rms"].values
        axes.plot(
            length, bound / bound.sum(), ":", color=colour_of(0), linewidth=1.8, label="number x norm of one path"
        )
    only = int(plain["path_length"].max())
    axes.axvline(only, color=colour_of(1), linewidth=1.8, label="path of the plain network")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    axes.set(xlabel="path length (branches)", ylabel="share")


def _common_legend(figure: Figure) -> None:
    """Explain all panels below them, each entry once."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=3, frameon=False)
