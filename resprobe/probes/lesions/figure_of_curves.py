"""The figure of growing lesions: how does the error rise with the number of deleted units?"""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from resprobe.showing.captions import names, require, title
from resprobe.showing.theme import (
    STYLE_COLOUR,
    baseline,
    colour_of,
    empty_figure,
    error_axis,
    legend_below,
    settle,
    themed,
    with_baseline,
)


def lesion_curve(*results: xr.Dataset) -> Figure:
    """Plot the error against the number of deleted units: draws, their median, the band from 5 to 95 %.

    After Veit, Wilber and Belongie (2016), section 4.2.

    Args:
        results: Datasets of `lesion-curve`.

    Returns:
        A figure with one Axes.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "lesion-curve")
    with themed():
        figure = empty_figure()
        axes = figure.subplots()
        if len(results) == 1:
            _draw(axes, results[0], colour_of(0), label=f"median of {results[0].sizes['draw']} draws")
            band_colour: object = colour_of(0)
            baseline(axes, results[0])
        else:
            for index, (result, name) in enumerate(zip(results, names(results), strict=True)):
                _draw(axes, result, colour_of(index), label=f"median, {with_baseline(name, result)}")
                baseline(axes, result, colour=colour_of(index), label="")
            band_colour = STYLE_COLOUR
            axes.plot([], [], "--", color=STYLE_COLOUR, label="intact network")
        axes.fill_between([], [], color=band_colour, alpha=0.2, linewidth=0, label="5 to 95 % of the draws")
        error_axis(axes, label="error with the units deleted")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.set_xlabel("number of deleted units")
        axes.set_title(title("Deletion of several units", results))
        legend_below(figure, axes)
        return settle(figure)


def _draw(axes: Axes, result: xr.Dataset, colour: object, *, label: str) -> None:
    """Draw one result; sizes of which no draw was measured are left out."""
    error = result["error"].dropna("num_deleted", how="all").transpose("num_deleted", "draw")
    size = error["num_deleted"].values
    low, median, high = error.quantile([0.05, 0.5, 0.95], dim="draw").values
    each_size = np.repeat(size, error.sizes["draw"])
    axes.plot(each_size, error.values.ravel(), ".", color=colour, alpha=0.2, markersize=4)
    axes.fill_between(size, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(size, median, "o-", color=colour, markersize=4, label=label)
