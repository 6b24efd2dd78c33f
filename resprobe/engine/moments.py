"""Mean and spread of a stream of numbers, merged piece by piece without loss of digits."""

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]


class Moments:
    """Number, mean and sum of squared deviations of everything added so far, of one row of numbers or of several.

    Two pieces are merged as by Chan, Golub and LeVeque 1979 (Updating Formulae and a Pairwise Algorithm for Computing
    Sample Variances): with d = mean_b - mean_a, mean = mean_a + d n_b / n and M2 = M2_a + M2_b + d^2 n_a n_b / n. No
    large numbers are subtracted from each other, so that the result doesn't depend on how the numbers are divided.

    Args:
        shape: Of the rows; none for a single one.

    Attributes:
        count: How many numbers each row has.
    """

    def __init__(self, *shape: int) -> None:
        self.count = 0
        self._mean: Floats = np.zeros(shape)
        self._squares: Floats = np.zeros(shape)

    def add(self, values: Floats) -> None:
        """Add numbers `(*shape, N)`."""
        if values.shape[-1]:
            mean = values.mean(-1)
            self._merge(values.shape[-1], mean, ((values - mean[..., None]) ** 2).sum(-1))

    def add_tensor(self, values: torch.Tensor) -> None:
        """Add all numbers of a tensor of any shape to a single row, summed in float64 where the tensor lies."""
        if values.numel():
            values = values.detach().double()
            mean = values.mean()
            squares = (values - mean).square().sum()
            self._merge(values.numel(), np.array(float(mean)), np.array(float(squares)))

    @property
    def mean(self) -> Floats:
        """Mean; NaN without any number."""
        return self._mean if self.count else np.full_like(self._mean, np.nan)

    @property
    def variance(self) -> Floats:
        """Variance of the population, divided by the count; NaN without any number."""
        return self._squares / self.count if self.count else np.full_like(self._mean, np.nan)

    @property
    def std(self) -> Floats:
        """Standard deviation of the population; NaN without any number."""
        std: Floats = np.sqrt(self.variance)
        return std

    @property
    def sem(self) -> Floats:
        """Standard error of the mean; NaN for less than two numbers."""
        if self.count < 2:
            return np.full_like(self._mean, np.nan)
        sem: Floats = np.sqrt(self._squares / (self.count - 1) / self.count)
        return sem

    def _merge(self, count: int, mean: Floats, squares: Floats) -> None:
        total = self.count + count
        difference = mean - self._mean
        self._mean = self._mean + difference * (count / total)
        self._squares = self._squares + squares + difference**2 * (self.count * count / total)
        self.count = total
