"""Where the weights go from theta: step lengths and the directions that they multiply."""

import math
from collections.abc import Mapping, Sequence

import torch

from resprobe.errors import ResprobeError

Tensors = Mapping[str, torch.Tensor]

DEFAULT_STEPS = {
    # Santurkar et al.: from 1/2 to 4 times the learning rate, which is 0.1 in He et al. 2015
    "gradient": (0.0, 0.05, 0.1, 0.2, 0.3, 0.4),
    "relative": (0.0, 0.005, 0.01, 0.02, 0.05, 0.1),
}
STEP_RULES = tuple(DEFAULT_STEPS)


def direction(rule: str, theta: Tensors, gradient: Tensors) -> dict[str, torch.Tensor]:
    """Give the direction in which the weights move.

    With the rule `gradient` it is the negative gradient. With `relative` every filter, a slice along the first
    dimension of a tensor of two or more (an output channel of a convolution, a row of a linear map), moves along its
    own negative gradient, by its own norm: `-||w|| g / ||g||`, so that the step length is the relative change. A
    filter that is zero or has no gradient stays. Biases and the scales and offsets of normalisations (tensors of one
    dimension or none), whose norm is no natural length, stay too, as in Li et al. 2018.

    Args:
        rule: `gradient` or `relative`.
        theta: Parameters by name.
        gradient: Their gradient.

    Returns:
        One tensor for each parameter, of its shape.
    """
    if rule == "gradient":
        return {name: -value for name, value in gradient.items()}
    return {name: -with_filter_norms(theta[name], value) for name, value in gradient.items()}


def with_filter_norms(weight: torch.Tensor, towards: torch.Tensor) -> torch.Tensor:
    """Rescale each filter of a direction to the norm of the same filter of the weights.

    Args:
        weight: The weights, `(filters, ...)`.
        towards: The direction, of the same shape.

    Returns:
        The rescaled direction. A filter stays that is zero in either; so does a tensor of one dimension or none.
    """
    if weight.ndim < 2:
        return torch.zeros_like(weight)
    dims = tuple(range(1, weight.ndim))
    own, other = (torch.linalg.vector_norm(t, dim=dims, keepdim=True) for t in (weight, towards))
    scaled: torch.Tensor = own * torch.where(other == 0, 0.0, towards / other)
    return scaled


def check_steps(rule: str, steps: Sequence[float] | None) -> list[float]:
    """Complete and check step lengths.

    Args:
        rule: The step rule.
        steps: Step lengths, in increasing order; 0 is put before them where it is missing. None for the default.

    Returns:
        Step lengths, the first of them 0.

    Raises:
        ResprobeError: If the rule is unknown, or a step is negative, not finite or not larger than the one before.
    """
    if rule not in STEP_RULES:
        raise ResprobeError(f"step_rule: expected {', '.join(STEP_RULES)}, got {rule!r}; choose one of them")
    given = [float(step) for step in (DEFAULT_STEPS[rule] if steps is None else steps)]
    complete = given if given[:1] == [0.0] else [0.0, *given]
    increasing = all(low < high for low, high in zip(complete, complete[1:], strict=False))
    if len(complete) < 2 or not increasing or not math.isfinite(complete[-1]):
        raise ResprobeError(
            f"steps: expected increasing numbers above 0, got {', '.join(map(str, given)) or 'none'}; "
            "give some such as 0.1, 0.2, 0.4"
        )
    return complete
