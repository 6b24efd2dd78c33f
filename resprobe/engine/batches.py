"""Batches as the analyses read them: checked, on the model's device, with a word on where they come from."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import length_hint
from typing import Any

import torch

from resprobe.errors import ResprobeError

Batch = tuple[torch.Tensor, torch.Tensor]


class CheckedBatches:
    """One pass over somebody's batches.

    Args:
        batches: An `ImageData`, a DataLoader or any iterable of `(images, labels)`: `(B, C, H, W)` floating point,
            already normalised, and `(B,)` integers.
        device: Where the images and labels are to be.

    Attributes:
        device: As given.
        example: The first two images of the first batch, for tracing.
        batch_size: Images in the first batch.
        num_images: The number of images where the batches say so beforehand, else None.
        num_seen: Images given out so far.

    Raises:
        ResprobeError: If there is no batch, or one that is no such pair.
    """

    def __init__(self, batches: Iterable[Batch], device: torch.device) -> None:
        self._given = batches
        self.device = device
        try:
            self._iterator = iter(batches)
        except TypeError as error:
            raise ResprobeError(
                f"batches: expected an iterable of pairs (images, labels), got {type(batches).__name__}; "
                "give a DataLoader or the result of resprobe.open_data"
            ) from error
        try:
            first = next(self._iterator)
        except StopIteration:
            raise ResprobeError("batches: expected at least one batch, got none; give some images") from None
        self._pending = chain([first], self._iterator)
        self._hash = hashlib.sha256()
        self.num_images: int | None = getattr(batches, "num_images", None)
        self.num_seen = 0
        self._num_channels: int | None = None
        first_images = self._checked(first)[0]
        self.example = first_images[:2]
        if not len(self.example):
            raise ResprobeError("images: expected at least one image in the first batch, got none; leave it out")
        self._num_channels = self.example.shape[1] if self.example.ndim > 1 else None
        self.batch_size = len(first_images)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches, the first one included; they can be read only once."""
        for batch in self._pending:
            images, labels = self._checked(batch)
            if not hasattr(self._given, "provenance"):
                for tensor in (images, labels):
                    self._hash.update(content_of(tensor))
            self.num_seen += len(labels)
            yield images, labels

    @property
    def about_num_images(self) -> int:
        """The number of images as far as it can be told beforehand: one batch at least."""
        if self.num_images is not None:
            return self.num_images
        # a DataLoader of a stream has a length only to say that it has none
        return self.batch_size * length_hint(self._given, 1)

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The data's own provenance; for bare batches, after the pass, the hash of what was read."""
        if hasattr(self._given, "provenance"):
            return self._given.provenance  # type: ignore[no-any-return]
        return {"data_sha256": self._hash.hexdigest(), "num_images": self.num_seen}

    def _checked(self, batch: object) -> Batch:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ResprobeError(
                f"batches: expected pairs (images, labels), got {type(batch).__name__}; yield two tensors"
            )
        try:
            images, labels = (torch.as_tensor(part) for part in batch)
        except (TypeError, ValueError, RuntimeError) as error:
            found = " and ".join(type(part).__name__ for part in batch)
            raise ResprobeError(
                f"batches: expected pairs (images, labels) of tensors, got {found}; yield two tensors"
            ) from error
        if not images.is_floating_point():
            raise ResprobeError(f"images: expected floating point, got {images.dtype}; normalise them first")
        if self._num_channels is not None and images.shape[1:2] != (self._num_channels,):
            raise ResprobeError(
                f"images: expected images of {self._num_channels} channels like the first ones, got shape "
                f"{tuple(images.shape)}; give images of one kind"
            )
        is_integer = not (labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool)
        if labels.ndim != 1 or not is_integer or len(labels) != len(images):
            raise ResprobeError(
                f"labels: expected {len(images)} integers, got {labels.dtype} of shape {tuple(labels.shape)}; "
                "give one class index per image"
            )
        return images.to(self.device), labels.to(self.device, torch.int64)


def content_of(tensor: torch.Tensor) -> bytes:
    """Give the bytes of a tensor's values; numpy has no bfloat16."""
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy().tobytes()


def check_labels(labels: torch.Tensor, num_classes: int, first_row: int) -> None:
    """Refuse labels that the model has no logit for.

    Args:
        labels: Class indices, `(B,)`.
        num_classes: Number of logits.
        first_row: Row of the dataset at which this batch begins, for the message.

    Raises:
        ResprobeError: If a label is out of range; names the first one and its row.
    """
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise ResprobeError(
            f"labels: expected 0 to {num_classes - 1}, the model's classes, got {int(labels[row])} at image "
            f"{first_row + row}; check that the data fit the model"
        )
