"""Batches that a device's memory has no room for, in halves."""

import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from resprobe.errors import ResprobeError, ResprobeWarning

Measured = TypeVar("Measured")


def in_halves(run: Callable[[slice], Measured], num_images: int, device: torch.device) -> Iterator[Measured]:
    """Measure a batch, or where memory doesn't hold it, its halves, and so on.

    Args:
        run: Measures the images of a batch at some rows; leaves no trace where memory runs out.
        num_images: Number of images in the batch.
        device: Where it is measured.

    Yields:
        What `run` gives, of the whole batch or of each part, in the order of the images.

    Raises:
        ResprobeError: If there is no room for a single image.
    """
    yield from _run(run, slice(0, num_images), device)


def _run(run: Callable[[slice], Measured], rows: slice, device: torch.device) -> Iterator[Measured]:
    try:
        measured = run(rows)
    except torch.OutOfMemoryError:
        pass
    else:
        yield measured
        return
    # out of the handler, whose exception would keep the tensors of the failed attempt
    number = rows.stop - rows.start
    half = number // 2
    if half == 0:
        raise ResprobeError(f"memory: expected room for one image, got none on {device}; use --device cpu")
    if device.type == "cuda":
        torch.cuda.empty_cache()
    warnings.warn(
        f"{device} has no room for {number} images at a time; going on with {half}", ResprobeWarning, stacklevel=2
    )
    for part in (slice(rows.start, rows.start + half), slice(rows.start + half, rows.stop)):
        yield from _run(run, part, device)
