"""Means over images and their standard errors, from sums over batches."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def mean_and_sem(sums: npt.ArrayLike, counts: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Give the mean over all images, and its standard error from the spread between batches.

    With the sum `s_b` and the count `n_b` of batch b, N = sum_b n_b: mean = sum_b s_b / N, and
    sem^2 = B / (B - 1) sum_b (n_b / N)^2 (s_b / n_b - mean)^2 over the B batches that have images. Batches count by
    their number of images; for equal ones the sem is the usual one, the standard deviation of the batch means divided
    by sqrt(B).

    Args:
        sums: Sums over the images of a batch, `(batches, k)`.
        counts: Numbers of images that were summed, `(batches, k)`.

    Returns:
        Mean `(k,)`, NaN where no image was summed, and standard error `(k,)`, NaN for less than two batches.

    References:
        Cochran 1977, Sampling Techniques, section 6.3 (the variance of a ratio).

    Example:
        >>> mean_and_sem([[2.0], [6.0]], [[2], [2]])
        (array([2.]), array([1.]))
    """
    sums, counts = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    total = counts.sum(0)
    num_batches = (counts > 0).sum(0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = sums.sum(0) / total
        weighted = np.where(counts > 0, (sums - counts * mean) / total, 0.0)
        sem = np.sqrt((weighted**2).sum(0) * num_batches / (num_batches - 1))
    return mean, np.where(num_batches > 1, sem, np.nan)
