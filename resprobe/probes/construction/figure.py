"""Figures of the construction argument: the same function deeper, and what training makes of it."""

import json

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from resprobe.showing.captions import names, require, title
from resprobe.showing.theme import STYLE_COLOUR, colour_of, empty_figure, error_axis, legend_below, settle, themed

_SMALLEST = 1e-8  # of the largest logit: below, the axis is linear, so that 0 has a place


def comparison(*results: xr.Dataset) -> Figure:
    """Plot how far the logits of two networks are apart, in each mode of batch normalisation.

    Args:
        results: Datasets of `comparison`.

    Returns:
        A figure with one Axes: the largest change as a fraction of the largest logit, logarithmic, 0 at the bottom.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "comparison")
    with themed():
        figure = empty_figure()
        axes = figure.subplots()
        modes = list(dict.fromkeys(str(mode) for result in results for mode in result.bn_mode.values))
        for index, (result, name) in enumerate(zip(results, _labels(results), strict=True)):
            places = np.array([modes.index(str(mode)) for mode in result.bn_mode.values])
            shift = 0.1 * (index - (len(results) - 1) / 2)
            share = result.logit_change / result.largest_logit
            axes.plot(places + shift, share, "o", markersize=8, color=colour_of(index), label=name)
        axes.set_yscale("symlog", linthresh=_SMALLEST)
        axes.set_ylim(-_SMALLEST / 2, 100)
        axes.set_yticks([0, *(10.0**power for power in range(-8, 3, 2))])
        axes.set_xticks(range(len(modes)), modes)
        axes.set_xlim(-0.6, len(modes) - 0.4)
        axes.set_xlabel("batch normalisation")
        axes.set_ylabel("largest change of a logit\n[of the largest logit]")
        legend_below(figure, axes)
        figure.suptitle(title("Logits before and after", results), x=0.01, ha="left")
        return settle(figure)


def race(*results: xr.Dataset) -> Figure:
    """Plot error and loss against the epoch for each network, on training images (solid) and test images (dashed).

    Args:
        results: Datasets of `race`.

    Returns:
        A figure with two Axes, error and loss; the loss has a logarithmic axis. Epoch 0 is before training.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "race")
    with themed():
        figure = empty_figure(width=9.5)
        error_axes, loss_axes = figure.subplots(1, 2)
        prefixes = [f"{name}, " for name in names(results)] if len(results) > 1 else [""]
        racers = [
            (prefix + str(net), result.sel(net=net))
            for prefix, result in zip(prefixes, results, strict=True)
            for net in result.net.values
        ]
        for index, (name, racer) in enumerate(racers):
            _curves(error_axes, racer, "error", colour_of(index), name)
            _curves(loss_axes, racer, "loss", colour_of(index), "")
        error_axis(error_axes, label="error")
        loss_axes.set_yscale("log")
        loss_axes.set_ylabel("loss [nat]")
        for axes in (error_axes, loss_axes):
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        error_axes.plot([], [], "-", color=STYLE_COLOUR, label="training images")
        error_axes.plot([], [], "--", color=STYLE_COLOUR, label="test images")
        legend_below(figure, error_axes)
        figure.suptitle(title("Training after deepening", results), x=0.01, ha="left")
        return settle(figure)


def _labels(results: tuple[xr.Dataset, ...]) -> list[str]:
    """Name each result after the deeper network and what its normalisations store; else after its reference."""
    found = []
    for result, name in zip(results, names(results), strict=True):
        settings = json.loads(result.attrs["settings"])
        deeper = settings.get("deepened")
        found.append(f"{deeper}, {settings['statistics']} statistics" if deeper else name)
    return found if len(set(found)) == len(found) else names(results)


def _curves(axes: Axes, racer: xr.Dataset, quantity: str, colour: object, name: str) -> None:
    """Draw one quantity of one network; a name puts the solid line into the legend."""
    axes.plot(racer["epoch"], racer[f"train_{quantity}"], "-", color=colour, linewidth=1.5, label=name)
    axes.plot(racer["epoch"], racer[f"test_{quantity}"], "--", color=colour, linewidth=1.0)
