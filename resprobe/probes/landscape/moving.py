"""A network whose weights move about a point, and what it makes of images there."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from resprobe.engine.batches import Batch, check_labels
from resprobe.engine.halving import in_halves
from resprobe.engine.scoring import as_input, judge
from resprobe.errors import ResprobeError
from resprobe.normalisation.batch_norm import check_batch
from resprobe.probes.landscape.directions import Direction
from resprobe.probes.landscape.loss_lines import Loss
from resprobe.units.random_state import kept_random_state

NOT_COUNTED = -1


class Place(NamedTuple):
    """Where the weights are: how far along each direction."""

    directions: Sequence[Direction]
    distances: Sequence[float]


class Total(NamedTuple):
    """What a network makes of images.

    Attributes:
        loss_sum: Loss summed over images; not finite where one of them isn't.
        num_correct: Images that it gets right; -1 where its outputs are no logits.
    """

    loss_sum: float
    num_correct: int

    def plus(self, other: "Total") -> "Total":
        """Add what it makes of other images."""
        counted = NOT_COUNTED not in (self.num_correct, other.num_correct)
        number = self.num_correct + other.num_correct if counted else NOT_COUNTED
        return Total(self.loss_sum + other.loss_sum, number)


class MovingNetwork:
    """A private network and the weights about which it moves.

    Args:
        network: In the mode of its batch normalisation; its parameters are overwritten.
        mode: That mode.
        dtype: Of its parameters.
        loss: Gives the mean loss of a batch from `(outputs, labels)`; None is the cross-entropy.

    Attributes:
        network: As given.
        theta: The weights about which it moves, by name.
    """

    def __init__(self, network: nn.Module, mode: str, dtype: torch.dtype, loss: Loss | None) -> None:
        self.network = network.to(memory_format=torch.channels_last)
        self.theta = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
        self._parameters = dict(network.named_parameters())
        self._mode, self._dtype, self._loss = mode, dtype, loss
        self._at: Place | None = None

    @torch.no_grad()
    def move(self, place: Place) -> None:
        """Set the weights to `theta + sum of distance times direction`; the same place gives the same bits."""
        if place is self._at:
            return
        self._at = None
        moved = {name for direction in place.directions for name in direction}
        for name in moved:
            parameter = self._parameters[name]
            parameter.copy_(self.theta[name])
            for direction, distance in zip(place.directions, place.distances, strict=True):
                if name in direction:
                    parameter.add_(direction[name], alpha=distance)
        self._at = place

    def measure(
        self, places: Sequence[Place], batches: Iterable[Batch], advance: Callable[[int], None] = lambda number: None
    ) -> list[Total]:
        """Measure the network at several places in one pass through the images.

        Args:
            places: Where.
            batches: All images.
            advance: Called with the number of images after each batch at each place.

        Returns:
            What it makes of all images, at each place.
        """
        totals = [Total(0.0, 0) for _ in places]
        row = 0
        with torch.inference_mode():
            for images, labels in batches:
                if self._mode == "batch":
                    check_batch(len(labels), row)
                given = as_input(images, self._dtype)
                for index, place in enumerate(places):
                    self.move(place)
                    totals[index] = totals[index].plus(self._of_batch(given, labels, row))
                    advance(len(labels))
                row += len(labels)
        return totals

    def _of_batch(self, images: torch.Tensor, labels: torch.Tensor, row: int) -> Total:
        def run(rows: slice) -> Total:
            # a copy, since a model may work in place on its input
            outputs = self.network(images[rows].clone())
            return self._judge(outputs, labels[rows], row + rows.start)

        total = Total(0.0, 0)
        with kept_random_state(images.device):
            # with batch statistics images influence each other; the mean of a given loss may be no mean over images
            divisible = self._mode != "batch" and self._loss is None
            whole = slice(0, len(labels))
            for part in in_halves(run, len(labels), images.device) if divisible else [run(whole)]:
                total = total.plus(part)
        return total

    def _judge(self, outputs: torch.Tensor, labels: torch.Tensor, row: int) -> Total:
        if self._loss is not None:
            return Total(_given_loss(self._loss, outputs, labels) * len(labels), _num_correct(outputs, labels))
        if outputs.ndim != 2 or len(outputs) != len(labels):
            raise ResprobeError(
                f"outputs: expected logits ({len(labels)}, classes), got shape {tuple(outputs.shape)}; give a network "
                "that returns logits, or a loss"
            )
        check_labels(labels, outputs.shape[1], row)
        correct, image_loss = judge(outputs, labels)
        return Total(float(image_loss.sum()), int(correct.sum()))


def _given_loss(loss: Loss, outputs: torch.Tensor, labels: torch.Tensor) -> float:
    value = loss(outputs, labels)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise ResprobeError(
            f"loss: expected one number, got {getattr(value, 'shape', type(value).__name__)}; return the mean over the "
            "batch"
        )
    return float(value)


def _num_correct(outputs: torch.Tensor, labels: torch.Tensor) -> int:
    """Count what is right where the outputs are logits, under a loss of which nothing is known."""
    if outputs.ndim != 2 or len(outputs) != len(labels) or outputs.shape[1] <= int(labels.max()) or labels.min() < 0:
        return NOT_COUNTED
    right = (outputs.argmax(1) == labels) & (outputs < math.inf).all(1)
    return int(right.sum())
