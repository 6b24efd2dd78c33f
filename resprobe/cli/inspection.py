"""What a checkpoint is: its architecture, how each fact is known, its units, size, cost and error."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from resprobe.data import NORMALISATIONS, ImageData, Normalisation
from resprobe.engine.devices import exact_float32, pick_device
from resprobe.errors import ResprobeError
from resprobe.loading import Checkpoint, Fact
from resprobe.loading.claims import describe_gap
from resprobe.loading.facts import READ, UNSETTLED
from resprobe.probes.costs.costing import count_params, multiply_adds
from resprobe.units import Unit, find

IMAGENET_SIDE, CIFAR_SIDE = 224, 32
_LARGE_KERNEL = 7


@dataclass(frozen=True)
class Inspection:
    """What `resprobe inspect` shows.

    Attributes:
        checkpoint: The checkpoint, with what images could settle.
        facts: Its facts, with those that only its units show.
        units: Its units, in order; empty where it has none that can be found.
        num_params: Number of parameters.
        multiply_adds: Multiply-adds of convolutions and linear maps for one image.
        input_shape: The shape of that image, `(C, H, W)`.
        baseline_error: Measured error, a fraction, or None.
        baselines: The error under each usual normalisation.
    """

    checkpoint: Checkpoint
    facts: Mapping[str, Fact]
    units: tuple[Unit, ...]
    num_params: int
    multiply_adds: int
    input_shape: tuple[int, int, int]
    baseline_error: float | None
    baselines: Mapping[str, float]

    @property
    def shortcut_is_known(self) -> bool:
        """Whether the kinds of the units are facts, and not those of one of several candidates."""
        return self.facts["shortcut"].how != UNSETTLED

    def as_json(self) -> str:
        """Give everything as one JSON object, on one line."""
        known = self.shortcut_is_known
        units = [
            {
                "name": unit.name,
                "kind": unit.kind if known else None,
                "shortcut": unit.shortcut if known else None,
                "stage": unit.stage,
                "branch_layers": unit.branch_layers,
                "num_params": unit.num_params,
                "input_shape": list(unit.input_shape),
                "output_shape": list(unit.output_shape),
                "status": unit.status,
            }
            for unit in self.units
        ]
        content: dict[str, Any] = {
            "architecture": self.checkpoint.name,
            "facts": {name: fact.as_dict() for name, fact in self.facts.items()},
            "units": units,
            "num_params": self.num_params,
            "multiply_adds": self.multiply_adds,
            "claimed_error": self.checkpoint.claimed_error,
            "baseline_error": self.baseline_error,
        }
        return json.dumps(content, allow_nan=False)


class Images(NamedTuple):
    """How the images that a checkpoint is to see are opened.

    Attributes:
        open: Opens them, under a normalisation in place of the one that is known, if there is one.
        are_named: Whether the user named them; else they are what the file says that it was trained on.
        normalisation_is_known: Whether the user named a normalisation, or the file does.
    """

    open: Callable[[Normalisation | None], ImageData]
    are_named: bool
    normalisation_is_known: bool


def inspect(
    checkpoint: Checkpoint,
    images: Images | None,
    notify: Callable[[str], None],
    *,
    device: str = "auto",
    all_baselines: bool = True,
) -> Inspection:
    """Find out what a checkpoint is.

    Args:
        checkpoint: What the file alone shows.
        images: Images that it is to see, if any are known.
        notify: Takes lines that the user should read.
        device: Where its error is measured.
        all_baselines: Measure the error under every usual normalisation, not only under the one that is named.

    Returns:
        What is known; facts that nothing settles stay unsettled.

    Raises:
        ResprobeError: If the data that are named can't be used.
    """
    data = None if images is None else _opened(checkpoint, images, notify)
    if images is not None and data is not None:
        checkpoint = _settled(checkpoint, data, images)
    for notice in checkpoint.notices:
        notify(notice)
    shape = data.image_shape if data is not None else _assumed_shape(checkpoint, notify)
    units = _units(checkpoint, torch.zeros(2, *shape), notify)
    is_settled = checkpoint.foreign is None or checkpoint.foreign.refusal() is None
    baselines: dict[str, float] = {}
    baseline = None
    if images is not None and data is not None and is_settled:
        network = checkpoint.model.to(pick_device(device))
        if images.normalisation_is_known:
            baseline = _error(checkpoint, network, data, notify)
        if all_baselines and images.are_named:
            baselines = {n.name: _share_wrong(network, images.open(n)) for n in _usual(checkpoint)}
    return Inspection(
        checkpoint=checkpoint,
        facts=_with_shortcut(checkpoint.facts, units),
        units=units,
        num_params=count_params(checkpoint.network),
        multiply_adds=multiply_adds(checkpoint.network.cpu(), shape),
        input_shape=shape,
        baseline_error=baseline,
        baselines=baselines,
    )


def _opened(checkpoint: Checkpoint, images: Images, notify: Callable[[str], None]) -> ImageData | None:
    """Open the images: those that are named, or those that the file was trained on if they are there."""
    # which one it was is asked later; this one fits any number of channels
    normalisation = None if images.normalisation_is_known else NORMALISATIONS["none"]
    try:
        return images.open(normalisation)
    except ResprobeError as error:
        if images.are_named:
            raise
        notify(f"{checkpoint.path.name}: its own data are not here ({error})")
        return None


def _settled(checkpoint: Checkpoint, data: ImageData, images: Images) -> Checkpoint:
    """Settle what images settle; without a known normalisation, with the first usual one under which that works."""
    if images.normalisation_is_known:
        return checkpoint.settled_by(data)
    tried = []
    for normalisation in _usual(checkpoint):
        settled = checkpoint.settled_by(images.open(normalisation))
        tried.append((len(settled.foreign.unsettled) if settled.foreign is not None else 0, settled, normalisation))
        if tried[-1][0] == 0:
            break
    _, best, normalisation = min(tried, key=lambda entry: entry[0])
    if best.foreign is None or best.foreign.verdict is None:
        return best
    text = f"{checkpoint.path.name}: no --normalise is given; the statistics were compared under {normalisation.name}"
    return replace(best, notices=(*best.notices, text))


def _usual(checkpoint: Checkpoint) -> list[Normalisation]:
    channels = checkpoint.architecture.in_channels
    return [n for n in NORMALISATIONS.values() if len(n.mean) == channels or n.name == "none"]


def _error(checkpoint: Checkpoint, network: nn.Module, data: ImageData, notify: Callable[[str], None]) -> float:
    """Measure the error under the known normalisation, and warn where it is far from the one that the file claims."""
    num_wrong = _num_wrong(network, data)
    warning = describe_gap(checkpoint.claimed_error, num_wrong, data.num_images)
    if warning is not None:
        notify(f"{checkpoint.path.name}: {warning}")
    return num_wrong / data.num_images


def _share_wrong(network: nn.Module, data: ImageData) -> float:
    return _num_wrong(network, data) / data.num_images


def _num_wrong(network: nn.Module, data: ImageData) -> int:
    device = next(network.parameters()).device
    with torch.inference_mode(), exact_float32():
        return sum(int((network(images.to(device)).argmax(1).cpu() != labels).sum()) for images, labels in data)


def _assumed_shape(checkpoint: Checkpoint, notify: Callable[[str], None]) -> tuple[int, int, int]:
    """Guess the size of the images from the first convolution, and say so."""
    first = next((m for m in checkpoint.network.modules() if isinstance(m, nn.Conv2d)), None)
    kernel = first.kernel_size[0] if first is not None else 0
    is_large = kernel >= _LARGE_KERNEL or (first is not None and first.stride[0] > 1 and checkpoint.foreign is None)
    side = IMAGENET_SIDE if is_large else CIFAR_SIDE
    notify(f"{checkpoint.path.name}: images of {side}x{side} are assumed; --data tells")
    return (checkpoint.architecture.in_channels, side, side)


def _units(checkpoint: Checkpoint, example: torch.Tensor, notify: Callable[[str], None]) -> tuple[Unit, ...]:
    try:
        return find(checkpoint.network, example).units
    except ResprobeError as error:
        notify(f"{checkpoint.path.name}: no units: {error}")
        return ()


def _with_shortcut(facts: Mapping[str, Fact], units: tuple[Unit, ...]) -> dict[str, Fact]:
    """Add what stands on the shortcuts, where only the built network shows it."""
    if "shortcut" in facts:
        return dict(facts)
    kinds = {unit.shortcut for unit in units}
    found = next((kind for kind in ("gated", "projection", "pad", "identity") if kind in kinds), "none")
    return {**facts, "shortcut": Fact(found, READ)}
