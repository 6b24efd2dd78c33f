"""resprobe: an analysis toolkit for trained plain and residual networks.

Every public name is an attribute of this package and is imported on first use, so that the command line can answer
`--help` without waiting for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from resprobe import data, plots, results, units
    from resprobe.data import ImageData, Normalisation, open_data
    from resprobe.errors import ResprobeError, ResprobeWarning
    from resprobe.hooks import deleted
    from resprobe.loading import Checkpoint, load
    from resprobe.networks import Architecture, build, deepen, parse_architecture
    from resprobe.norm_folding import FoldedNetwork, fold_norm
    from resprobe.probes import (
        compare_logits,
        costs,
        curvature,
        gradients,
        lesion,
        lesion_curve,
        norm_lesion,
        paths,
        reorder,
        responses,
        smoothness,
        surface,
    )
    from resprobe.segments import Segments, Unit, WholeModel
    from resprobe.training import Recipe, default_recipe, train

_HOME = {
    # opening checkpoints and data
    "Checkpoint": "resprobe.loading",
    "ImageData": "resprobe.data",
    "Normalisation": "resprobe.data",
    "load": "resprobe.loading",
    "open_data": "resprobe.data",
    # analyses
    "curvature": "resprobe.probes",
    "compare_logits": "resprobe.probes",
    "costs": "resprobe.probes",
    "gradients": "resprobe.probes",
    "lesion": "resprobe.probes",
    "lesion_curve": "resprobe.probes",
    "norm_lesion": "resprobe.probes",
    "paths": "resprobe.probes",
    "reorder": "resprobe.probes",
    "responses": "resprobe.probes",
    "smoothness": "resprobe.probes",
    "surface": "resprobe.probes",
    # changing what a model does
    "deleted": "resprobe.hooks",
    "FoldedNetwork": "resprobe.norm_folding",
    "fold_norm": "resprobe.norm_folding",
    # networks and their training
    "Architecture": "resprobe.networks",
    "Recipe": "resprobe.training",
    "build": "resprobe.networks",
    "deepen": "resprobe.networks",
    "default_recipe": "resprobe.training",
    "parse_architecture": "resprobe.networks",
    "train": "resprobe.training",
    # what a model consists of
    "Segments": "resprobe.segments",
    "Unit": "resprobe.segments",
    "WholeModel": "resprobe.segments",
    # bad input
    "ResprobeError": "resprobe.errors",
    "ResprobeWarning": "resprobe.errors",
}

__all__ = [
    "data",
    "plots",
    "results",
    "units",
    "Architecture",
    "Checkpoint",
    "FoldedNetwork",
    "ImageData",
    "Normalisation",
    "Recipe",
    "ResprobeError",
    "ResprobeWarning",
    "Segments",
    "Unit",
    "WholeModel",
    "build",
    "curvature",
    "compare_logits",
    "deepen",
    "costs",
    "default_recipe",
    "deleted",
    "fold_norm",
    "gradients",
    "lesion",
    "lesion_curve",
    "load",
    "norm_lesion",
    "open_data",
    "parse_architecture",
    "paths",
    "reorder",
    "responses",
    "smoothness",
    "surface",
    "train",
]


# reached as resprobe.results.open, resprobe.plots.lesion, resprobe.units.find
_MODULES = ("data", "plots", "results", "units")


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
    return sorted({*globals(), *__all__, *_MODULES})
