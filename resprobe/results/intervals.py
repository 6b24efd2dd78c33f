"""Confidence intervals of measured rates."""

import numpy as np
import numpy.typing as npt

from resprobe.errors import ResprobeError


def wilson_interval(
    num_wrong: npt.ArrayLike, num_images: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Give the 95 % Wilson score interval of an error rate (Wilson 1927, doi:10.1080/01621459.1927.10502953).

    Unlike the normal approximation it stays inside [0, 1] and has a width at 0 and at `num_images`.

    Args:
        num_wrong: Counts of wrong images, integers of any shape; -1 stands for a count that was not measured.
        num_images: Number of images that each count is out of.

    Returns:
        `(low, high)`: fractions in the shape of `num_wrong`; NaN where the count was not measured.

    Raises:
        ResprobeError: No images, or counts that are not integers from -1 to `num_images`.

    Examples:
        >>> low, high = wilson_interval([0, 50], 100)
        >>> low.round(3).tolist(), high.round(3).tolist()
        ([0.0, 0.404], [0.037, 0.596])
    """
    from scipy.stats import binomtest

    counts = np.asarray(num_wrong)
    if num_images < 1:
        raise ResprobeError(f"num_images: expected at least 1 image, got {num_images}; measure on some images")
    if counts.dtype.kind not in "iu" or (counts.size and (counts.min() < -1 or counts.max() > num_images)):
        raise ResprobeError(
            f"num_wrong: expected integers from -1 (not measured) to {num_images}, got {counts.tolist()}; pass counts"
        )
    bounds = np.full((2, *counts.shape), np.nan)
    for index in np.argwhere(counts >= 0):
        interval = binomtest(int(counts[tuple(index)]), num_images).proportion_ci(0.95, method="wilson")
        bounds[(slice(None), *index)] = interval.low, interval.high
    return bounds[0], bounds[1]
