"""The bytes of a checkpoint file, read without running anything that is in it."""

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from resprobe.errors import ResprobeError

CHECKPOINT_FOLDER = Path("checkpoints")


@dataclass(frozen=True)
class CheckpointFile:
    """What a checkpoint file holds.

    Attributes:
        path: Where it was found.
        sha256: Hash of the file.
        content: The object in it, a dict.
    """

    path: Path
    sha256: str
    content: Mapping[str, Any]


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
    """Read a checkpoint onto the CPU.

    Args:
        path: The file.

    Returns:
        Its content and hash.

    Raises:
        ResprobeError: If it can't be read, is no checkpoint, or holds objects other than tensors and plain values.
    """
    try:
        with path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            stream.seek(0)
            content = torch.load(stream, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ResprobeError(
            f"{path}: expected a checkpoint of tensors and plain values, got something else "
            f"({_reason(error)}); save the network again with torch.save(model.state_dict(), FILE)"
        ) from error
    # A damaged file can fail anywhere in the reader, with any exception.
    except Exception as error:
        raise ResprobeError(
            f"{path}: expected a checkpoint written by torch.save, got a file that can't be read "
            f"({_reason(error)}); check that it is one and that it is complete"
        ) from error
    if not isinstance(content, Mapping):
        raise ResprobeError(
            f"{path}: expected a dict of tensors, got {type(content).__name__}; "
            "save the network again with torch.save(model.state_dict(), FILE)"
        )
    return CheckpointFile(path, sha256, content)


def state_dict_of(file: CheckpointFile) -> dict[str, torch.Tensor]:
    """Take the tensors of the network out of the file, without the prefix that data-parallel training adds.

    Args:
        file: A checkpoint: a state_dict, or a dict that holds one under `state_dict`.

    Returns:
        Names and tensors, in the order of the file.

    Raises:
        ResprobeError: If there is no state_dict, or it has numbers that are not finite.
    """
    tensors = file.content.get("state_dict", file.content)
    if (
        not isinstance(tensors, Mapping)
        or not tensors
        or not all(isinstance(value, torch.Tensor) for value in tensors.values())
    ):
        raise ResprobeError(
            f"{file.path}: expected a state_dict, got the entries {_some(file.content)}; "
            "save the network again with torch.save(model.state_dict(), FILE)"
        )
    tensors = {str(name): value for name, value in tensors.items()}
    while all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    for name, value in tensors.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise ResprobeError(
                f"{file.path}: expected finite weights, got NaN or infinity in {name}; "
                "take a checkpoint from before the training diverged"
            )
    return tensors


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:120].rstrip(". ")


def _some(content: Mapping[str, Any]) -> str:
    names = [str(name) for name in content]
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "") if names else "none"
