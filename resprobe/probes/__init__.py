"""Analyses: each takes a model and batches and returns an xarray.Dataset."""

from resprobe.probes.lesions import lesion, lesion_curve
from resprobe.probes.paths import paths
from resprobe.probes.reordering import reorder

__all__ = ["lesion", "lesion_curve", "paths", "reorder"]
