"""The figure of smoothness: how loss and gradient change along the gradient."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resprobe.showing.captions import names, require, title
from resprobe.showing.theme import STYLE_COLOUR, colour_of, empty_figure, legend_below, settle, themed

MODE_TITLES = {
    "running": "BN with stored statistics",
    "batch": "BN with batch statistics",
    "folded": "BN folded into the weights",
    "none": "without BN",
}
STEP_LABELS = {"gradient": "step [learning rate]", "relative": "step [share of each filter's norm]"}
# A linear axis hides what is so many times smaller than the largest value.
LARGEST_LINEAR_RATIO = 30
BAND = (0.05, 0.95)


class _Row(NamedTuple):
    """A row of panels: what it shows and the label of its y axis."""

    values: Callable[[xr.Dataset], xr.DataArray]
    label: str


def _change(network: xr.Dataset) -> xr.DataArray:
    """Give the change of the gradient at each step but the first, where it is 0."""
    return network["grad_change"].isel(step=slice(1, None))


_ROWS = (
    _Row(lambda network: network["loss"], "loss [nat]"),
    _Row(_change, "change of the gradient"),
    _Row(lambda network: _change(network) / network["step_norm"], "change per distance"),
)


def smoothness(*results: xr.Dataset) -> Figure:
    """Plot loss, change of the gradient, and that change per distance against the step length.

    One column for each mode of batch normalisation, one colour for each network: the median over batches, and a band
    of 5 to 95 % of them. The highest point of a batch in the last row is its effective beta. Values that are not
    finite leave gaps. After Santurkar, Tsipras, Ilyas and Madry (2018), figure 4, which shows such bands over a
    training.

    Args:
        results: Datasets of `smoothness`.

    Returns:
        A figure with three rows of Axes.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "smoothness")
    networks = _networks(results)
    modes = [mode for mode in MODE_TITLES if any(mode in network.bn_mode.values for _, network in networks)]
    with themed():
        figure = empty_figure(width=max(5.0, 3.1 * len(modes) + 1.0), height=7.8)
        grid = figure.subplots(len(_ROWS), len(modes), sharex=True, sharey="row", squeeze=False)
        for row, (values, label) in enumerate(_ROWS):
            for axes, mode in zip(grid[row], modes, strict=True):
                for index, (_, network) in enumerate(networks):
                    if mode in network.bn_mode.values:
                        _band(axes, values(network.sel(bn_mode=mode)), colour_of(index))
            grid[row, 0].set_ylabel(label)
            _choose_scale(grid[row])
        for axes, mode in zip(grid[0], modes, strict=True):
            axes.set_title(MODE_TITLES[mode], fontsize=10)
        labels = {STEP_LABELS[result.attrs["step_rule"]] for result in results}
        for axes in grid[-1]:
            axes.set_xlabel(" or ".join(sorted(labels)))
        for index, (name, _) in enumerate(networks):
            grid[0, 0].plot([], [], "o-", color=colour_of(index), markersize=3, label=f"{name}, median")
        grid[0, 0].fill_between([], [], color=STYLE_COLOUR, alpha=0.25, linewidth=0, label="5 to 95 % of batches")
        what = title("Smoothness of the loss", [network for _, network in networks], width=40 * len(modes))
        figure.suptitle(what, x=0.01, ha="left")
        legend_below(figure, grid[0, 0])
        return settle(figure)


def _networks(results: tuple[xr.Dataset, ...]) -> list[tuple[str, xr.Dataset]]:
    """Take results apart into networks with their names."""
    found: list[tuple[str, xr.Dataset]] = []
    for name, result in zip(names(results), results, strict=True):
        if "checkpoint" in result.dims:
            found += [(str(one), result.sel(checkpoint=one)) for one in result.checkpoint.values]
        else:
            found.append((name, result))
    return [(name, _measured(network)) for name, network in found]


def _measured(network: xr.Dataset) -> xr.Dataset:
    """Drop the modes that this network can't have."""
    return network.isel(bn_mode=(network["num_nonfinite"] >= 0).any("batch").values)


def _band(axes: Axes, values: xr.DataArray, colour: object) -> None:
    finite = values.where(abs(values) < float("inf"))
    # quantiles of nothing are an error, so the steps without a finite value come back afterwards
    drawn = finite.dropna("step", how="all")
    if not drawn.size:
        return
    spread = drawn.quantile([BAND[0], 0.5, BAND[1]], "batch")
    step = finite["step"].values
    low, median, high = spread.reindex(step=step).transpose("quantile", "step").values
    axes.fill_between(step, low, high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(step, median, "o-", color=colour, markersize=3, linewidth=1.2)


def _choose_scale(row: Sequence[Axes]) -> None:
    """Use a log scale for a row of panels whose values are far apart; they share the axis."""
    lines = [np.asarray(line.get_ydata(), float) for axes in row for line in axes.lines]
    drawn = np.concatenate([np.empty(0), *lines])
    positive = drawn[drawn > 0]
    if positive.size and positive.max() > LARGEST_LINEAR_RATIO * positive.min():
        row[0].set_yscale("log")
    else:
        row[0].set_ylim(bottom=0)
