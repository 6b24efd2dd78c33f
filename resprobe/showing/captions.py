"""Titles and names of results, from their attributes."""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

import xarray as xr

from resprobe.errors import ResprobeError


def require(results: Sequence[xr.Dataset], analysis: str) -> None:
    """Check that there is a result and that each is of this analysis.

    Args:
        results: What a plotting function was given.
        analysis: What it plots.

    Raises:
        ResprobeError: There is none, or one is of another analysis.
    """
    if not results:
        raise ResprobeError(f"plot: expected at least one {analysis} result, got none; pass a Dataset")
    for result in results:
        found = result.attrs.get("analysis", "a Dataset without the attribute analysis")
        if found != analysis:
            raise ResprobeError(
                f"plot: expected results of {analysis} only, got {found}; make a figure of each analysis"
            )


def title(what: str, results: Sequence[xr.Dataset], *, width: int = 95) -> str:
    """Say what was done, to which network, on which data and how many images.

    Args:
        what: The analysis in words.
        results: The results of the figure.
        width: Letters in a line.

    Returns:
        One or more lines. What differs between the results is left to their names.
    """
    network = _network(results[0]) if len(results) == 1 else f"{len(results)} networks"
    descriptions = {_data(result) for result in results}
    data = descriptions.pop() if len(descriptions) == 1 else "various data"
    return textwrap.fill(f"{what}: {network}{', ' if data else ''}{data}", width)


def names(results: Sequence[xr.Dataset]) -> list[str]:
    """Name each result after its checkpoint, with what else is needed to tell the results apart.

    Args:
        results: The results of one figure.

    Returns:
        A name for each, all different.
    """
    found = [_network(result) for result in results]
    if len({_data(result) for result in results}) > 1:
        found = [f"{name}, {_data(result)}" for name, result in zip(found, results, strict=True)]
    if len(set(found)) < len(found):
        found = [f"{name}{setting}" for name, setting in zip(found, _differing_settings(results), strict=True)]
    if len(set(found)) < len(found):
        found = [f"{name} ({number})" for number, name in enumerate(found, start=1)]
    return found


def _network(result: xr.Dataset) -> str:
    """Return the name of the network, given by its checkpoint, else by its architecture."""
    return Path(result.attrs["checkpoint"]).stem or result.attrs["architecture"] or "network"


def _data(result: xr.Dataset) -> str:
    """Return the names of the data and the split, with the number of images, as far as they are known."""
    attrs = result.attrs
    kind, colon, path = attrs["data"].partition(":")
    name = f"{kind}{colon}{Path(path).name}"  # of npz:/long/way/to/FILE the file's own name
    split = attrs["split"] if attrs["split"] != "all" else ""
    number = f"{attrs['num_images']:,} images" if attrs["num_images"] != "" else ""
    return ", ".join(filter(None, (f"{name} {split}".strip(), number)))


def _differing_settings(results: Sequence[xr.Dataset]) -> list[str]:
    """Return for each result the settings in which the results differ."""
    settings = [json.loads(result.attrs["settings"]) for result in results]
    keys = sorted({key for setting in settings for key in setting})
    differing = [key for key in keys if any(setting.get(key) != settings[0].get(key) for setting in settings)]
    return ["".join(f", {key} {setting.get(key)}" for key in differing) for setting in settings]
