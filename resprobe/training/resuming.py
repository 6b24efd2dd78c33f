"""What a training leaves on disk: its state after every epoch, and in the end the checkpoint with its log."""

import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xarray as xr
from torch import nn

from resprobe import results
from resprobe.data import ImageData
from resprobe.errors import ResprobeError
from resprobe.networks.hashing import hash_tensors
from resprobe.networks.residual import Architecture
from resprobe.results.writing import whole_file
from resprobe.training.log import VARIABLES, Log
from resprobe.training.recipe import Recipe

FORMAT_VERSION = 1
CHECKPOINT_FORMAT = "resprobe"
PARTIAL_FORMAT = "resprobe-partial"

Identity = dict[str, dict[str, Any]]
_NO_START: Identity = {"start": {"sha256": None}}


@dataclass(frozen=True)
class RunFiles:
    """The files of one training.

    Args:
        checkpoint: The trained network.
    """

    checkpoint: Path

    @property
    def log(self) -> Path:
        """The log, beside the checkpoint: ``NAME-training.nc``."""
        return self.checkpoint.with_name(f"{self.checkpoint.stem}-training.nc")

    @property
    def partial(self) -> Path:
        """The state after the last finished epoch, while the training isn't done."""
        return self.checkpoint.with_name(f"{self.checkpoint.name}.partial")


def identify(
    architecture: Architecture,
    recipe: Recipe,
    train_data: ImageData,
    test_data: ImageData,
    start: Mapping[str, torch.Tensor] | None = None,
) -> Identity:
    """Gather what decides a training's outcome, to tell two trainings apart.

    Args:
        architecture: The network's facts.
        recipe: The recipe.
        train_data: The training images.
        test_data: The test images.
        start: The tensors that it starts from, where these are not drawn.

    Returns:
        Plain values in four groups; with a start, its hash in a fifth one.
    """
    # The content counts, not its name, which for a file is a path.
    train_content, test_content = (
        {key: value for key, value in data.provenance.items() if key != "data"} for data in (train_data, test_data)
    )
    identity: Identity = {
        "architecture": architecture.as_dict(),
        "recipe": recipe.as_dict(),
        "train_data": train_content,
        "test_data": test_content,
    }
    return identity if start is None else {**identity, "start": {"sha256": hash_tensors(start)}}


def finished_log(files: RunFiles, identity: Identity) -> xr.Dataset | None:
    """Read the log of a training that is done already.

    Args:
        files: The training's files.
        identity: What the training is.

    Returns:
        The log, or None where neither checkpoint nor log are there, or a partial state still is.

    Raises:
        ResprobeError: If files of another training are there, or a checkpoint without its log.
    """
    if not files.checkpoint.exists():
        if files.log.exists() and not files.partial.exists():
            raise ResprobeError(
                f"{files.log}: expected no log before its checkpoint {files.checkpoint.name}, got one; "
                "choose another --out, or replace it with --overwrite (overwrite=True)"
            )
        return None
    _require_same(files.checkpoint, _read(files.checkpoint, CHECKPOINT_FORMAT), identity)
    if files.log.is_file():
        log = results.open(files.log)
        if log.attrs["checkpoint_sha256"] == hashlib.sha256(files.checkpoint.read_bytes()).hexdigest():
            return log
    raise ResprobeError(
        f"{files.log}: expected the log of {files.checkpoint.name}, got none or that of another checkpoint; "
        "put it back, or train again with --overwrite (overwrite=True)"
    )


def save_partial(
    path: Path, identity: Identity, network: nn.Module, optimizer: torch.optim.Optimizer, log: Log
) -> None:
    """Write the state after an epoch; the state of the epoch before stays until the new one is complete.

    Args:
        path: The file.
        identity: What the training is.
        network: The network.
        optimizer: Its optimizer.
        log: The log so far; its length is the number of finished epochs.
    """
    state = {
        "format": PARTIAL_FORMAT,
        "format_version": FORMAT_VERSION,
        **identity,
        "state_dict": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "log": log,
    }
    with whole_file(path) as temporary:
        torch.save(state, temporary)


def load_partial(path: Path, identity: Identity, network: nn.Module, optimizer: torch.optim.Optimizer) -> Log:
    """Bring network and optimizer to the state after the last finished epoch.

    Args:
        path: A file that `save_partial` wrote.
        identity: What the training is.
        network: The network; changed in place.
        optimizer: Its optimizer; changed in place.

    Returns:
        The log so far.

    Raises:
        ResprobeError: If the file can't be read or belongs to another training.
    """
    state = _read(path, PARTIAL_FORMAT)
    _require_same(path, state, identity)
    network.load_state_dict(state["state_dict"])
    optimizer.load_state_dict(state["optimizer"])
    log: Log = state["log"]
    return log


def checkpoint_bytes(identity: Identity, network: nn.Module, log: xr.Dataset, train_data: ImageData) -> bytes:
    """Make the content of a checkpoint: tensors and plain values, readable with ``weights_only=True``.

    Args:
        identity: What the training is.
        network: The trained network.
        log: The log; its last values and its versions go into the checkpoint.
        train_data: The training images.

    Returns:
        What `torch.save` writes.
    """
    weights = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    normalisation = train_data.normalisation
    checkpoint = {
        "format": CHECKPOINT_FORMAT,
        "format_version": FORMAT_VERSION,
        "state_dict": weights,
        **identity,
        "data": train_data.name,
        "normalisation": {
            "name": normalisation.name,
            "mean": list(normalisation.mean),
            "std": list(normalisation.std),
        },
        **{name: log[name].values[-1].item() for name in VARIABLES if name != "learning_rate"},
        "epochs": log.sizes["epoch"],
        "resprobe_version": log.attrs["resprobe_version"],
        "torch_version": log.attrs["torch_version"],
    }
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    return buffer.getvalue()


def _read(path: Path, wanted_format: str) -> dict[str, Any]:
    """Read a file of ours; anything else is refused."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError):
        content = None
    if not isinstance(content, dict) or content.get("format") != wanted_format:
        raise ResprobeError(
            f"{path}: expected nothing there or a file of format {wanted_format}, got something else; "
            "choose another --out, delete it, or replace it with --overwrite (overwrite=True)"
        )
    return content


def _require_same(path: Path, found: Mapping[str, Any], identity: Identity) -> None:
    """Raise, naming each difference, unless a file belongs to this training."""
    identity = {**_NO_START, **identity}
    differences = [
        f"{group}.{name} {found.get(group, {}).get(name)!r} instead of {value!r}"
        for group, values in identity.items()
        for name, value in values.items()
        if found.get(group, {}).get(name) != value
    ]
    if differences:
        raise ResprobeError(
            f"{path}: expected the same training, got {', '.join(differences)}; "
            "choose another --out, delete it, or replace it with --overwrite (overwrite=True)"
        )
