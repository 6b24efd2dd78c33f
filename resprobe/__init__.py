"""resprobe: an analysis toolkit for trained plain and residual networks.

Every public name is an attribute of this package and is imported on first use, so that the command line can answer
`--help` without waiting for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from resprobe import data as data
    from resprobe import plots as plots
    from resprobe import results as results
    from resprobe import units as units
    from resprobe.data import ImageData as ImageData
    from resprobe.data import Normalisation as Normalisation
    from resprobe.data import open_data as open_data
    from resprobe.errors import ResprobeError as ResprobeError
    from resprobe.errors import ResprobeWarning as ResprobeWarning
    from resprobe.loading import Checkpoint as Checkpoint
    from resprobe.loading import load as load
    from resprobe.networks import Architecture as Architecture
    from resprobe.networks import build as build
    from resprobe.networks import deepen as deepen
    from resprobe.networks import parse_architecture as parse_architecture
    from resprobe.normalisation.norm_folding import FoldedNetwork as FoldedNetwork
    from resprobe.normalisation.norm_folding import fold_norm as fold_norm
    from resprobe.probes.construction.logit_comparison import compare_logits as compare_logits
    from resprobe.probes.costs.costs import costs as costs
    from resprobe.probes.curvature.curvature import curvature as curvature
    from resprobe.probes.gradients.gradients import gradients as gradients
    from resprobe.probes.lesions.lesions import lesion as lesion
    from resprobe.probes.lesions.lesions import lesion_curve as lesion_curve
    from resprobe.probes.norms.norms import norm_lesion as norm_lesion
    from resprobe.probes.paths.paths import paths as paths
    from resprobe.probes.reordering.reordering import reorder as reorder
    from resprobe.probes.responses.responses import responses as responses
    from resprobe.probes.smoothness.smoothness import smoothness as smoothness
    from resprobe.probes.surfaces.surfaces import surface as surface
    from resprobe.training.recipe import Recipe as Recipe
    from resprobe.training.recipe import default_recipe as default_recipe
    from resprobe.training.runs import train as train
    from resprobe.units import Segments as Segments
    from resprobe.units import Unit as Unit
    from resprobe.units import WholeModel as WholeModel
    from resprobe.units.hooks import deleted as deleted

# reached as resprobe.results.open, resprobe.plots.lesion, resprobe.units.find
_MODULES = ("data", "plots", "results", "units")

_HOME = {
    # opening checkpoints and data
    "Checkpoint": "resprobe.loading",
    "ImageData": "resprobe.data",
    "Normalisation": "resprobe.data",
    "load": "resprobe.loading",
    "open_data": "resprobe.data",
    # analyses
    "compare_logits": "resprobe.probes.construction.logit_comparison",
    "costs": "resprobe.probes.costs.costs",
    "curvature": "resprobe.probes.curvature.curvature",
    "gradients": "resprobe.probes.gradients.gradients",
    "lesion": "resprobe.probes.lesions.lesions",
    "lesion_curve": "resprobe.probes.lesions.lesions",
    "norm_lesion": "resprobe.probes.norms.norms",
    "paths": "resprobe.probes.paths.paths",
    "reorder": "resprobe.probes.reordering.reordering",
    "responses": "resprobe.probes.responses.responses",
    "smoothness": "resprobe.probes.smoothness.smoothness",
    "surface": "resprobe.probes.surfaces.surfaces",
    # changing what a model does
    "FoldedNetwork": "resprobe.normalisation.norm_folding",
    "deleted": "resprobe.units.hooks",
    "fold_norm": "resprobe.normalisation.norm_folding",
    # networks and their training
    "Architecture": "resprobe.networks",
    "Recipe": "resprobe.training.recipe",
    "build": "resprobe.networks",
    "deepen": "resprobe.networks",
    "default_recipe": "resprobe.training.recipe",
    "parse_architecture": "resprobe.networks",
    "train": "resprobe.training.runs",
    # what a model consists of
    "Segments": "resprobe.units",
    "Unit": "resprobe.units",
    "WholeModel": "resprobe.units",
    # bad input
    "ResprobeError": "resprobe.errors",
    "ResprobeWarning": "resprobe.errors",
}

__all__ = [*_MODULES, *_HOME]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in _MODULES:
        return import_module(f"resprobe.{name}")
    if name == "__version__":
        return import_module("importlib.metadata").version("resprobe")
    if name not in _HOME:
        raise AttributeError(f"module 'resprobe' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
