"""The figure of lesions of batch normalisation: which layers need theirs?"""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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

# More names than this can't be read.
MAX_NAMES = 40


def norm_lesion(*results: xr.Dataset) -> Figure:
    """Plot the error with each batch normalisation replaced, with its 95 % interval, against its place.

    Several results are overlaid, against relative depth where they differ in their number of layers.

    Args:
        results: Datasets of `norm_lesion`.

    Returns:
        A figure with one Axes.

    Raises:
        ResprobeError: No result, or one of another analysis.
    """
    require(results, "norm-lesion")
    numbers = {result.sizes["layer"] for result in results}
    named = len(results) == 1 and max(numbers) <= MAX_NAMES
    with themed():
        figure = empty_figure(width=8 if named else 9, height=5.2 if named else 4.5)
        axes = figure.subplots()
        for index, (result, name) in enumerate(zip(results, _labels(results), strict=True)):
            _points(axes, result, colour_of(index), name, joined=len(results) > 1, relative=len(numbers) > 1)
            baseline(axes, result, colour=colour_of(index), label="")
        axes.plot([], [], "--", color=STYLE_COLOUR, label="intact network")
        axes.set_xlabel("relative depth of the layer" if len(numbers) > 1 else "place of the normalisation")
        if named:
            axes.set_xticks(results[0]["depth"].values, results[0]["layer"].values, rotation=90)
            axes.set_xlabel("batch normalisation, from input to output")
        error_axis(axes, label="error with the normalisation replaced")
        axes.grid(visible=False, axis="x")
        axes.set_title(title(f"Batch normalisation replaced ({_replacements(results)})", results), pad=12)
        legend_below(figure, axes)
        return settle(figure)


def _labels(results: Sequence[xr.Dataset]) -> list[str]:
    return [with_baseline(name, result) for name, result in zip(names(results), results, strict=True)]


def _replacements(results: Sequence[xr.Dataset]) -> str:
    return ", ".join(dict.fromkeys(result.attrs["replacement"] for result in results))


def _points(axes: Axes, result: xr.Dataset, colour: object, label: str, *, joined: bool, relative: bool) -> None:
    number, error = result.sizes["layer"], result["error"].values
    place = (np.arange(number) + 0.5) / number if relative else result["depth"].values
    interval = np.stack([error - result["error_low"].values, result["error_high"].values - error]).clip(min=0)
    style = "o-" if joined else "o"
    axes.errorbar(
        place, error, yerr=interval, fmt=style, color=colour, markersize=3.5, linewidth=0.8, elinewidth=0.8, label=label
    )
