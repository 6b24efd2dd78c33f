"""What `paths` measures of one batch: norms of each image's gradient by path length, and the self-test."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from resprobe.errors import ResprobeError
from resprobe.probes.paths.samples import Step, norms_of_paths
from resprobe.probes.paths.scaled import Scaled, sum_of
from resprobe.probes.paths.splits import ByLength, split_by_length
from resprobe.probes.paths.tape import Tape

Floats = npt.NDArray[np.float64]

# Largest difference between the sum over all lengths and the gradient itself, relative to its norm, for any image.
TOLERANCES = {"float32": 1e-3, "float64": 1e-10}


@dataclass(frozen=True)
class Measurement:
    """What is measured of every batch.

    Attributes:
        at: Where gradients arrive, `input` or `first-unit`.
        lengths: The lengths that occur.
        precision: `float32` or `float64`.
        stages: Units of each stage that is split on its own; none without the split by stage.
        signs: Seed and number of repeats with random signs.
        sampled: Sets of units of the sampled paths.
    """

    at: str
    lengths: Sequence[int]
    precision: str
    stages: Sequence[Collection[int]] = ()
    signs: tuple[int, int] = (0, 0)
    sampled: Sequence[Collection[int]] = ()


@dataclass
class Norms:
    """Norms of the gradients of single images, in nats per unit of the normalised input.

    Attributes:
        full: `(N,)`, of the ordinary gradient.
        difference: `(N,)`, of the ordinary gradient minus the sum over all lengths, relative to the former.
        coherent: `(lengths, N)`, of the sum over all paths of a length.
        stages: For each stage `(branches, N)`, of the sum over all ways that take so many of its branches.
        signs: `(repeats, lengths, N)`, squares of norms of the sums with random signs.
        sampled: `(paths, N)`, of single paths.
        loss: `(N,)`, cross-entropy in nats.
        correct: `(N,)`, whether the image is classified right.
    """

    full: Floats
    difference: Floats
    coherent: Floats
    stages: list[Floats]
    signs: Floats
    sampled: Floats
    loss: Floats
    correct: npt.NDArray[np.bool_]


@dataclass
class SignStream:
    """Random signs for one image after the other, whatever the batches are.

    Attributes:
        seed: Seed of the signs.
        repeats: Independent sets of signs.
        num_units: Number of units.
    """

    seed: int
    repeats: int
    num_units: int
    _generators: list[np.random.Generator] = field(init=False)

    def __post_init__(self) -> None:
        """Give each repeat a generator of its own."""
        self._generators = [np.random.default_rng([self.seed, repeat]) for repeat in range(self.repeats)]

    def take(self, num_images: int) -> list[torch.Tensor]:
        """Give the next images' signs, for each repeat `(num_images, num_units)`."""
        return [
            torch.from_numpy(np.where(generator.random((num_images, self.num_units)) < 0.5, -1.0, 1.0))
            for generator in self._generators
        ]


def measure(tape: Tape, measurement: Measurement, signs: Sequence[torch.Tensor], first_row: int, step: Step) -> Norms:
    """Measure one batch.

    Args:
        tape: Its forward pass.
        measurement: What to measure.
        signs: The signs of its images, one tensor for each repeat.
        first_row: Row of the dataset at which the batch begins, for messages.
        step: Called after each unit of a split and after each sampled path.

    Returns:
        The norms.

    Raises:
        ResprobeError: If the sum over all lengths is not the gradient, or a loss is not finite.
    """
    at, lengths = measurement.at, measurement.lengths
    scale = tape.scale.cpu().numpy()
    _check_finite(scale, first_row)
    split = split_by_length(tape, at, step=step)
    full = Scaled(tape.whole(at))
    full_norms = full.norms().cpu().numpy()
    difference = _difference(split, full, full_norms)
    _check_complete(difference, measurement.precision, first_row)
    by_stage = []
    for units in measurement.stages:
        counts = range(len(units) + 1)
        by_stage.append(_norms(split_by_length(tape, at, counted=units, step=step), counts, scale))
    squares = [_norms(split_by_length(tape, at, signs=one, step=step), lengths, scale) ** 2 for one in signs]
    logits = tape.logits.detach()
    loss = torch.nn.functional.cross_entropy(logits.double(), tape.labels, reduction="none")
    return Norms(
        full=full_norms * scale,
        difference=difference,
        coherent=_norms(split, lengths, scale),
        stages=by_stage,
        signs=np.array(squares).reshape(len(signs), len(lengths), len(scale)),
        sampled=norms_of_paths(tape, at, measurement.sampled, step),
        loss=loss.cpu().numpy(),
        correct=(logits.argmax(1) == tape.labels).cpu().numpy(),
    )


def _norms(split: ByLength, lengths: Sequence[int], scale: Floats) -> Floats:
    """Give `(lengths, N)`; a length at which nothing arrives has the norm 0."""
    norms = np.zeros((len(lengths), len(scale)))
    for row, length in enumerate(lengths):
        if length in split:
            norms[row] = np.ldexp(split[length].norms().cpu().numpy(), split[length].exponent) * scale
    return norms


def _difference(split: ByLength, full: Scaled, full_norms: Floats) -> Floats:
    if not split:
        return np.where(full_norms > 0, 1.0, 0.0)
    total = sum_of(list(split.values()))
    difference = total.plus(Scaled(-full.tensor, full.exponent))
    norms = np.ldexp(difference.norms().cpu().numpy(), difference.exponent)
    # images without any gradient, such as those at zero loss, have nothing to compare
    relative: Floats = norms / np.where(full_norms > 0, full_norms, 1.0)
    return relative


def _check_finite(scale: Floats, first_row: int) -> None:
    bad = np.flatnonzero(~np.isfinite(scale))
    if len(bad):
        raise ResprobeError(
            f"gradient of the loss: expected finite numbers, got {scale[bad[0]]} at image {first_row + bad[0]}; check "
            "the weights, the normalisation and the images"
        )


def _check_complete(difference: Floats, precision: str, first_row: int) -> None:
    tolerance = TOLERANCES[precision]
    bad = np.flatnonzero(~(difference <= tolerance))
    if len(bad):
        raise ResprobeError(
            f"self-test: expected the sum over all path lengths to be the gradient within {tolerance:g}, got a "
            f"relative difference of {difference[bad[0]]:.2g} at image {first_row + bad[0]}; use --precision "
            "float64, or report this model"
        )
