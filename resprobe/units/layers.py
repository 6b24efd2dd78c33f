"""The weight layers of a model, in the order in which they run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from resprobe.units.hooks import first_tensor, tapped
from resprobe.units.structure.operations import is_norm_module


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A module with weights of its own.

    Attributes:
        name: The module's name in the model.
        type: Name of its class, such as `Conv2d` or `Linear`.
        parameters: Full names of its weights: parameters of two or more dimensions with `weight` in their name.
        depth: Its place in the order of execution, from 1.
        stage: Number of its resolution, from 1: layers whose outputs have the same height and width share a stage,
            numbered as they first appear. A layer without height and width has the stage of the one before it.
    """

    name: str
    type: str
    parameters: tuple[str, ...]
    depth: int
    stage: int


def find_layers(model: nn.Module, example: torch.Tensor, kind: type[nn.Module] | None = None) -> tuple[Layer, ...]:
    """Find the weight layers of a model by running it once.

    A weight layer is a module that holds a parameter of two or more dimensions with `weight` in its name and is no
    normalisation: convolutions, linear maps, attention. Biases, and tokens and embeddings of positions, are no weights.

    Args:
        model: A private copy of a model, in evaluation mode.
        example: A few images `(N, C, H, W)` of the model's number type and on its device.
        kind: Only layers of this class.

    Returns:
        The layers, in the order of their first call. A module that holds weights and is not called itself (the output
        map of an attention) comes with the module around it.
    """
    first_call: dict[str, int] = {}
    resolution: dict[str, tuple[int, ...]] = {}

    def enter(name: str, entry: torch.Tensor | None) -> None:
        first_call.setdefault(name, len(first_call))

    def leave(name: str, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None and tensor.ndim == 4:
            resolution.setdefault(name, tuple(tensor.shape[2:]))

    names = [name for name, _ in model.named_modules()]
    with torch.inference_mode(), tapped(model, names, before=enter, after=leave):
        model(example)
    weighted = [(name, module) for name, module in model.named_modules() if _weights(name, module)]
    chosen = [(name, module) for name, module in weighted if kind is None or isinstance(module, kind)]
    chosen.sort(key=lambda pair: first_call[_called(pair[0], first_call)])
    stages = _stages([resolution.get(name, ()) for name, _ in chosen])
    return tuple(
        Layer(
            name=name,
            type=type(module).__name__,
            parameters=_weights(name, module),
            depth=depth,
            stage=stage,
        )
        for depth, ((name, module), stage) in enumerate(zip(chosen, stages, strict=True), start=1)
    )


def layer_coordinates(layers: Sequence[Layer], *, prefix: str = "") -> dict[str, Any]:
    """Describe layers along the dim `layer`.

    Args:
        layers: The layers, in the order of the result.
        prefix: Put before `depth` and `stage`, for results in which units have coords of these names.

    Returns:
        The coords `layer` (names), `depth`, `stage`, `type`.
    """
    return {
        "layer": [layer.name for layer in layers],
        "type": ("layer", [layer.type for layer in layers]),
        f"{prefix}depth": ("layer", np.array([layer.depth for layer in layers], np.int64)),
        f"{prefix}stage": ("layer", np.array([layer.stage for layer in layers], np.int64)),
    }


def _weights(name: str, module: nn.Module) -> tuple[str, ...]:
    if is_norm_module(module):
        return ()
    prefix = f"{name}." if name else ""
    own = module.named_parameters(recurse=False)
    return tuple(f"{prefix}{key}" for key, value in own if "weight" in key and value.ndim > 1)


def _called(name: str, first_call: dict[str, int]) -> str:
    """Name the innermost module around a module, or itself, that was called."""
    while name and name not in first_call:
        name = name.rpartition(".")[0]
    return name


def _stages(resolutions: list[tuple[int, ...]]) -> list[int]:
    numbers: dict[tuple[int, ...], int] = {}
    stages: list[int] = []
    for resolution in resolutions:
        if resolution:
            stages.append(numbers.setdefault(resolution, len(numbers) + 1))
        else:
            stages.append(stages[-1] if stages else 1)
    return stages
