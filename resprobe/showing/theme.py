"""What all figures share: the look, an empty figure, axes of error, the line of the intact network."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import seaborn as sns
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

PALETTE: list[tuple[float, float, float]] = list(sns.color_palette("colorblind"))
BASELINE_COLOUR = "0.25"
STYLE_COLOUR = "0.35"  # of legend entries that explain a line style in any colour
LETTERS_IN_AN_INCH = 13  # of the legend's font, about
LETTERS_BESIDE_A_LABEL = 7  # the room that the handle and the gap take


@contextmanager
def themed() -> Iterator[None]:
    """Use the look of the figures for a while; the global `rcParams` are as before afterwards.

    Yields:
        Nothing.
    """
    look: dict[Any, object] = {
        "axes.titlelocation": "left",
        "axes.titlesize": 11,
        "axes.labelsize": 10,
        "figure.titlesize": 11,
        "legend.fontsize": 9,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "hatch.linewidth": 0.8,
    }
    with mpl.rc_context(), sns.axes_style("whitegrid"):
        mpl.rcParams.update(look)
        yield


def empty_figure(*, width: float = 8.0, height: float = 4.5) -> Figure:
    """Make a figure outside pyplot, so that nobody has to close it; it makes room for its titles and legends.

    Args:
        width: In inches.
        height: In inches.

    Returns:
        A figure without axes.
    """
    return Figure(figsize=(width, height), layout="constrained")


def colour_of(index: int) -> tuple[float, float, float]:
    """Give the colour of one of several results; after ten the colours come round again.

    Args:
        index: Place of the result among those shown.

    Returns:
        Red, green and blue from 0 to 1.
    """
    return PALETTE[index % len(PALETTE)]


def error_axis(axes: Axes, *, label: str) -> None:
    """Write the fractions on the y axis in percent, from 0 up, with room for the marker of a 0.

    Args:
        axes: Where errors are plotted, as fractions.
        label: What kind of error.
    """
    axes.yaxis.set_major_formatter(FuncFormatter(lambda fraction, _: f"{round(100 * fraction, 6):g}%"))
    axes.set_ylabel(label)
    axes.set_ylim(bottom=-0.02 * axes.get_ylim()[1])


def baseline(axes: Axes, result: xr.Dataset, *, colour: object = BASELINE_COLOUR, label: str | None = None) -> None:
    """Draw the error of the intact network as a horizontal line.

    Args:
        axes: Where errors are plotted.
        result: A result with `baseline_error`.
        colour: Colour of the line.
        label: What the legend says of it; by default that it is the intact network, with its error.
    """
    error = float(result["baseline_error"])
    label = f"intact network: {error:.1%}" if label is None else label
    axes.axhline(error, color=colour, linestyle="--", linewidth=1.2, zorder=1.5, label=label)


def with_baseline(name: str, result: xr.Dataset) -> str:
    """Add the error of the intact network to its name.

    Args:
        name: Name of the result.
        result: A result with `baseline_error`.

    Returns:
        Words for a legend or a title.
    """
    return f"{name} (intact: {float(result['baseline_error']):.1%})"


def legend_below(figure: Figure, axes: Axes) -> None:
    """Put the legend under the axes, where it hides nothing, in as many columns as have room.

    Args:
        figure: The figure.
        axes: Whose labelled artists are listed.
    """
    handles, labels = axes.get_legend_handles_labels()
    letters = max(map(len, labels)) + LETTERS_BESIDE_A_LABEL
    columns = int(figure.get_figwidth() * LETTERS_IN_AN_INCH / letters)
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(columns, len(labels))), frameon=False)


def settle(figure: Figure) -> Figure:
    """Lay the figure out now, under the theme: matplotlib makes tick labels only when it draws.

    Args:
        figure: A figure with everything on it.

    Returns:
        The same figure.
    """
    figure.draw_without_rendering()
    return figure
