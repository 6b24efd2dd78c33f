"""The figure of any result."""

from collections.abc import Callable

import xarray as xr
from matplotlib.figure import Figure

from resprobe.errors import ResprobeError
from resprobe.plots.comparisons import comparison, race
from resprobe.plots.costs import costs
from resprobe.plots.curvature import curvature
from resprobe.plots.gradient_gains import gradient_gain
from resprobe.plots.gradients import gradients
from resprobe.plots.lesion_curves import lesion_curve
from resprobe.plots.lesions import lesion
from resprobe.plots.norm_lesions import norm_lesion
from resprobe.plots.paths import paths
from resprobe.plots.reorderings import reorder
from resprobe.plots.responses import responses
from resprobe.plots.smoothness import smoothness
from resprobe.plots.surfaces import surface
from resprobe.plots.trainings import training

FIGURES: dict[str, Callable[..., Figure]] = {
    "comparison": comparison,
    "gradients": gradients,
    "lesion": lesion,
    "lesion-curve": lesion_curve,
    "reorder": reorder,
    "race": race,
    "paths": paths,
    "responses": responses,
    "smoothness": smoothness,
    "curvature": curvature,
    "norm-lesion": norm_lesion,
    "surface": surface,
    "costs": costs,
    "gradient-gain": gradient_gain,
    "training": training,
}


def plot(*results: xr.Dataset) -> Figure:
    """Plot one result, or several of the same analysis in one figure.

    Args:
        results: Datasets of an analysis; the attribute `analysis` of the first chooses the figure.

    Returns:
        The figure; show it in a notebook, or write it with `save_figure`.

    Raises:
        ResprobeError: No result, an analysis that has no figure, or results of different analyses.
    """
    if not results:
        raise ResprobeError("plot: expected at least one result, got none; pass a Dataset")
    analysis = results[0].attrs.get("analysis")
    if analysis not in FIGURES:
        raise ResprobeError(
            f"plot: expected a result of {', '.join(FIGURES)}, got analysis {analysis!r}; "
            "open one with resprobe.results.open"
        )
    return FIGURES[analysis](*results)
