"""Batches that are read many times over, and must be the same each time."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from resprobe.engine.batches import Batch, CheckedBatches
from resprobe.errors import ResprobeError
from resprobe.normalisation.batch_norm import check_batch

Mark = tuple[tuple[int, ...], float, int]


class RepeatedBatches:
    """The same batches in every pass; nothing is kept of them but a mark of each. Empty ones are left out.

    Args:
        batches: As `CheckedBatches` takes them. An iterator, which gives its batches only once, is kept in memory.
        device: Where the images and labels are to be.
        dtype: Number format of the images.

    Attributes:
        dtype: As given.
        first: The first pass, which has been read already: the example and where the batches come from.
        sizes: Images in each batch.
        row: Row of the dataset at which the current batch begins.
    """

    def __init__(self, batches: Iterable[Batch], device: torch.device, dtype: torch.dtype) -> None:
        self._given = list(batches) if isinstance(batches, Iterator) else batches
        self.dtype = dtype
        self.first = CheckedBatches(self._given, device)
        self._marks: list[Mark] = []
        self.sizes: list[int] = []
        for images, labels in filter(_holds_images, self.first):
            self._marks.append(_mark(images, labels))
            self.sizes.append(len(labels))
        self.row = 0

    @property
    def device(self) -> torch.device:
        """Where the images and labels are."""
        return self.first.device

    @property
    def num_images(self) -> int:
        """The number of images in a pass."""
        return sum(self.sizes)

    @property
    def example(self) -> torch.Tensor:
        """The first two images."""
        return self.first.example.to(self.dtype, copy=True)

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Where the batches come from."""
        return self.first.provenance

    def check_statistics(self) -> None:
        """Refuse a batch that has no statistics of its own, a single image."""
        for number, size in enumerate(self.sizes):
            check_batch(size, sum(self.sizes[:number]))

    def __iter__(self) -> Iterator[Batch]:
        """Yield copies of the batches, since a model may work in place on its input."""
        self.row = 0
        number = 0
        read = filter(_holds_images, CheckedBatches(self._given, self.device))
        for number, (images, labels) in enumerate(read, start=1):
            if number > len(self._marks) or _mark(images, labels) != self._marks[number - 1]:
                raise _changed(f"others in batch {number}")
            yield images.to(self.dtype, copy=True), labels.clone()
            self.row += len(labels)
        if number < len(self._marks):
            raise _changed(f"{number} batches after {len(self._marks)}")


def check_outputs(network: nn.Module, data: RepeatedBatches, *, needs_logits: bool) -> None:
    """Refuse a network whose outputs are no tensor, no logits where the loss is of such, or others each time.

    Args:
        network: A private copy in evaluation mode.
        data: The images, of which the example passes twice.
        needs_logits: Whether the outputs must be `(N, classes)`.

    Raises:
        ResprobeError: If they are not so.
    """
    with torch.no_grad():
        one, two = network(data.example), network(data.example)
    name = type(network).__name__
    if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
        raise ResprobeError(
            f"model {name}: expected a tensor as output, got {type(one).__name__}; wrap it in a module that returns "
            "the logits alone"
        )
    if needs_logits and (one.ndim != 2 or len(one) != len(data.example)):
        raise ResprobeError(
            f"outputs: expected logits ({len(data.example)}, classes), got shape {tuple(one.shape)}; give a network "
            "that returns logits, or a loss"
        )
    if not torch.equal(torch.nan_to_num(one), torch.nan_to_num(two)):
        raise ResprobeError(
            f"model {name}: expected the same outputs each time, got others in evaluation mode; turn off what draws "
            "random numbers"
        )


def _holds_images(batch: Batch) -> bool:
    """Tell whether a batch has images: of none, the mean loss would be NaN."""
    return len(batch[1]) > 0


def _changed(found: str) -> ResprobeError:
    return ResprobeError(
        f"batches: expected the same images in every pass, got {found}; turn shuffling and augmentation off"
    )


def _mark(images: torch.Tensor, labels: torch.Tensor) -> Mark:
    """Sum a batch up, so that another one is noticed without keeping this one."""
    exact = torch.float32 if images.device.type == "mps" else torch.float64
    order = torch.arange(1, len(labels) + 1, device=labels.device)
    pixels = images.flatten(1)
    # each pixel counts by its place: a flipped or shifted image has the same sum
    weights = torch.linspace(1, 2, pixels.shape[1], dtype=pixels.dtype, device=pixels.device)
    per_image = (pixels * weights).sum(1, dtype=exact) * order
    # a NaN in an image is not equal to itself
    total = float(torch.nan_to_num(per_image, nan=1.0, posinf=2.0, neginf=3.0).sum())
    return tuple(images.shape), total, int((labels * order).sum())
