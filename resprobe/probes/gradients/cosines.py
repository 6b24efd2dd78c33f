"""The mean cosine over all pairs of many vectors, without keeping them."""

import torch


class PairCosines:
    """Adds up unit vectors.

    With u_i the vectors divided by their norms, n of them, sum_{i != j} u_i . u_j = ||sum_i u_i||^2 - n. So one sum
    suffices, and the mean over pairs doesn't depend on how the vectors came.
    """

    def __init__(self) -> None:
        self._total: torch.Tensor | None = None
        self._count = 0

    def add(self, vectors: torch.Tensor, norms: torch.Tensor) -> None:
        """Add vectors; those of norm zero have no direction and are left out.

        Args:
            vectors: `(B, ...)`.
            norms: Their norms, `(B,)`, float64.
        """
        weights = torch.where(norms == 0, 0.0, 1 / norms)
        total = torch.tensordot(weights, vectors.detach().double(), dims=1)
        self._total = total if self._total is None else self._total + total
        self._count += int((norms != 0).sum())

    @property
    def mean(self) -> float:
        """Mean cosine over pairs of different vectors; NaN for less than two."""
        if self._total is None or self._count < 2:
            return float("nan")
        return float(self._total.square().sum() - self._count) / (self._count * (self._count - 1))
