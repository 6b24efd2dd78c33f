"""Where a result came from: its attributes, and the fingerprint that tells two results apart."""

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from resprobe.errors import ResprobeError
from resprobe.results.schema import SCHEMA_VERSION

_MODEL_KEYS = ("checkpoint", "checkpoint_sha256", "architecture", "facts")
_DATA_KEYS = ("data", "data_sha256", "split", "num_images", "normalisation")
# What the numbers depend on beside the options; `settings` repeats it so that the fingerprint covers it.
_SETTING_KEYS = ("split", "num_images", "normalisation", "architecture")
FINGERPRINT_KEYS = ("analysis", "checkpoint_sha256", "data_sha256", "settings")


def make_attrs(
    analysis: str,
    *,
    title: str,
    references: str,
    options: Mapping[str, Any],
    model: Mapping[str, Any] | None,
    data: Mapping[str, Any] | None,
    device: str,
) -> dict[str, str | int | float]:
    """Make the attributes of a result, all of a type that netCDF holds.

    Args:
        analysis: Name of the analysis, a key of `SCHEMA`.
        title: One line for people.
        references: The papers that the analysis follows.
        options: Every option that the numbers depend on, as JSON values; None is left out, `seed` becomes an
            attribute too.
        model: `checkpoint`, `checkpoint_sha256`, `architecture` (a name) and `facts` (a dict), as far as
            known; None for a model that came from no file.
        data: `ImageData.provenance`: `data`, `data_sha256`, `split`, `num_images`, `normalisation`; None for
            bare batches.
        device: Where it was computed, `cpu` or `cuda:0`.

    Returns:
        Attribute names and values; what is not known is the empty string. `settings` is a JSON object of the
        options with `split`, `num_images`, `normalisation` and `architecture`, its keys sorted.

    Raises:
        ResprobeError: A value that JSON can't hold, or a key of `model` or `data` that has no attribute.
    """
    known = _take("model", model, _MODEL_KEYS) | _take("data", data, _DATA_KEYS)
    taken = sorted(set(_SETTING_KEYS) & set(options))
    if taken:
        raise ResprobeError(f"options: expected the options alone, got {', '.join(taken)}; pass these in model or data")
    # None stands for an option that was left out: a result stays the same when its analysis learns a new one
    given = {name: value for name, value in options.items() if value is not None}
    settings = given | {key: known[key] for key in _SETTING_KEYS}
    seed = options.get("seed")
    return {
        "title": title,
        "schema": SCHEMA_VERSION,
        "analysis": analysis,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "resprobe_version": _resprobe_version(),
        "torch_version": _torch_version(),
        "device": device,
        **known,
        "facts": _as_json("facts", known["facts"] or {}),
        "seed": "" if seed is None else seed,
        "settings": _as_json("settings", settings),
        "references": references,
    }


def fingerprint(attrs: Mapping[Any, Any]) -> str:
    """Hash what decides the numbers of a result: the analysis, the checkpoint, the data and the settings.

    Args:
        attrs: The attributes of a result.

    Returns:
        A SHA-256 in hexadecimal; equal for two results of the same question. Versions, device and time are
        left out.
    """
    # JSON of a list keeps apart what plain concatenation would run together.
    text = json.dumps([attrs[key] for key in FINGERPRINT_KEYS])
    return hashlib.sha256(text.encode()).hexdigest()


def _take(what: str, given: Mapping[str, Any] | None, keys: tuple[str, ...]) -> dict[str, Any]:
    """Look up each key.

    Args:
        what: What the mapping describes, for the message.
        given: Some of the keys with their values.
        keys: The keys that have an attribute.

    Returns:
        Every key with its value, or with the empty string.

    Raises:
        ResprobeError: A key that has no attribute.
    """
    given = given or {}
    unknown = sorted(set(given) - set(keys))
    if unknown:
        raise ResprobeError(f"{what}: expected the keys {', '.join(keys)}, got {', '.join(unknown)}; leave these out")
    return {key: given.get(key, "") for key in keys}


def _as_json(what: str, values: Mapping[str, Any]) -> str:
    """Write values as JSON with sorted keys.

    Args:
        what: What the values are, for the message.
        values: Anything.

    Returns:
        A JSON object.

    Raises:
        ResprobeError: A value that JSON lacks, such as NaN.
    """
    try:
        return json.dumps(values, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ResprobeError(
            f"{what}: expected values that JSON can hold, got {dict(values)} ({error}); "
            "pass plain numbers, strings, lists and dicts"
        ) from error


def _resprobe_version() -> str:
    """Return the version of the installed package; a source tree that isn't installed has none."""
    try:
        return importlib.metadata.version("resprobe")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _torch_version() -> str:
    """Return torch's version without the seconds that importing it takes, where its metadata is there."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        import torch

        return str(torch.__version__)
