"""Figures of results: one function per analysis, from Datasets alone, each returning a matplotlib Figure.

`resprobe.plots.lesion(result)` draws a result of `resprobe lesion`, `resprobe.plots.norm_lesion` one of
`resprobe norm-lesion`, and so on; `plot` chooses by the result itself. `unravelled` draws the paths of a small network,
`ensemble` the lesion curves and path lengths that speak for an ensemble. The figures belong to no pyplot session:
nothing has to be closed, and neither the backend nor `rcParams` is changed.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from resprobe.results.catalogue import CATALOGUE, figure_of, name_of

_OF_ANALYSES = {name_of(analysis): analysis for analysis in CATALOGUE}
_OTHERS = {
    "ensemble": "resprobe.probes.ensembles.figure",
    "plot": "resprobe.showing.figures",
    "save_figure": "resprobe.showing.saving",
    "unravelled": "resprobe.probes.paths.figure_of_graph",
}

__all__ = sorted([*_OF_ANALYSES, *_OTHERS])  # noqa: PLE0604 - names of functions that are imported when asked for


def __getattr__(name: str) -> Callable[..., Any]:
    """Import a figure when it is first asked for."""
    if name in _OF_ANALYSES:
        function = figure_of(_OF_ANALYSES[name])
    elif name in _OTHERS:
        function = getattr(import_module(_OTHERS[name]), name)
    else:
        raise AttributeError(f"module 'resprobe.plots' has no attribute {name!r}")
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
