"""Where images come from: the interface of a source, and the source for arrays in memory."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resprobe.errors import ResprobeError

Pixels: TypeAlias = NDArray[np.uint8]
"""(B, H, W, C), from 0 to the source's `pixel_max`."""
Labels: TypeAlias = NDArray[np.integer[Any]]
"""(B,), class indices."""

_HASH_CHUNK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class ImageSource(ABC):
    """One split of one dataset, before normalisation; rows are always read in the same order."""

    split: str
    num_images: int
    """Images that the source holds."""
    num_classes: int | None
    """None where the source doesn't say."""
    image_shape: tuple[int, int, int]
    """(C, H, W)"""
    pixel_max: int = 255
    """The pixel value that stands for 1."""
    default_normalisation: str | None = None
    """None where the caller has to choose."""

    @abstractmethod
    def read(self, num_images: int, batch_size: int) -> Iterator[tuple[Pixels, Labels]]:
        """Yield the first `num_images` images and their labels; the last batch may be smaller."""

    @abstractmethod
    def sha256(self, num_images: int) -> str:
        """Hash the content of the first `num_images` images and their labels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ArraySource(ImageSource):
    """Images and labels in memory: `images` (N, H, W, C) uint8, `labels` (N,) int."""

    images: Pixels
    labels: Labels

    def read(self, num_images: int, batch_size: int) -> Iterator[tuple[Pixels, Labels]]:
        """Yield views of the arrays."""
        for first in range(0, num_images, batch_size):
            rows = slice(first, min(first + batch_size, num_images))
            yield self.images[rows], self.labels[rows]

    def sha256(self, num_images: int) -> str:
        """Hash pixel values and labels."""
        return hash_content(self, num_images)


def hash_content(source: ImageSource, num_images: int) -> str:
    """Hash pixel values and labels, however they are stored.

    Two sources agree when their images have the same shape, range, values and labels, in the same order.

    Args:
        source: where the images come from; it's read in pieces of about 1 MiB.
        num_images: images to hash, from the first.

    Returns:
        sha256 as hexadecimal digits.
    """
    channels, height, width = source.image_shape
    # Pixels and labels arrive in alternating pieces: two hashes make it irrelevant where they are cut.
    pixel_hash, label_hash = hashlib.sha256(), hashlib.sha256()
    rows_per_piece = max(1, _HASH_CHUNK_BYTES // (channels * height * width))
    for pixels, labels in source.read(num_images, rows_per_piece):
        pixel_hash.update(np.ascontiguousarray(pixels).data)
        label_hash.update(labels.astype("<i8").data)
    content = hashlib.sha256(f"uint8 0..{source.pixel_max} {(num_images, height, width, channels)}".encode())
    content.update(pixel_hash.digest())
    content.update(label_hash.digest())
    return content.hexdigest()


def check_labels(labels: Labels, *, where: str, num_classes: int | None, first_row: int = 0) -> None:
    """Refuse labels that are no class indices.

    Args:
        labels: (B,) labels of consecutive rows.
        where: the dataset, for the message.
        num_classes: number of classes, None if any index is allowed.
        first_row: row of the dataset that `labels` starts at.

    Raises:
        ResprobeError: a label is negative, or not below `num_classes`.
    """
    # Unsigned labels beyond int64 would turn negative later on: they count as out of range here.
    limit = np.iinfo(np.int64).max if num_classes is None else num_classes - 1
    outside = np.flatnonzero((labels < 0) | (labels > limit))
    if outside.size:
        index = int(outside[0])
        expected = "0 or more" if num_classes is None else f"0..{limit}"
        raise ResprobeError(
            f"{where}: expected labels of {expected}, got {labels[index]} in row {first_row + index}; "
            "number the classes from 0"
        )
