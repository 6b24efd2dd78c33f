"""Figures of results: one function per analysis, from Datasets alone, each returning a matplotlib Figure.

The figures belong to no pyplot session: nothing has to be closed, and neither the backend nor `rcParams` is
changed.
"""

from resprobe.plots.comparisons import comparison, race
from resprobe.plots.costs import costs
from resprobe.plots.curvature import curvature
from resprobe.plots.dispatch import plot
from resprobe.plots.ensembles import ensemble
from resprobe.plots.gradient_gains import gradient_gain
from resprobe.plots.gradients import gradients
from resprobe.plots.lesion_curves import lesion_curve
from resprobe.plots.lesions import lesion
from resprobe.plots.norm_lesions import norm_lesion
from resprobe.plots.paths import paths
from resprobe.plots.reorderings import reorder
from resprobe.plots.responses import responses
from resprobe.plots.saving import save_figure
from resprobe.plots.smoothness import smoothness
from resprobe.plots.surfaces import surface
from resprobe.plots.trainings import training
from resprobe.plots.unravelled import unravelled

__all__ = [
    "curvature",
    "comparison",
    "costs",
    "ensemble",
    "gradient_gain",
    "gradients",
    "lesion",
    "lesion_curve",
    "norm_lesion",
    "paths",
    "plot",
    "race",
    "reorder",
    "responses",
    "save_figure",
    "smoothness",
    "surface",
    "training",
    "unravelled",
]
