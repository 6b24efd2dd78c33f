"""The figure of training: does the deeper network train as well as the shallower one?"""

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from resprobe.showing.captions import names, require, title
from resprobe.showing.theme import STYLE_COLOUR, colour_of, empty_figure, error_axis, legend_below, settle, themed


def training(*results: xr.Dataset) -> Figure:
    """Plot error and loss against the epoch, on the training images (solid) and on the test images (dashed).

    After He, Zhang, Ren and Sun (2015), figures 1 and 6.

    Args:
        results: Datasets of `training`.

    Returns:
        A figure with two Axes, error and loss; the loss has a logarithmic axis.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "training")
    with themed():
        figure = empty_figure(width=9.5)
        error_axes, loss_axes = figure.subplots(1, 2)
        for index, (result, name) in enumerate(zip(results, names(results), strict=True)):
            _curves(error_axes, result, "error", colour_of(index), name if len(results) > 1 else "")
            _curves(loss_axes, result, "loss", colour_of(index), "")
        error_axis(error_axes, label="error")
        loss_axes.set_yscale("log")
        loss_axes.set_ylabel("loss [nat]")
        for axes in (error_axes, loss_axes):
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style_colour = STYLE_COLOUR if len(results) > 1 else colour_of(0)
        error_axes.plot([], [], "-", color=style_colour, label="training images")
        error_axes.plot([], [], "--", color=style_colour, label="test images")
        legend_below(figure, error_axes)
        figure.suptitle(title("Training", results), x=0.01, ha="left")
        return settle(figure)


def _curves(axes: Axes, result: xr.Dataset, quantity: str, colour: object, name: str) -> None:
    """Draw one quantity of one result; a name puts the solid line into the legend."""
    axes.plot(result["epoch"], result[f"train_{quantity}"], "-", color=colour, linewidth=1.5, label=name)
    axes.plot(result["epoch"], result[f"test_{quantity}"], "--", color=colour, linewidth=1.2)
