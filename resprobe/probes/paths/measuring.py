"""Batches through the path measurements, in halves where memory is short."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from resprobe.engine.batches import CheckedBatches
from resprobe.engine.halving import in_halves
from resprobe.engine.scoring import Progress
from resprobe.normalisation.folding import fold
from resprobe.probes.paths.norms import Measurement, Norms, SignStream, measure
from resprobe.probes.paths.tape import Tape
from resprobe.units import Segments


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

        drawn = signs.take(len(labels))

        def run(
            rows: slice,
            images: torch.Tensor = images,
            labels: torch.Tensor = labels,
            drawn: Sequence[torch.Tensor] = drawn,
            row: int = row,
            step: Callable[[], None] = step,
        ) -> Norms:
            tape = Tape(segments, _as_input(images[rows], measurement.precision), labels[rows], row + rows.start)
            given = [one[rows].to(images.device) for one in drawn]
            return measure(tape, measurement, given, row + rows.start, step)

        yield from in_halves(run, len(labels), images.device)
        row += len(labels)


def _as_input(images: torch.Tensor, precision: str) -> torch.Tensor:
    dtype = torch.float64 if precision == "float64" else torch.float32
    layout = torch.channels_last if images.ndim == 4 else torch.contiguous_format
    return images.to(dtype=dtype, memory_format=layout)
