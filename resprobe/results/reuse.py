"""Results that are computed once: a file that answers the same question is read instead."""

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from resprobe.results.files import find_existing, save
from resprobe.results.provenance import FINGERPRINT_KEYS, fingerprint, make_attrs
from resprobe.results.writing import check_writable

# parameters of every analysis that are no options: the numbers come from them, but not as settings
_NO_OPTIONS = frozenset({"model", "batches", "provenance", "progress", "resume", "keep"})


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
    compute: Callable[..., xr.Dataset],
    *,
    options: Mapping[str, Any],
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    overwrite: bool = False,
    resumable: bool = False,
) -> tuple[xr.Dataset, bool]:
    """Read the result at a path if it answers the same question, else compute it and save it there.

    Args:
        path: The result's file.
        analysis: Name of the analysis in the schema.
        compute: Runs the analysis with these options; a resumable one takes `resume`, an unfinished result or None, and
            `keep`, to be called with what is measured so far.
        options: All options of the analysis, as from `complete_options`.
        model: Where the model came from, such as `Checkpoint.provenance`.
        data: Where the data came from, such as `ImageData.provenance`.
        overwrite: Compute in any case and replace what is there.
        resumable: An unfinished result at the path is gone on with, and what is measured so far is saved there.

    Returns:
        The result, and whether it was there already.

    Raises:
        ResprobeError: If something else is at the path, or nothing can be written there; nothing is computed then.
        LookupError: If the result says that it answers another question, and would not be found again: that is a
            mistake of the analysis, not of its input.
    """
    wanted = make_attrs(analysis, title="", references="", options=options, model=model, data=data, device="")
    existing = find_existing(path, fingerprint(wanted), overwrite=overwrite)
    if existing is not None and not is_unfinished(existing):
        return existing, True
    check_writable(path)
    if resumable:
        dataset = compute(resume=existing, keep=lambda part: save(part, path, overwrite=overwrite))
    else:
        dataset = compute()
    other = differences(wanted, dataset.attrs)
    if other:
        raise LookupError(f"{analysis}: the result records another question than was asked; {'; '.join(other)}")
    save(dataset, path, overwrite=overwrite)
    return dataset, False


def differences(wanted: Mapping[Any, Any], found: Mapping[Any, Any]) -> list[str]:
    """List what makes two results those of different questions.

    Args:
        wanted: Attributes of a result.
        found: Those of another.

    Returns:
        A clause for each attribute, or each setting, that the fingerprint takes in.
    """
    pairs = {key: (repr(wanted[key]), repr(found[key])) for key in FINGERPRINT_KEYS if key != "settings"}
    old, new = json.loads(wanted["settings"]), json.loads(found["settings"])
    for name in sorted({*old, *new}):
        pairs[name] = (_shown(old, name), _shown(new, name))
    return [f"{name}: expected {before}, got {after}" for name, (before, after) in pairs.items() if before != after]


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return repr(settings[name]) if name in settings else "nothing"


def is_unfinished(dataset: xr.Dataset) -> bool:
    """Tell whether a result was interrupted: its mask `done` is not true everywhere.

    Args:
        dataset: A result.

    Returns:
        Whether something is missing; false for the results of analyses that are saved only when they are complete.
    """
    return "done" in dataset and not bool(dataset["done"].all())
