"""From the norms of single images to the variables of a result."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from resprobe.engine.moments import Moments
from resprobe.probes.paths.effective_lengths import effective_lengths, path_shares
from resprobe.probes.paths.norms import Measurement, Norms

Floats = npt.NDArray[np.float64]


class Totals:
    """Sums over the images seen so far."""

    def __init__(self, measurement: Measurement, num_units: int) -> None:
        repeats = measurement.signs[1]
        self.full = Moments()
        self.coherent = Moments(len(measurement.lengths))
        self.stages = [Moments(len(units) + 1) for units in measurement.stages]
        self.signs = np.zeros((repeats, len(measurement.lengths)))
        self.sampled = np.zeros(len(measurement.sampled))
        self.completeness = 0.0
        self.loss = 0.0
        self.num_correct = 0

    def add(self, norms: Norms) -> None:
        """Take in the norms of some images."""
        self.full.add(norms.full)
        self.coherent.add(norms.coherent)
        for moments, values in zip(self.stages, norms.stages, strict=True):
            moments.add(values)
        self.signs += norms.signs.sum(-1)
        self.sampled += norms.sampled.sum(-1)
        self.completeness = max(self.completeness, float(norms.difference.max()))
        self.loss += float(norms.loss.sum())
        self.num_correct += int(norms.correct.sum())


def path_variables(
    totals: Totals, num_paths: Mapping[int, int], measurement: Measurement, samples: int
) -> dict[str, Any]:
    """Arrange what was measured along `path_length`.

    Args:
        totals: The sums.
        num_paths: Number of paths of each length.
        measurement: What was measured.
        samples: Sampled paths for each length; 0 without.

    Returns:
        The variables, as `xarray.Dataset` takes them.
    """
    lengths, counts = list(num_paths), list(num_paths.values())
    coherent = totals.coherent
    num_images = coherent.count
    mean, low, high = effective_lengths(lengths, coherent.mean)
    path_share = path_shares(counts)
    inside = [low <= length <= high for length in lengths]
    mass = coherent.mean.sum()
    variables: dict[str, Any] = {
        "coherent_grad_norm": ("path_length", coherent.mean),
        "coherent_grad_norm_sem": ("path_length", coherent.sem),
        "full_grad_norm": totals.full.mean[()],
        "full_grad_norm_sem": totals.full.sem[()],
        "completeness_error": totals.completeness,
        "grad_share": ("path_length", coherent.mean / (mass if mass > 0 else np.nan)),
        "path_share": ("path_length", path_share),
        "effective_length_mean": mean,
        "effective_length_low": low,
        "effective_length_high": high,
        "effective_path_share": float(path_share[inside].sum()) if mass > 0 else np.nan,
        "num_images": np.int64(num_images),
        "baseline_num_correct": np.int64(totals.num_correct),
        "baseline_loss": totals.loss / num_images,
        "baseline_error": 1 - totals.num_correct / num_images,
    }
    if measurement.signs[1]:
        variables |= _power_variables(totals, counts)
    if samples:
        variables |= _sample_variables(totals, len(lengths), samples)
    return variables


def _power_variables(totals: Totals, counts: Sequence[int]) -> dict[str, Any]:
    """Give the root-mean-square norm of a single path of each length, by random signs."""
    squares = totals.signs / totals.coherent.count / np.array([float(count) for count in counts])
    rms = np.sqrt(squares.mean(0))
    return {
        "path_grad_rms": ("path_length", rms),
        # of the root, from that of the mean square
        "path_grad_rms_sem": ("path_length", _sem(squares) / np.where(rms > 0, 2 * rms, np.nan)),
    }


def _sample_variables(totals: Totals, num_lengths: int, samples: int) -> dict[str, Any]:
    """Give the mean norm of the sampled paths of each length."""
    norms = (totals.sampled / totals.coherent.count).reshape(num_lengths, samples).T
    return {
        "path_grad_mean": ("path_length", norms.mean(0)),
        "path_grad_mean_sem": ("path_length", _sem(norms)),
        "num_samples": np.int64(samples),
    }


def stage_variables(totals: Totals, counts: Sequence[Mapping[int, int]]) -> dict[str, Any]:
    """Arrange the splits by stage; lengths that a stage doesn't have are NaN, their number of paths 0."""
    width = max(len(moments.mean) for moments in totals.stages)
    norms, sems = np.full((2, len(totals.stages), width), np.nan)
    number = [[count.get(length, 0) for length in range(width)] for count in counts]
    for row, (moments, count) in enumerate(zip(totals.stages, counts, strict=True)):
        there = [length in count for length in range(len(moments.mean))]
        norms[row, : len(there)][there] = moments.mean[there]
        sems[row, : len(there)][there] = moments.sem[there]
    flat = exact_counts([one for row in number for one in row])
    dims = ("stage", "stage_length")
    return {
        "stage_grad_norm": (dims, norms),
        "stage_grad_norm_sem": (dims, sems),
        "stage_num_paths": (dims, flat.reshape(len(number), width)),
    }


def _sem(values: Floats) -> Floats:
    """Give the standard error over the first axis; NaN for a single value."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    sem: Floats = values.std(0, ddof=1) / np.sqrt(len(values))
    return sem


def exact_counts(numbers: Sequence[int]) -> npt.NDArray[Any]:
    """Give whole numbers as an array: 64-bit, or as text where they are larger."""
    if max(numbers) <= np.iinfo(np.int64).max:
        return np.array(numbers, np.int64)
    return np.array([str(number) for number in numbers])


def mean_layers(optional: Sequence[int], always: int) -> Floats:
    """Give the mean number of weight layers on all paths of each length.

    Args:
        optional: Weight layers of each branch that a path may leave out; each is on equally many paths of a length.
        always: Weight layers on every path.

    Returns:
        One number for each length, from the shortest.
    """
    mean = float(np.mean(optional)) if optional else 0.0
    return np.array([always + taken * mean for taken in range(len(optional) + 1)])
