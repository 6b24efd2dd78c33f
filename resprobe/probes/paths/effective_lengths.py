"""Where along the path lengths the gradient lies."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LOW, HIGH = 0.05, 0.95


def effective_lengths(lengths: Sequence[int], mass: Floats) -> tuple[float, float, float]:
    """Give mean, 5 % and 95 % quantile of a distribution over lengths.

    Args:
        lengths: Path lengths, rising.
        mass: What lies at each, not negative; need not add up to 1.

    Returns:
        The mean length, and the smallest lengths up to which 5 % and 95 % of the mass lie; NaN without any mass.
    """
    total = mass.sum()
    if not total > 0:
        return float("nan"), float("nan"), float("nan")
    share = mass / total
    below = np.cumsum(share)
    # the last length holds all of it, whatever rounding says
    low, high = (float(lengths[min(int(np.searchsorted(below, part)), len(lengths) - 1)]) for part in (LOW, HIGH))
    return float(np.dot(share, lengths)), low, high


def path_shares(counts: Sequence[int]) -> Floats:
    """Give each length's share of all paths, from exact counts."""
    total = sum(counts)
    return np.array([float(Fraction(count, total)) for count in counts])
