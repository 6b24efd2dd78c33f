"""The table of any result."""

import xarray as xr
from rich.console import Console
from rich.table import Table

from resprobe.results.catalogue import table_of


def show(dataset: xr.Dataset, console: Console) -> None:
    """Print a result: what was measured, its table or tables, and a line that sums it up.

    Args:
        dataset: The result of an analysis.
        console: Where to print.
    """
    tables, summary = table_of(dataset.attrs["analysis"])(dataset)
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
