"""Results that are computed once: a file that answers the same question is read instead."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from resprobe.results.files import find_existing, save
from resprobe.results.provenance import fingerprint, make_attrs
from resprobe.writing import check_writable

# parameters of every analysis that are no options: the numbers come from them, but not as settings
_NO_OPTIONS = frozenset({"model", "batches", "provenance", "progress"})


def complete_options(analysis: Callable[..., xr.Dataset], options: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of the options that were not given: a result records all of them.

    Args:
        analysis: The function, such as `resprobe.lesion`.
        options: Some of its options.

    Returns:
        All of its options.
    """
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(analysis).parameters.items()
        if name not in _NO_OPTIONS and parameter.default is not inspect.Parameter.empty
    }
    return defaults | dict(options)


def find_or_compute(
    path: Path,
    analysis: str,
    compute: Callable[[], xr.Dataset],
    *,
    options: Mapping[str, Any],
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    overwrite: bool = False,
) -> tuple[xr.Dataset, bool]:
    """Read the result at a path if it answers the same question, else compute it and save it there.

    Args:
        path: The result's file.
        analysis: Name of the analysis in the schema.
        compute: Runs the analysis with these options.
        options: All options of the analysis, as from `complete_options`.
        model: Where the model came from, such as `Checkpoint.provenance`.
        data: Where the data came from, such as `ImageData.provenance`.
        overwrite: Compute in any case and replace what is there.

    Returns:
        The result, and whether it was there already.

    Raises:
        ResprobeError: If something else is at the path, or nothing can be written there; nothing is computed then.
    """
    wanted = make_attrs(analysis, title="", references="", options=options, model=model, data=data, device="")
    existing = find_existing(path, fingerprint(wanted), overwrite=overwrite)
    if existing is not None:
        return existing, True
    check_writable(path)
    dataset = compute()
    save(dataset, path, overwrite=overwrite)
    return dataset, False
