"""The kinds of results, and where each one's fields, table and figure are at home.

This is the one list of analyses. It names modules and imports none: who needs the fields, the table or the figure of a
result asks for them by the result's analysis, and only these are imported.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from resprobe.results.fields import Fields


class Home(NamedTuple):
    """The package of one kind of result, and its module with the figure where that is not `figure`."""

    package: str
    figure: str = "figure"


# For an analysis "norm-lesion": `NORM_LESION` in fields.py, `norm_lesion` in table.py and in figure.py.
CATALOGUE: dict[str, Home] = {
    "lesion": Home("resprobe.probes.lesions"),
    "lesion-curve": Home("resprobe.probes.lesions", figure="figure_of_curves"),
    "reorder": Home("resprobe.probes.reordering"),
    "paths": Home("resprobe.probes.paths"),
    "gradients": Home("resprobe.probes.gradients"),
    "responses": Home("resprobe.probes.responses"),
    "smoothness": Home("resprobe.probes.smoothness"),
    "curvature": Home("resprobe.probes.curvature"),
    "norm-lesion": Home("resprobe.probes.norms"),
    "surface": Home("resprobe.probes.surfaces"),
    "costs": Home("resprobe.probes.costs"),
    "gradient-gain": Home("resprobe.probes.gains"),
    "training": Home("resprobe.training"),
    "comparison": Home("resprobe.probes.construction"),
    "race": Home("resprobe.probes.construction"),
}


def fields_of(analysis: str) -> Fields:
    """Give what the result of an analysis holds.

    Args:
        analysis: A key of `CATALOGUE`.

    Returns:
        Its variables and coordinates.
    """
    fields: Fields = getattr(_module(analysis, "fields"), name_of(analysis).upper())
    return fields


def table_of(analysis: str) -> Callable[..., Any]:
    """Give the function that makes the table of a result from its Dataset.

    Args:
        analysis: A key of `CATALOGUE`.

    Returns:
        A function that takes the Dataset and gives a table, or several, and a line that sums it up.
    """
    table: Callable[..., Any] = getattr(_module(analysis, "table"), name_of(analysis))
    return table


def figure_of(analysis: str) -> Callable[..., Any]:
    """Give the function that draws results of an analysis from their Datasets.

    Args:
        analysis: A key of `CATALOGUE`.

    Returns:
        A function that takes one Dataset or several and gives a matplotlib Figure.
    """
    figure: Callable[..., Any] = getattr(_module(analysis, CATALOGUE[analysis].figure), name_of(analysis))
    return figure


def name_of(analysis: str) -> str:
    """Write the name of an analysis as a Python name: `norm_lesion` for `norm-lesion`."""
    return analysis.replace("-", "_")


def _module(analysis: str, name: str) -> Any:
    return import_module(f"{CATALOGUE[analysis].package}.{name}")
