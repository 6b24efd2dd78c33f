"""Batches of normalised images with their labels, in dataset order."""

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from resprobe.data.normalisation import Normalisation
from resprobe.data.sources import ImageSource, Labels, Pixels


class ImageData:
    """One split of one dataset, streamed in dataset order.

    Iterating yields `(images, labels)`: `(B, C, H, W)` float32, contiguous, normalised as
    `(pixel / pixel_max - mean) / std` in float32, and `(B,)` int64. The last batch may be smaller. Every
    iteration starts at the first image, independently of others in progress.

    Args:
        source: where the images come from.
        name: the dataset as the user names it, such as `digits` or `npz:FILE`.
        num_images: images to use, from the first; at most what the source holds.
        normalisation: for the number of channels in the source.
        batch_size: images per batch.

    Raises:
        ResprobeError: the normalisation is for another number of channels.
    """

    def __init__(
        self,
        source: ImageSource,
        *,
        name: str,
        num_images: int,
        normalisation: Normalisation,
        batch_size: int,
    ) -> None:
        normalisation.check_channels(source.image_shape[0])
        self._source = source
        self.name = name
        self.split = source.split
        self.num_images = num_images
        self.num_classes = source.num_classes
        self.image_shape = source.image_shape
        self.normalisation = normalisation
        self.batch_size = batch_size

    def __repr__(self) -> str:
        return (
            f"ImageData({self.name!r}, split={self.split!r}, num_images={self.num_images}, "
            f"image_shape={self.image_shape}, normalisation={self.normalisation.name!r}, "
            f"batch_size={self.batch_size})"
        )

    def __len__(self) -> int:
        """Return the number of batches."""
        return math.ceil(self.num_images / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalised images and labels, batch by batch."""
        for pixels, labels in self._batches():
            yield self.normalisation.apply(pixels), labels

    def pixels(self) -> tuple[Tensor, Tensor]:
        """Read the whole split into memory, before normalisation.

        Returns:
            Pixels `(N, C, H, W)` float32 in [0, 1], for `normalisation.apply` to normalise, and labels `(N,)`
            int64.
        """
        all_pixels = torch.empty(self.num_images, *self.image_shape)
        all_labels = torch.empty(self.num_images, dtype=torch.int64)
        first = 0
        for pixels, labels in self._batches():
            rows = slice(first, first + len(labels))
            all_pixels[rows], all_labels[rows] = pixels, labels
            first = rows.stop
        return all_pixels, all_labels

    @cached_property
    def sha256(self) -> str:
        """Content hash of the images used and their labels, computed on first use.

        It doesn't depend on batch size and normalisation. Arrays with the same content agree however they are
        stored; images in folders are hashed as files.
        """
        return self._source.sha256(self.num_images)

    @property
    def provenance(self) -> dict[str, str | int]:
        """What a result says of its data: `data`, `data_sha256`, `split`, `num_images`, `normalisation`."""
        return {
            "data": self.name,
            "data_sha256": self.sha256,
            "split": self.split,
            "num_images": self.num_images,
            "normalisation": self.normalisation.as_text(),
        }

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pixels (B, C, H, W) float32 in [0, 1] and labels (B,) int64."""
        for pixels, labels in self._source.read(self.num_images, self.batch_size):
            yield _scaled(pixels, self._source.pixel_max), _class_indices(labels)


def _scaled(pixels: Pixels, pixel_max: int) -> Tensor:
    """Turn (B, H, W, C) integers into (B, C, H, W) float32 in [0, 1]; a copy, whatever the source yields."""
    return torch.from_numpy(pixels.transpose(0, 3, 1, 2).astype(np.float32, order="C")).div_(pixel_max)


def _class_indices(labels: Labels) -> Tensor:
    """Turn integers of any width and byte order into int64; a copy, whatever the source yields."""
    return torch.from_numpy(labels.astype(np.int64))
