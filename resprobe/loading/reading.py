"""The bytes of a checkpoint file, read without running anything that is in it."""

import argparse
import hashlib
import pickle
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from resprobe.errors import ResprobeError
from resprobe.loading.sniffing import SAVE_AGAIN, sniff

CHECKPOINT_FOLDER = Path("checkpoints")
# What training scripts save beside tensors: settings, and numbers of numpy under the names of its versions 1 and 2. To
# build these runs no code; types of numpy that hold objects are not among them.
_PLAIN: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    argparse.Namespace,
    np.dtype,
    *(type(np.dtype(name)) for name in ("bool", "int32", "int64", "float16", "float32", "float64")),
    *(
        (cast(Callable[..., Any], np.float64(0).__reduce__()[0]), f"numpy.{core}.multiarray.scalar")
        for core in ("core", "_core")
    ),
]
_PICKLE_OF_OTHERS = re.compile(r"Unsupported operand|Invalid magic number|pickle protocol", re.IGNORECASE)
_FORBIDDEN = re.compile(r"(?:GLOBAL|global:?|class:?|function:?) ([\w.]+\.[\w.]+)")


@dataclass(frozen=True)
class CheckpointFile:
    """What a checkpoint file holds.

    Attributes:
        path: Where it was found.
        sha256: Hash of the file.
        format: `zip` or `pickle` (both written by torch.save), or `safetensors`.
        content: The object in it.
    """

    path: Path
    sha256: str
    format: str
    content: Mapping[str, Any] | Sequence[Any]


def locate(name: str | Path) -> Path:
    """Find a checkpoint: the path as given, else the same name under `checkpoints/`.

    Args:
        name: A path or the name of a file.

    Returns:
        The path of an existing file.

    Raises:
        ResprobeError: If there is no such file in either place.
    """
    candidates = [Path(name).expanduser(), CHECKPOINT_FOLDER / Path(name)]
    for path in candidates:
        if path.is_file():
            return path
    if candidates[0].is_dir():
        raise ResprobeError(f"{name}: expected a checkpoint file, got a folder; name a file in it")
    looked = " and ".join(str(path) for path in dict.fromkeys(candidates))
    raise ResprobeError(f"{name}: expected a checkpoint file, got nothing at {looked}; check the path")


def read_file(path: Path) -> CheckpointFile:
    """Read a checkpoint onto the CPU; nothing in it is executed.

    Args:
        path: The file.

    Returns:
        Its content and hash.

    Raises:
        ResprobeError: If it can't be read, is no checkpoint, or holds objects other than tensors and plain values.
    """
    try:
        file_format = sniff(path)
        with path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ResprobeError(f"{path}: expected a checkpoint file, got one that can't be read ({error})") from error
    content = _read_safetensors(path) if file_format == "safetensors" else _read_torch(path)
    if not isinstance(content, Mapping | list | tuple):
        raise ResprobeError(f"{path}: expected a dict of tensors, got {type(content).__name__}; {SAVE_AGAIN}")
    return CheckpointFile(path, sha256, file_format, content)


def _read_torch(path: Path) -> Any:
    """Read what torch.save wrote."""
    try:
        # what PyTorch warns of (old formats, slow checks) is no concern of the user's
        with path.open("rb") as stream, warnings.catch_warnings(), torch.serialization.safe_globals(_PLAIN):
            warnings.simplefilter("ignore")
            return torch.load(stream, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ResprobeError(_explain(path, str(error))) from error
    # A damaged file can fail anywhere in the reader, with any exception.
    except Exception as error:
        raise _unreadable(path, "written by torch.save", error) from error


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Read what safetensors wrote."""
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise ResprobeError(
            f"{path}: expected the package safetensors, which reads this file, got none; pip install safetensors"
        ) from error
    try:
        # the file is in the order of the tensors' types and sizes, which says nothing
        return dict(sorted(load_file(path, device="cpu").items()))
    # Here too a damaged file can fail anywhere.
    except Exception as error:
        raise _unreadable(path, "written by safetensors", error) from error


def _explain(path: Path, message: str) -> str:
    """Say what a pickle holds that PyTorch refuses to unpickle."""
    start = f"{path}: expected a checkpoint of tensors and plain values"
    found = _FORBIDDEN.search(message)
    if found is None and _PICKLE_OF_OTHERS.search(message):
        return f"{start}, got a pickle in another form than torch.save's; {SAVE_AGAIN}"
    if found is None:
        # before its own reason, PyTorch explains itself
        reason = message.rpartition("WeightsUnpickler error:")[2]
        return f"{start}, got something else ({_first_line(reason)}); {SAVE_AGAIN}"
    name = found[1]
    if name.startswith(("torch.fx", "torch.nn.", "torchvision.", "timm.", "__main__.")):
        return f"{start}, got a pickled module ({name}), which would run its author's code; {SAVE_AGAIN} where it loads"
    return f"{start}, got a Python object ({name}), which could run code when it is read; {SAVE_AGAIN} where it loads"


def _unreadable(path: Path, what: str, error: Exception) -> ResprobeError:
    return ResprobeError(
        f"{path}: expected a checkpoint {what}, got a file that can't be read "
        f"({_first_line(str(error)) or type(error).__name__}); check that it is one and that it is complete"
    )


def _first_line(message: str) -> str:
    lines = message.strip().splitlines()
    return lines[0][:120].rstrip(". ") if lines else ""
