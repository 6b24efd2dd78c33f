"""One forward pass of a model that keeps what is needed to read gradients at its units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from resprobe.errors import ResprobeError
from resprobe.units import Segments, Unit, WholeModel
from resprobe.units.bypass import Bypass
from resprobe.units.hooks import first_tensor, tapped

# norms of float32 outside these may have lost digits, since squares are representable from 1e-38 to 1e38
_SMALLEST, _LARGEST = 1e-15, 1e15


@dataclass(frozen=True)
class Place:
    """Where a unit lies in a pass.

    Attributes:
        entry: Position of the unit's input among the points of the pass; None where it is not known.
        output: The same of its output.
        branch_ratio: ||branch|| / ||shortcut|| of each image, `(B,)`; None where the two are not known.
    """

    entry: int | None = None
    output: int | None = None
    branch_ratio: torch.Tensor | None = None


@dataclass(frozen=True)
class Pass:
    """A forward pass.

    Attributes:
        logits: `(B, classes)`, with their graph.
        points: Places in the graph at which gradients can be read. An edge stays what it was when a later operation
            writes into the tensor.
        places: Where each chosen unit lies.
    """

    logits: torch.Tensor
    points: list[GradientEdge]
    places: list[Place]


def run_captured(model: Segments | WholeModel, chosen: Sequence[int], images: torch.Tensor) -> Pass:
    """Run a model with gradients and keep the inputs and outputs of some of its units.

    Args:
        model: The model's segments, or the whole model.
        chosen: Positions of the units.
        images: One batch, `(B, C, H, W)`.

    Returns:
        The pass.
    """
    return _run_chain(model, chosen, images) if isinstance(model, Segments) else _run_whole(model, chosen, images)


def is_visible(model: Segments | WholeModel, position: int) -> bool:
    """Tell whether a pass can see a unit: in segments always, in a whole model where its module is the unit.

    Args:
        model: The model's segments, or the whole model.
        position: Position of the unit.

    Returns:
        False for a module that is not called exactly once or gives no tensor, and for units that are no chain and
        were not named by the caller.
    """
    if isinstance(model, Segments):
        return True
    unit = model.units[position]
    return model.is_named and unit.output_shape != ()


def image_norms(x: torch.Tensor) -> torch.Tensor:
    """Give the Euclidean norm of each image's part of a tensor.

    Norms that float32 can't square are computed in float64.

    Args:
        x: `(B, ...)`.

    Returns:
        `(B,)`, float64, on the tensor's device.
    """
    x = x.detach()
    if x.ndim == 1:
        return x.abs().double()
    dims = tuple(range(1, x.ndim))
    norms: torch.Tensor = torch.linalg.vector_norm(x, dim=dims).double()
    extreme = ~((norms > _SMALLEST) & (norms < _LARGEST))
    if extreme.any():
        norms[extreme] = torch.linalg.vector_norm(x[extreme].double(), dim=dims)
    return norms


def _run_chain(model: Segments, chosen: Sequence[int], images: torch.Tensor) -> Pass:
    x = model.stem(images)
    if not x.requires_grad:
        # nothing before the first unit has weights
        x = x.detach().requires_grad_()
    points = [_edge(x, model.units[0], images)]
    ratios: dict[int, torch.Tensor] = {}
    for position, unit in enumerate(model.units):
        entry = unit.pre(x)
        branch = unit.branch(entry)
        if unit.kind == "plain":
            x = unit.post(branch)
        else:
            skip = unit.skip(entry)
            if position in chosen:
                ratios[position] = _ratio(branch, skip)
            x = unit.post(branch + skip)
        points.append(_edge(x, unit, images))
    places = [Place(position, position + 1, ratios.get(position)) for position in chosen]
    return Pass(model.head(x), points, places)


def _run_whole(model: WholeModel, chosen: Sequence[int], images: torch.Tensor) -> Pass:
    units = {model.units[position].name: model.units[position] for position in chosen if is_visible(model, position)}
    points: list[GradientEdge] = []
    entries: dict[str, torch.Tensor] = {}
    found: dict[str, dict[str, Any]] = {name: {} for name in units}

    def enter(name: str, entry: torch.Tensor | None) -> None:
        if entry is None or units[name].shortcut == "outside":
            return
        if entry.requires_grad:
            found[name]["entry"] = len(points)
            points.append(_edge(entry, units[name], images))
        if units[name].kind == "residual" and units[name].status == "ok":
            # a copy, since the module may work in place on its input
            entries[name] = entry.detach().clone()

    def leave(name: str, output: Any) -> None:
        tensor = first_tensor(output)
        assert tensor is not None
        if tensor.requires_grad:
            found[name]["output"] = len(points)
            points.append(_edge(tensor, units[name], images))
        if name in entries:
            found[name]["branch_ratio"] = _ratio_around(units[name], entries.pop(name), tensor.detach())

    with tapped(model.model, list(units), before=enter, after=leave):
        # a copy of the leaf, since a model may work in place on its images
        logits = model.forward(images.detach().requires_grad_().clone())
    places = [Place(**found.get(model.units[position].name, {})) for position in chosen]
    return Pass(logits, points, places)


def _edge(x: torch.Tensor, unit: Unit, images: torch.Tensor) -> GradientEdge:
    if x.ndim == 0 or len(x) != len(images):
        raise ResprobeError(
            f"unit {unit.name}: expected a tensor with the {len(images)} images along its first dimension, got shape "
            f"{tuple(x.shape)}; name other units with units= and shortcut="
        )
    return get_gradient_edge(x)


def _ratio(branch: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    return image_norms(branch) / image_norms(skip)


def _ratio_around(unit: Unit, entry: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Compare the branch with the shortcut of a module that holds its addition: branch = output - shortcut."""
    skip: torch.Tensor = entry
    if entry.shape != output.shape:
        bypass = Bypass.between(tuple(entry.shape[1:]), tuple(output.shape[1:]))
        assert bypass is not None, unit.name
        skip = bypass(entry)
    return _ratio(output - skip, skip)
