"""A checkpoint as a model with what is known about it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from resprobe.data import Normalisation
from resprobe.errors import ResprobeError
from resprobe.loading.claims import claimed_error, recorded_shortcut_input
from resprobe.loading.facts import ASSUMED, READ, SETTLED, UNSETTLED, Fact
from resprobe.loading.foreign import ForeignNetwork, open_foreign
from resprobe.loading.libraries import is_library_name, load_library_network
from resprobe.loading.questions import as_text
from resprobe.loading.reading import CheckpointFile, locate, read_file
from resprobe.loading.rebuilding import architecture_from_shapes, rebuild
from resprobe.loading.recognising import recognise
from resprobe.loading.states import WHOLE_FILE, ChosenState, choose_state
from resprobe.networks.residual import Architecture, parse_architecture

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]
_OWN_KEYS = ("conv1.weight", "linear.weight")


class Description(Protocol):
    """What every architecture says of itself."""

    @property
    def name(self) -> str:
        """Its short name."""

    @property
    def in_channels(self) -> int:
        """Channels of the images."""

    @property
    def num_classes(self) -> int:
        """Number of logits."""


@dataclass(frozen=True)
class Checkpoint:
    """A trained network and where it came from.

    Attributes:
        path: The file.
        sha256: Its hash.
        network: The network, in evaluation mode, on the CPU; where facts are unsettled, one of several that it may be.
        architecture: What was built.
        facts: Each fact of the architecture, with how it is known.
        data: The dataset it was trained on, where the file says so.
        normalisation: How its images were normalised, where the file says so.
        claimed_error: Test error that the file claims, a fraction, or None.
        notices: What was chosen or changed on the way and should be known.
        foreign: How it was recognised, where the file doesn't say what it is.
    """

    path: Path
    sha256: str
    network: nn.Module
    architecture: Description
    facts: Mapping[str, Fact]
    data: str | None = None
    normalisation: Normalisation | None = None
    claimed_error: float | None = None
    notices: tuple[str, ...] = ()
    foreign: ForeignNetwork | None = None

    @property
    def model(self) -> nn.Module:
        """The network, in evaluation mode, on the CPU.

        Raises:
            ResprobeError: If a fact that it depends on is unsettled; the message names the flag to give.
        """
        refusal = self.foreign.refusal() if self.foreign is not None else None
        if refusal is not None:
            raise refusal
        return self.network

    @property
    def name(self) -> str:
        """The architecture's name; with an alternative where it is unsettled whether there are shortcuts."""
        if self.facts.get("shortcut", Fact(None, READ)).how != UNSETTLED:
            return self.architecture.name
        return f"{self.architecture.name} or {self.architecture.name.replace('resnet', 'plain')}"

    @property
    def provenance(self) -> dict[str, Any]:
        """What a result says of its model: `checkpoint`, `checkpoint_sha256`, `architecture`, `facts`."""
        architecture = self.name
        if self.foreign is not None:
            # results of the same file under other assumptions are other results
            unusual = self.foreign.unusual_choices
            architecture += "".join(f", {name} {as_text(value)}" for name, value in unusual.items())
        return {
            "checkpoint": self.path.name,
            "checkpoint_sha256": self.sha256,
            "architecture": architecture,
            "facts": {name: fact.as_dict() for name, fact in self.facts.items()},
        }

    def settled_by(self, images: Batches) -> "Checkpoint":
        """Let images settle the facts that keys don't show.

        A few hundred normalised images go through every network that it may be. The right one reproduces the mean and
        variance that each batch normalisation has stored; labels are not used.

        Args:
            images: Batches of normalised images with labels, such as an `ImageData`.

        Returns:
            The checkpoint with what could be settled.

        Raises:
            ResprobeError: If the network can't run on these images.
        """
        if self.foreign is None:
            return self
        return _with_foreign(self, self.foreign.settled_by(images))


def load(
    path: str | Path,
    *,
    arch: str | None = None,
    shortcut: str | None = None,
    state: str | None = None,
    facts: Mapping[str, bool | int | str] | None = None,
    images: Batches | None = None,
) -> Checkpoint:
    """Open a checkpoint.

    A file that doesn't say what it is, is recognised by the names and shapes of its tensors. What they don't show is
    settled by images, given by the caller, or unsettled.

    Args:
        path: The file, or its name under `checkpoints/`.
        arch: Name of the architecture, such as `resnet20`, `torchvision:resnet50` or `timm:resnet50d`, where the
            keys are not recognised or don't show enough.
        shortcut: `pad`, `projection`, `identity` or `none`, where the file doesn't show it.
        state: Which of several state_dicts in the file to take, such as `state_dict_ema`.
        facts: Other facts that the file doesn't show, such as `{"padding": "end"}`.
        images: Batches of normalised images with labels, such as an `ImageData`, to settle facts with.

    Returns:
        The network with its weights, and what is known about it.

    Raises:
        ResprobeError: If there is no such file, it is no checkpoint, it is not recognised, or it doesn't fit the
            architecture.

    Example:
        >>> import resprobe
        >>> resprobe.load("checkpoints/resnet20.pt").architecture.depth  # doctest: +SKIP
        20
    """
    file = read_file(locate(path))
    given = {**(facts or {}), **({} if shortcut is None else {"shortcut": shortcut})}
    if isinstance(file.content, Mapping) and file.content.get("format") == "resprobe":
        return _load_own(file, file.content, arch, given, state)
    chosen = choose_state(file, state)
    checkpoint = _load_foreign(file, chosen, arch, given)
    checkpoint = replace(
        checkpoint, claimed_error=claimed_error(file.content), notices=(*_notices(file, chosen), *checkpoint.notices)
    )
    return checkpoint if images is None else checkpoint.settled_by(images)


def _load_foreign(file: CheckpointFile, state: ChosenState, arch: str | None, given: Mapping[str, Any]) -> Checkpoint:
    """Open a file that doesn't say what it is."""
    if arch is not None and is_library_name(arch):
        network, architecture = load_library_network(arch, state.tensors, path=file.path)
        facts = {name: Fact(getattr(architecture, name), READ) for name in ("in_channels", "num_classes")}
        facts["architecture"] = Fact(arch, ASSUMED)
        return Checkpoint(file.path, file.sha256, network, architecture, facts)
    if arch is not None:
        parse_architecture(arch)  # an unknown name is the better message
        if all(key in state.tensors for key in _OWN_KEYS) and set(given) <= {"shortcut"}:
            return _load_named(file, state, arch, given.get("shortcut"))
    recognition = recognise(state.tensors, path=file.path)
    recorded = {"shortcut_input": recorded_shortcut_input(file.content, recognition.blueprint)}
    foreign = open_foreign(
        state,
        path=file.path,
        given={**_facts_of_name(arch), **given},
        recorded={name: value for name, value in recorded.items() if value is not None},
        recognition=recognition,
    )
    if arch is not None and foreign.blueprint.name != arch:
        raise ResprobeError(
            f"{file.path}: expected {arch}, as --arch says, got the keys of {foreign.blueprint.name}; check --arch"
        )
    bare = Checkpoint(file.path, file.sha256, foreign.build(), foreign.blueprint, {})
    return _with_foreign(bare, foreign)


def _facts_of_name(arch: str | None) -> dict[str, Any]:
    """Say what an architecture's name says about shortcuts and activation."""
    if arch is None:
        return {}
    named = parse_architecture(arch)
    return {"preactivation": named.preactivation, **({} if named.residual else {"shortcut": "none"})}


def _load_named(file: CheckpointFile, state: ChosenState, arch: str, shortcut: str | None) -> Checkpoint:
    """Open a file with our own key names, as the architecture that the caller names."""
    architecture = architecture_from_shapes(arch, state.tensors, path=file.path, shortcut=shortcut)
    on_callers_word = ("depth", "residual", "preactivation")
    facts = {
        name: Fact(value, ASSUMED if name in on_callers_word else READ)
        for name, value in architecture.as_dict().items()
    }
    if architecture.shortcut == "pad":
        facts["shortcut"] = Fact("pad", ASSUMED)
    model = rebuild(architecture, state.tensors, path=file.path)
    return Checkpoint(file.path, file.sha256, model, architecture, facts)


def _with_foreign(checkpoint: Checkpoint, foreign: ForeignNetwork) -> Checkpoint:
    """Give a checkpoint what has become known."""
    facts = foreign.facts()
    settled = {name: fact for name, fact in facts.items() if fact.how == SETTLED}
    notices = checkpoint.notices
    if settled and foreign.verdict is not None:
        found = ", ".join(f"{name} {fact.value}" for name, fact in settled.items())
        notices = (*notices, f"{checkpoint.path.name}: settled by {foreign.verdict.num_images} images: {found}")
    return replace(
        checkpoint,
        network=foreign.build(),
        architecture=foreign.blueprint,
        facts=facts,
        notices=notices,
        foreign=foreign,
    )


def _notices(file: CheckpointFile, state: ChosenState) -> tuple[str, ...]:
    """Say what was chosen, and what was changed."""
    notices = []
    if state.alternatives:
        notices.append(f"{file.path.name}: took {state.name}; --state also offers {', '.join(state.alternatives)}")
    elif state.name != WHOLE_FILE:
        notices.append(f"{file.path.name}: took {state.name}")
    if state.dtype != "float32":
        notices.append(f"{file.path.name}: weights of type {state.dtype}, turned into float32")
    return tuple(notices)


def _load_own(
    file: CheckpointFile, content: Mapping[str, Any], arch: str | None, given: Mapping[str, Any], state: str | None
) -> Checkpoint:
    """Open a file that `resprobe train` wrote."""
    version = content.get("format_version")
    if version != 1:
        raise ResprobeError(
            f"{file.path}: expected version 1 of resprobe's checkpoints, got {version!r}; update resprobe"
        )
    missing = [name for name in ("architecture", "normalisation", "data") if name not in content]
    if missing:
        raise ResprobeError(f"{file.path}: expected entries {', '.join(missing)}, got none; train it again")
    architecture = Architecture.from_dict(content["architecture"])
    tensors = choose_state(file, state).tensors
    if arch is not None and arch != architecture.name:
        # the tensors tell more than the two names, where they differ
        named = architecture_from_shapes(arch, tensors, path=file.path, shortcut=given.get("shortcut"))
        rebuild(named, tensors, path=file.path)
        raise ResprobeError(
            f"{file.path}: expected {architecture.name}, as the file says, got --arch {arch}; leave --arch out"
        )
    known = architecture.as_dict()
    for name, value in given.items():
        if known.get(name) != value:
            says = f"{known[name]}, as the file says" if name in known else f"one of {', '.join(known)}"
            flag = "--shortcut" if name == "shortcut" else "--fact"
            raise ResprobeError(f"{file.path}: expected the {name} {says}, got {value}; leave {flag} out")
    facts = {name: Fact(value, READ) for name, value in known.items()}
    if "construction" in content:
        facts["deepened_from"] = Fact(content["construction"]["checkpoint"], READ)
    constants = content["normalisation"]
    return Checkpoint(
        path=file.path,
        sha256=file.sha256,
        network=rebuild(architecture, tensors, path=file.path),
        architecture=architecture,
        facts=facts,
        data=content["data"],
        normalisation=Normalisation(constants["name"], tuple(constants["mean"]), tuple(constants["std"])),
        claimed_error=content.get("test_error"),
    )
