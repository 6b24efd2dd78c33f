"""The table of any result."""

from collections.abc import Callable, Sequence

import xarray as xr
from rich.console import Console
from rich.table import Table

from resprobe.tables.comparisons import comparison, race
from resprobe.tables.costs import costs
from resprobe.tables.curvature import curvature
from resprobe.tables.gradient_gains import gradient_gain
from resprobe.tables.gradients import gradients, responses
from resprobe.tables.lesions import lesion, lesion_curve, reorder
from resprobe.tables.norm_lesions import norm_lesion
from resprobe.tables.paths import paths
from resprobe.tables.smoothness import smoothness
from resprobe.tables.surfaces import surface
from resprobe.tables.trainings import training

_TABLES: dict[str, Callable[[xr.Dataset], tuple[Table | Sequence[Table], str]]] = {
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


def show(dataset: xr.Dataset, console: Console) -> None:
    """Print a result: what was measured, its table or tables, and a line that sums it up.

    Args:
        dataset: The result of one of the analyses that have a table.
        console: Where to print.
    """
    tables, summary = _TABLES[dataset.attrs["analysis"]](dataset)
    attrs = dataset.attrs
    network = attrs["architecture"] or "model"
    name = f"{attrs['checkpoint']} ({network})" if attrs["checkpoint"] else network
    console.print(
        f"{attrs['title']}: {name} on {attrs['data'] or 'the given data'}, "
        f"{attrs['split'] or 'given'} images, {attrs['num_images']} of them",
        highlight=False,
        soft_wrap=True,
    )
    for table in [tables] if isinstance(tables, Table) else tables:
        console.print(table)
    console.print(summary, highlight=False, soft_wrap=True)
