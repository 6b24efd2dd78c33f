"""Mean and standard deviation of many numbers that come in pieces."""

import torch


class Moments:
    """Number, mean and sum of squared deviations of everything added so far.

    Two pieces are merged as by Chan, Golub and LeVeque 1979 (Updating Formulae and a Pairwise Algorithm for Computing
    Sample Variances): with d = mean_b - mean_a, mean = mean_a + d n_b / n and M2 = M2_a + M2_b + d^2 n_a n_b / n. No
    large numbers are subtracted from each other, so that the result doesn't depend on how the numbers are divided.

    Attributes:
        count: How many numbers.
        mean: Their mean; NaN without any.
        std: Their standard deviation, of the population: divided by the count.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, values: torch.Tensor) -> None:
        """Add all numbers of a tensor; the sums are taken in float64.

        Args:
            values: Any shape.
        """
        count = values.numel()
        if count == 0:
            return
        values = values.detach().double()
        mean = values.mean()
        squares = float((values - mean).square().sum())
        difference = float(mean) - self._mean
        total = self.count + count
        self._mean += difference * count / total
        self._squares += squares + difference**2 * self.count * count / total
        self.count = total

    @property
    def mean(self) -> float:
        """Mean; NaN without any number."""
        return self._mean if self.count else float("nan")

    @property
    def std(self) -> float:
        """Standard deviation of the population; NaN without any number."""
        return float((self._squares / self.count) ** 0.5) if self.count else float("nan")
