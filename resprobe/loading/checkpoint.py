"""A checkpoint as a model with what is known about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resprobe.data import Normalisation
from resprobe.errors import ResprobeError
from resprobe.loading.reading import CheckpointFile, locate, read_file, state_dict_of
from resprobe.loading.rebuilding import architecture_from_shapes, rebuild
from resprobe.networks.residual import Architecture, ResidualNetwork


@dataclass(frozen=True)
class Fact:
    """One fact about an architecture.

    Attributes:
        value: The fact.
        how: `read` from the file, or `assumed` on the caller's word.
    """

    value: bool | int | str
    how: str


@dataclass(frozen=True)
class Checkpoint:
    """A trained network and where it came from.

    Attributes:
        path: The file.
        sha256: Its hash.
        model: The network, in evaluation mode, on the CPU.
        architecture: What was built.
        facts: Each fact of the architecture, with how it is known.
        data: The dataset it was trained on, where the file says so.
        normalisation: How its images were normalised, where the file says so.
        claimed_error: Test error that the file claims, a fraction, or None.
    """

    path: Path
    sha256: str
    model: ResidualNetwork
    architecture: Architecture
    facts: Mapping[str, Fact]
    data: str | None
    normalisation: Normalisation | None
    claimed_error: float | None

    @property
    def provenance(self) -> dict[str, Any]:
        """What a result says of its model: `checkpoint`, `checkpoint_sha256`, `architecture`, `facts`."""
        return {
            "checkpoint": self.path.name,
            "checkpoint_sha256": self.sha256,
            "architecture": self.architecture.name,
            "facts": {name: {"value": fact.value, "how": fact.how} for name, fact in self.facts.items()},
        }


def load(path: str | Path, *, arch: str | None = None, shortcut: str | None = None) -> Checkpoint:
    """Open a checkpoint.

    Args:
        path: The file, or its name under `checkpoints/`.
        arch: Name of the architecture, such as `resnet20`; needed where the file doesn't say what it is.
        shortcut: `pad` or `projection`, where neither the file nor its keys show it.

    Returns:
        The network with its weights, and what is known about it.

    Raises:
        ResprobeError: If there is no such file, it is no checkpoint, or it doesn't fit the architecture.

    Example:
        >>> import resprobe
        >>> resprobe.load("checkpoints/resnet20.pt").architecture.depth  # doctest: +SKIP
        20
    """
    file = read_file(locate(path))
    if file.content.get("format") == "resprobe":
        return _load_own(file, arch, shortcut)
    tensors = state_dict_of(file)
    if arch is None:
        raise ResprobeError(
            f"{file.path}: expected a file that says what it is, got a bare state_dict of {len(tensors)} tensors; "
            "name the network with --arch, for example --arch resnet20"
        )
    architecture = architecture_from_shapes(arch, tensors, path=file.path, shortcut=shortcut)
    on_callers_word = ("depth", "residual", "preactivation")
    facts = {
        name: Fact(value, "assumed" if name in on_callers_word else "read")
        for name, value in architecture.as_dict().items()
    }
    if architecture.shortcut == "pad":
        facts["shortcut"] = Fact("pad", "assumed")
    return Checkpoint(
        path=file.path,
        sha256=file.sha256,
        model=rebuild(architecture, tensors, path=file.path),
        architecture=architecture,
        facts=facts,
        data=None,
        normalisation=None,
        claimed_error=None,
    )


def _load_own(file: CheckpointFile, arch: str | None, shortcut: str | None) -> Checkpoint:
    """Open a file that `resprobe train` wrote."""
    version = file.content.get("format_version")
    if version != 1:
        raise ResprobeError(
            f"{file.path}: expected version 1 of resprobe's checkpoints, got {version!r}; update resprobe"
        )
    missing = [name for name in ("architecture", "normalisation", "data") if name not in file.content]
    if missing:
        raise ResprobeError(f"{file.path}: expected entries {', '.join(missing)}, got none; train it again")
    architecture = Architecture.from_dict(file.content["architecture"])
    tensors = state_dict_of(file)
    if arch is not None and arch != architecture.name:
        # the tensors tell more than the two names, where they differ
        rebuild(
            architecture_from_shapes(arch, tensors, path=file.path, shortcut=shortcut),
            tensors,
            path=file.path,
        )
        raise ResprobeError(
            f"{file.path}: expected {architecture.name}, as the file says, got --arch {arch}; leave --arch out"
        )
    if shortcut is not None and shortcut != architecture.shortcut:
        raise ResprobeError(
            f"{file.path}: expected the shortcut {architecture.shortcut}, as the file says, got {shortcut}; "
            "leave --shortcut out"
        )
    constants = file.content["normalisation"]
    return Checkpoint(
        path=file.path,
        sha256=file.sha256,
        model=rebuild(architecture, tensors, path=file.path),
        architecture=architecture,
        facts={name: Fact(value, "read") for name, value in architecture.as_dict().items()},
        data=file.content["data"],
        normalisation=Normalisation(constants["name"], tuple(constants["mean"]), tuple(constants["std"])),
        claimed_error=file.content.get("test_error"),
    )
