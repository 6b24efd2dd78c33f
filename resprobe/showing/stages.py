"""Where one stage of a network ends and the next begins, drawn behind a figure of its units."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.transforms import Transform

# Boundaries of different networks that lie closer than this, in relative depth, are drawn as one.
SAME_BOUNDARY = 0.03
# Where nearly every layer changes the shape (dense networks), lines between the stages would hide the points.
MAX_STAGES = 20


def boundaries(result: xr.Dataset) -> npt.NDArray[np.float64]:
    """Find where a new stage begins.

    Args:
        result: A result with the coords `unit` and `stage`.

    Returns:
        Relative depths between 0 and 1, one less than there are stages.
    """
    return (np.flatnonzero(np.diff(result["stage"].values)) + 1) / result.sizes["unit"]


def common_boundaries(results: Sequence[xr.Dataset]) -> npt.NDArray[np.float64] | None:
    """Find the boundaries that the stages of several networks share.

    Args:
        results: Results with the coords `unit` and `stage`.

    Returns:
        The mean of their relative depths; None if the networks are divided differently.
    """
    each = [boundaries(result) for result in results]
    if any(one.shape != each[0].shape or (abs(one - each[0]) > SAME_BOUNDARY).any() for one in each):
        return None
    common: npt.NDArray[np.float64] = np.stack(each).mean(axis=0)
    return common


def mark_stages(
    axes: Axes, stage: npt.NDArray[np.int64], at: npt.NDArray[np.float64], *, low: float, high: float
) -> None:
    """Draw lines between the stages, their numbers above; a single stage or very many are not marked.

    Args:
        axes: Where the units lie along x.
        stage: `(unit,)`, the stage of each unit.
        at: Places of the boundaries on the x axis.
        low: Where the first stage begins on the x axis.
        high: Where the last one ends.
    """
    edges = [low, *at, high]
    if not 2 < len(edges) <= MAX_STAGES + 1:
        return
    for boundary in at:
        axes.axvline(boundary, color="0.6", linewidth=0.9, linestyle=":", zorder=0.5)
    first_units = np.flatnonzero(np.diff(stage, prepend=stage[0] - 1))
    roomy = min(np.diff(edges)) > 0.1 * (high - low)
    prefix = "stage " if roomy else ""
    for start, end, number in zip(edges, edges[1:], stage[first_units], strict=False):
        _write(axes, (start + end) / 2, f"{prefix}{number}", axes.get_xaxis_transform(), align="center")
    if not roomy:
        _write(axes, -0.005, "stage", axes.transAxes, align="right")


def _write(axes: Axes, x: float, text: str, transform: Transform, *, align: Literal["center", "right"]) -> None:
    """Write a text just above the axes."""
    axes.text(x, 1.01, text, transform=transform, ha=align, va="bottom", fontsize=8.5)
