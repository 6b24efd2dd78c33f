"""Batches that an analysis reads many times."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from resprobe.errors import ResprobeError
from resprobe.probes.batches import Batch, CheckedBatches

LARGEST_KEPT_BYTES = 2**28


class RepeatedBatches:
    """Somebody's batches, as often as needed: kept on the device where they are small, else read again each time.

    Batches without provenance are read once at the start, since their hash is a part of the result's fingerprint.

    Args:
        batches: As for `CheckedBatches`.
        device: Where the images and labels are to be.

    Attributes:
        device: As given.
        example: The first two images.
        batch_size: Images in the first batch.
        num_images: How many images there are.
        provenance: Where the data came from.
        kept: Whether they stay in memory, so that reading them costs nothing.

    Raises:
        ResprobeError: If the batches are no pairs of images and labels, or are too many to be kept and can't be read
            twice.
    """

    def __init__(self, batches: Iterable[Batch], device: torch.device) -> None:
        self._given = batches
        self.device = device
        first = CheckedBatches(batches, device)
        self.example, self.batch_size = first.example, first.batch_size
        self._stored: list[Batch] = []
        self.kept = True
        size = 0
        for images, labels in first:
            size += images.numel() * images.element_size()
            if size > LARGEST_KEPT_BYTES:
                self.kept = False
                self._stored.clear()
                if first.num_images is not None and hasattr(batches, "provenance"):
                    break
            if self.kept:
                self._stored.append((images, labels))
        self.num_images = first.num_seen if self.kept or first.num_images is None else first.num_images
        self.provenance: Mapping[str, Any] = first.provenance
        if not self.kept and isinstance(batches, Iterator):
            raise ResprobeError(
                f"batches: expected batches that can be read again, got {type(batches).__name__}; give a DataLoader or "
                "the result of resprobe.open_data"
            )

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from the first one."""
        if self.kept:
            yield from self._stored
            return
        again = CheckedBatches(self._given, self.device)
        yield from again
        if again.num_seen != self.num_images:
            raise ResprobeError(
                f"batches: expected the same {self.num_images} images each time, got {again.num_seen}; give batches "
                "that can be read again"
            )
