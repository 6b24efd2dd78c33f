"""Loss and gradient of one batch along a line in the space of the weights."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from resprobe.engine.batches import check_labels
from resprobe.errors import ResprobeError
from resprobe.probes.landscape.step_rules import direction

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Tensors = dict[str, torch.Tensor]


class Line(NamedTuple):
    """What one batch gives at each step; not finite where the loss or the gradient isn't.

    Attributes:
        loss: Mean loss of the batch.
        grad_change: Norm of the gradient's difference from the one at theta.
        step_norm: Norm of the weights' difference from theta, after rounding.
        grad_norm: Norm of the gradient at theta.
    """

    loss: list[float]
    grad_change: list[float]
    step_norm: list[float]
    grad_norm: float


def measure_line(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    steps: Sequence[float],
    rule: str,
    loss: Loss | None,
    row: int,
    advance: Callable[[], None],
) -> Line:
    """Move the weights along the negative gradient of a batch; one forward and backward pass for each step.

    Args:
        model: A private copy; its own parameters stay what they are.
        images: `(B, ...)`, of the type of the parameters.
        labels: `(B,)`.
        steps: Step lengths; the first is 0.
        rule: The step rule, `gradient` or `relative`.
        loss: Gives the mean loss of a batch from `(outputs, labels)`; None is the cross-entropy.
        row: Row of the dataset at which the batch begins, for messages.
        advance: Called after each pass.

    Returns:
        Loss, change of the gradient and length of each step.
    """
    theta = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    value, start = _loss_and_gradient(model, theta, images, labels, loss, row)
    towards = direction(rule, theta, start)
    losses, changes, lengths = [value], [norm({})], [norm({})]
    advance()
    for step in steps[1:]:
        moved = {name: torch.add(theta[name], towards[name], alpha=step) for name in theta}
        value, gradient = _loss_and_gradient(model, moved, images, labels, loss, row)
        losses.append(value)
        changes.append(norm({name: gradient[name] - start[name] for name in theta}))
        lengths.append(norm({name: moved[name] - theta[name] for name in theta}))
        advance()
    if not math.isfinite(float(losses[0])):
        changes[0] = torch.tensor(math.nan)
    along = [[float(one) for one in each] for each in (losses, changes, lengths)]
    return Line(along[0], along[1], along[2], float(norm(start)))


def norm(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Give the Euclidean norm of all numbers of some tensors together, in float64 where the device has it."""
    if not tensors:
        return torch.zeros(())
    types = [torch.float32 if value.device.type == "mps" else torch.float64 for value in tensors.values()]
    parts = [torch.linalg.vector_norm(t, dtype=dtype) for t, dtype in zip(tensors.values(), types, strict=True)]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(parts))
    return total


def _loss_and_gradient(
    model: nn.Module, weights: Tensors, images: torch.Tensor, labels: torch.Tensor, loss: Loss | None, row: int
) -> tuple[torch.Tensor, Tensors]:
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    outputs = functional_call(model, leaves, (images,))
    if loss is None:
        check_labels(labels, outputs.shape[1], row)
        value = F.cross_entropy(outputs, labels)
    else:
        value = loss(outputs, labels)
        if not isinstance(value, torch.Tensor) or value.ndim or not value.requires_grad:
            raise ResprobeError(
                "loss: expected one number that depends on the outputs, got "
                f"{getattr(value, 'shape', type(value).__name__)}; return the mean over the batch"
            )
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    gradient = {
        name: torch.zeros_like(leaf) if one is None else one
        for (name, leaf), one in zip(leaves.items(), found, strict=True)
    }
    return value.detach(), gradient
