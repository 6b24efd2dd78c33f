"""The figure of any result."""

import xarray as xr
from matplotlib.figure import Figure

from resprobe.errors import ResprobeError
from resprobe.results.catalogue import CATALOGUE, figure_of


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
    if analysis not in CATALOGUE:
        raise ResprobeError(
            f"plot: expected a result of {', '.join(CATALOGUE)}, got analysis {analysis!r}; "
            "open one with resprobe.results.open"
        )
    figure: Figure = figure_of(analysis)(*results)
    return figure
