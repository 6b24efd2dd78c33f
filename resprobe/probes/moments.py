"""Mean and variance of a stream, merged batch by batch without loss of digits."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass
class Moments:
    """Mean and sum of squared deviations of what was seen so far, along the last axis of what is added.

    The update is the pairwise one of Chan, Golub, LeVeque 1983 (Algorithms for Computing the Sample Variance).

    Attributes:
        count: Number of values.
        mean: Their mean, one for each row.
        squares: Their sum of squared deviations from the mean, likewise.
    """

    mean: Floats
    squares: Floats
    count: int = 0

    @classmethod
    def of_nothing(cls, *shape: int) -> "Moments":
        """Make the moments before the first value."""
        return cls(np.zeros(shape), np.zeros(shape))

    def add(self, values: Floats) -> None:
        """Take in values `(*shape, N)`."""
        number = values.shape[-1]
        mean = values.mean(-1)
        squares = ((values - mean[..., None]) ** 2).sum(-1)
        total = self.count + number
        delta = mean - self.mean
        self.mean = self.mean + delta * (number / total)
        self.squares = self.squares + squares + delta**2 * (self.count * number / total)
        self.count = total

    @property
    def sem(self) -> Floats:
        """Standard error of the mean; NaN for a single value."""
        if self.count < 2:
            return np.full_like(self.mean, np.nan)
        sem: Floats = np.sqrt(self.squares / (self.count - 1) / self.count)
        return sem
