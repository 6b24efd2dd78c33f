"""Batches through the path measurements, in halves where memory is short."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from resprobe.errors import ResprobeError, ResprobeWarning
from resprobe.folding import fold
from resprobe.probes.batches import CheckedBatches
from resprobe.probes.path_norms import Measurement, Norms, SignStream, measure
from resprobe.probes.scoring import Progress
from resprobe.probes.tape import Tape
from resprobe.segments import Segments


def prepare(segments: Segments, precision: str) -> Segments:
    """Cast segments, fold their batch normalisation and free their parameters of gradients.

    Args:
        segments: The model's segments; their modules are changed.
        precision: `float32` or `float64`.

    Returns:
        Segments of the same function, up to rounding.
    """
    dtype = torch.float64 if precision == "float64" else torch.float32
    layout: dict[str, Any] = {"dtype": dtype, "memory_format": torch.channels_last}
    # cast before folding, so that the folded weights have all their digits
    cast = segments.map(lambda module: module.to(dtype)).map(fold)
    return cast.map(lambda module: module.to(**layout).requires_grad_(False))


def measured(
    segments: Segments, data: CheckedBatches, measurement: Measurement, progress: Progress | None
) -> Iterator[Norms]:
    """Measure batch after batch.

    Args:
        segments: From `prepare`.
        data: The batches.
        measurement: What to measure.
        progress: Called with images times steps done.

    Yields:
        The norms of each batch, or of its halves where memory is short.

    Raises:
        ResprobeError: If a label is out of range, memory has no room for one image, or the self-test fails.
    """
    num_units = len(segments.units)
    signs = SignStream(*measurement.signs, num_units)
    splits = 1 + len(measurement.stages) + measurement.signs[1]
    steps = splits * num_units + len(measurement.sampled)
    row = 0
    for images, labels in data:
        done = 0

        def step(row: int = row, num_images: int = len(labels)) -> None:
            nonlocal done
            done += 1
            if progress is not None:
                total = None if data.num_images is None else data.num_images * steps
                progress(row * steps + min(done, steps) * num_images, total)

        yield from _halving(
            partial(_measure_batch, segments, measurement, step), images, labels, signs.take(len(labels)), row
        )
        row += len(labels)


def _measure_batch(
    segments: Segments,
    measurement: Measurement,
    step: Callable[[], None],
    images: torch.Tensor,
    labels: torch.Tensor,
    signs: Sequence[torch.Tensor],
    row: int,
) -> Norms:
    dtype = torch.float64 if measurement.precision == "float64" else torch.float32
    layout = torch.channels_last if images.ndim == 4 else torch.contiguous_format
    tape = Tape(segments, images.to(dtype=dtype, memory_format=layout), labels, row)
    return measure(tape, measurement, [one.to(images.device) for one in signs], row, step)


def _halving(
    run: Callable[..., Norms], images: torch.Tensor, labels: torch.Tensor, signs: Sequence[torch.Tensor], row: int
) -> Iterator[Norms]:
    """Measure a batch, or where the device's memory doesn't hold it, its halves."""
    try:
        norms = run(images, labels, signs, row)
    except torch.OutOfMemoryError:
        norms = None
    if norms is not None:
        yield norms
        return
    half = len(labels) // 2
    if half == 0:
        raise ResprobeError(
            f"memory: expected room for one image, got none on {images.device}; use --device cpu or --at first-unit"
        )
    if images.device.type == "cuda":
        torch.cuda.empty_cache()
    warnings.warn(
        f"{images.device} has no room for {len(labels)} images at a time; going on with {half}",
        ResprobeWarning,
        stacklevel=2,
    )
    for part in (slice(0, half), slice(half, None)):
        yield from _halving(run, images[part], labels[part], [one[part] for one in signs], row + (part.start or 0))
