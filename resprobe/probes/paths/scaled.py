"""Tensors with an exponent of their own, so that products of many small factors don't underflow."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Rescaled outside of this range; float32 reaches down to 2^-126, and squares are never formed in it.
_SMALLEST, _LARGEST = 2.0**-40, 2.0**40


@dataclass(frozen=True)
class Scaled:
    """The tensor `tensor * 2 ** exponent`.

    Attributes:
        tensor: Values of moderate size, or zeros.
        exponent: The power of two.
    """

    tensor: torch.Tensor
    exponent: int = 0

    def through(self, linear: Callable[[torch.Tensor], torch.Tensor]) -> "Scaled":
        """Apply a linear map."""
        return Scaled(linear(self.tensor), self.exponent)

    def plus(self, other: "Scaled", *, spare: bool = False) -> "Scaled":
        """Add another tensor; the smaller exponent gives way. A spare tensor is overwritten."""
        if spare and self.exponent == other.exponent:
            return Scaled(self.tensor.add_(other.tensor), self.exponent)
        low, high = sorted((self, other), key=lambda one: one.exponent)
        if low.exponent == high.exponent:
            return Scaled(low.tensor + high.tensor, high.exponent)
        factor = math.ldexp(1.0, max(low.exponent - high.exponent, -1000))
        return Scaled(torch.add(high.tensor, low.tensor, alpha=factor), high.exponent)

    def settled(self) -> "Scaled | None":
        """Give the same tensor with values of moderate size; None for zeros."""
        largest = float(torch.linalg.vector_norm(self.tensor, ord=math.inf))
        if largest == 0:
            return None
        if not math.isfinite(largest) or _SMALLEST < largest < _LARGEST:
            return self
        _, power = math.frexp(largest)
        # in two steps: a single factor may lie outside of the number type
        half = power // 2
        return Scaled(self.tensor * 2.0**-half * 2.0 ** -(power - half), self.exponent + power)

    def norms(self) -> torch.Tensor:
        """Give the norm of each image's part, without the exponent: float64 `(N,)`."""
        norms: torch.Tensor = torch.linalg.vector_norm(self.tensor.flatten(1), dim=1, dtype=torch.float64)
        return norms


def sum_of(parts: "list[Scaled]") -> "Scaled":
    """Add tensors, the largest exponents first.

    Args:
        parts: At least one.

    Returns:
        Their sum.
    """
    total, *others = sorted(parts, key=lambda one: -one.exponent)
    for part in others:
        total = total.plus(part)
    return total
