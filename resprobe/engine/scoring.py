"""Counts and losses of many altered versions of one model, added up batch by batch."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from resprobe.engine.batches import CheckedBatches, check_labels
from resprobe.engine.devices import exact_float32, precision_dtype
from resprobe.engine.halving import in_halves
from resprobe.engine.in_place import work_in_place
from resprobe.engine.independence import runs_apart
from resprobe.engine.prefix_sharing import Plan, run_plans
from resprobe.engine.quick_convolutions import quicken
from resprobe.engine.side_by_side import Crew, Tally, side_by_side
from resprobe.errors import ResprobeError
from resprobe.normalisation.folding import fold
from resprobe.units import Segments, WholeModel
from resprobe.units.random_state import kept_random_state

Progress = Callable[[int, int | None], None]
"""Called with what is done and the total (None where unknown), both in images times versions of the model."""

Judged = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.float64]]
"""Labels `(N,)`, and for each version whether images are right, and their loss: `(versions, N)`."""

VersionRunner = Callable[[torch.Tensor], Iterable[tuple[Sequence[int], torch.Tensor]]]
"""Takes images and gives the versions of a model, with their logits `(B, classes)`; may be called again."""


@dataclass
class Scores:
    """What each version of a model makes of the same images; version 0 is the intact model.

    Attributes:
        num_correct: Images that each version gets right, int `(versions,)`.
        num_newly_wrong: Images that the intact model gets right and the version doesn't.
        num_newly_right: The converse.
        loss_sum: Cross-entropy in nats, summed over images; not finite where some logits are not.
        num_images: How many images that is.
        labels: With per-image scores, the class of each image, one array per batch.
        correct: With per-image scores, bool `(versions, B)` per batch.
        image_loss: With per-image scores, float `(versions, B)` per batch, in nats.
    """

    num_correct: npt.NDArray[np.int64]
    num_newly_wrong: npt.NDArray[np.int64]
    num_newly_right: npt.NDArray[np.int64]
    loss_sum: npt.NDArray[np.float64]
    num_images: int = 0
    labels: list[npt.NDArray[np.int64]] = field(default_factory=list)
    correct: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    image_loss: list[npt.NDArray[np.float64]] = field(default_factory=list)

    @classmethod
    def of_nothing(cls, num_versions: int) -> "Scores":
        """Make the scores before the first image."""
        correct, newly_wrong, newly_right = (np.zeros(num_versions, np.int64) for _ in range(3))
        return cls(correct, newly_wrong, newly_right, np.zeros(num_versions))

    @property
    def loss(self) -> npt.NDArray[np.float64]:
        """Mean cross-entropy of each version, in nats."""
        return self.loss_sum / self.num_images

    @property
    def error(self) -> npt.NDArray[np.float64]:
        """Fraction of images that each version gets wrong."""
        return 1 - self.num_correct / self.num_images


def fast_segments(segments: Segments | WholeModel, precision: str) -> Segments | WholeModel:
    """Prepare segments for speed: batch normalisation folded, channels_last memory format, ReLUs in place.

    Args:
        segments: The model's segments, or the whole model, which stays unfolded; their modules are changed.
        precision: `float32`, `float64` or `bfloat16`.

    Returns:
        Segments of the same function, up to rounding.
    """
    dtype = precision_dtype(precision)
    if dtype is torch.float64:
        # folded after the cast, so that the folded weights have all their digits
        segments = segments.map(lambda module: module.to(dtype))
    return work_in_place(segments.map(fold).map(lambda module: _laid_out(module, dtype)))


def score(
    segments: Segments | WholeModel,
    plans: Sequence[Plan],
    batches: CheckedBatches,
    *,
    precision: str,
    per_image: bool = False,
    progress: Progress | None = None,
) -> Scores:
    """Run every plan on every batch and count.

    Args:
        segments: From `fast_segments`.
        plans: What to run; the first is the intact model.
        batches: The images.
        precision: The one of the segments.
        per_image: Keep the result of each image, not only the counts.
        progress: Called after each version of each batch.

    Returns:
        Counts and loss sums of every plan. An image whose loss is not finite counts as wrong.

    Raises:
        ResprobeError: If a label is out of range, or the intact model's loss is not finite.
    """
    crew, quick = None, segments
    if isinstance(segments, Segments) and batches.device.type == "cpu":
        example = as_input(batches.example, precision_dtype(precision))
        crew = Crew.of((batches.batch_size, *example.shape[1:]))
        with torch.inference_mode():
            crew = crew if crew and runs_apart(segments, example) else None
        if (crew.threads if crew else torch.get_num_threads()) == 1 and precision == "float32":
            # of a unit on an image: what comes before a deletion is shared
            runs = batches.about_num_images * (len(plans) + 1) // 2
            quick = quicken(segments, example, runs)

    def run(images: torch.Tensor) -> Iterator[tuple[Sequence[int], torch.Tensor]]:
        for members, logits in run_plans(quick, plans, images):
            if quick is not segments and not bool((logits < torch.inf).all()):
                # may be beyond the range of the quick way alone
                ((_, logits),) = run_plans(segments, [plans[members[0]]], images)
            yield members, logits

    return score_versions(
        run,
        len(plans),
        batches,
        precision=precision,
        per_image=per_image,
        crew=crew,
        progress=progress,
    )


def score_versions(
    run: VersionRunner,
    num_versions: int,
    batches: CheckedBatches,
    *,
    precision: str,
    per_image: bool = False,
    divisible: bool = True,
    crew: Crew | None = None,
    progress: Progress | None = None,
) -> Scores:
    """Run every version of a model on every batch and count.

    Args:
        run: Takes images and gives the versions, in any order, with their logits `(B, classes)`; versions that are
            the same come together. Version 0 is the intact model.
        num_versions: How many versions there are.
        batches: The images.
        precision: In which the versions run.
        per_image: As in `score`.
        divisible: Whether a batch that memory has no room for may run in halves: images don't influence each other.
        crew: Measure parts of batches at the same time; only for what `runs_apart`.
        progress: As in `score`.

    Returns:
        As `score`.

    Raises:
        ResprobeError: As `score`.
    """
    scores = Scores.of_nothing(num_versions)
    tally = Tally(progress, batches.num_images * num_versions if batches.num_images else None)
    jobs = _jobs(_Versions(run, num_versions, divisible, tally), batches, precision_dtype(precision), crew)
    with torch.inference_mode(), exact_float32():
        # closed at an error as well, so that no thread goes on behind it
        with closing(_one_by_one(jobs) if crew is None else side_by_side(_Job.measure, jobs, crew, tally)) as measured:
            for classes, correct, image_loss in chain.from_iterable(measured):
                _check_finite(image_loss[0], scores.num_images)
                _add(scores, correct, image_loss)
                if per_image:
                    scores.labels.append(classes)
                    scores.correct.append(correct)
                    scores.image_loss.append(image_loss)
    return scores


@dataclass(frozen=True)
class _Versions:
    """What `score_versions` was asked for."""

    run: VersionRunner
    number: int
    divisible: bool
    tally: Tally


@dataclass(frozen=True)
class _Job:
    """A batch or a part of one: what each version makes of its images."""

    versions: _Versions
    images: torch.Tensor
    labels: torch.Tensor
    first_row: int

    def measure(self) -> list[Judged]:
        """Measure all rows, in halves where memory has no room for them."""
        size = len(self.labels)
        if self.versions.divisible:
            return list(in_halves(self._rows, size, self.images.device))
        return [self._rows(slice(0, size))]

    def _rows(self, rows: slice) -> Judged:
        labels, first_row = self.labels[rows], self.first_row + rows.start
        correct = np.zeros((self.versions.number, len(labels)), bool)
        image_loss = np.zeros((self.versions.number, len(labels)))
        done = 0
        try:
            for members, logits in self.versions.run(self.images[rows]):
                check_labels(labels, logits.shape[1], first_row)
                correct[members], image_loss[members] = judge(logits, labels)
                done += len(members) * len(labels)
                self.versions.tally.add(len(members) * len(labels))
        except torch.OutOfMemoryError:
            self.versions.tally.add(-done)
            raise
        return labels.cpu().numpy(), correct, image_loss


def _jobs(versions: _Versions, batches: CheckedBatches, dtype: torch.dtype, crew: Crew | None) -> Iterator[_Job]:
    first_row = 0
    for images, labels in batches:
        for rows in crew.parts(len(labels)) if crew else [slice(0, len(labels))]:
            yield _Job(versions, as_input(images[rows], dtype), labels[rows], first_row + rows.start)
        first_row += len(labels)


def _one_by_one(jobs: Iterable[_Job]) -> Generator[list[Judged], None, None]:
    for job in jobs:
        with kept_random_state(job.images.device):
            measured = job.measure()
        yield measured


def _add(scores: Scores, correct: npt.NDArray[np.bool_], image_loss: npt.NDArray[np.float64]) -> None:
    scores.num_correct += correct.sum(1)
    scores.num_newly_wrong += (correct[:1] & ~correct).sum(1)
    scores.num_newly_right += (~correct[:1] & correct).sum(1)
    scores.loss_sum += image_loss.sum(1)
    scores.num_images += correct.shape[1]


def judge(logits: torch.Tensor, labels: torch.Tensor) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Tell for each image whether it is classified right, and its loss.

    Args:
        logits: `(B, classes)`.
        labels: `(B,)`, in range.

    Returns:
        Bool `(B,)`, false where the loss is not finite, and the cross-entropy in nats `(B,)`.
    """
    logits = logits.float() if logits.dtype is torch.bfloat16 else logits
    image_loss = F.cross_entropy(logits, labels, reduction="none")
    # a class that is masked with -inf is no failure; NaN and +inf, which argmax would take for the class, give no loss
    correct = (logits.argmax(1) == labels) & image_loss.isfinite()
    return correct.cpu().numpy(), image_loss.cpu().double().numpy()


def _check_finite(image_loss: npt.NDArray[np.float64], first_row: int) -> None:
    bad = np.flatnonzero(~np.isfinite(image_loss))
    if len(bad):
        raise ResprobeError(
            f"loss of the intact model: expected finite numbers, got {image_loss[bad[0]]} at image "
            f"{first_row + bad[0]}; check the weights, the normalisation and the images"
        )


def _laid_out(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    return module.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def as_input(images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Give images the type and the memory layout in which networks run fastest."""
    layout = torch.channels_last if images.ndim == 4 else torch.contiguous_format
    return images.to(dtype=dtype, memory_format=layout)
