"""Analyses: each takes a model and batches and returns an xarray.Dataset."""

from resprobe.probes.costs import costs
from resprobe.probes.gradients import gradients
from resprobe.probes.lesions import lesion, lesion_curve
from resprobe.probes.logit_comparison import compare_logits
from resprobe.probes.loss_curvature import curvature
from resprobe.probes.loss_smoothness import smoothness
from resprobe.probes.norm_lesions import norm_lesion
from resprobe.probes.paths import paths
from resprobe.probes.reordering import reorder
from resprobe.probes.responses import responses
from resprobe.probes.surfaces import surface

__all__ = [
    "curvature",
    "compare_logits",
    "costs",
    "gradients",
    "lesion",
    "lesion_curve",
    "norm_lesion",
    "paths",
    "reorder",
    "responses",
    "smoothness",
    "surface",
]
