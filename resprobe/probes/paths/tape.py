"""One batch on its way through the segments, kept so that gradients can be sent back piece by piece."""

from dataclasses import dataclass

import torch

from resprobe.engine.batches import check_labels
from resprobe.units import Segment, Segments


@dataclass(frozen=True)
class _Passed:
    """The tensors of one unit: `x -> entry -> (branch, skip) -> total -> y`; a plain layer has no skip."""

    x: torch.Tensor
    entry: torch.Tensor
    branch: torch.Tensor
    skip: torch.Tensor | None
    total: torch.Tensor
    y: torch.Tensor


class Tape:
    """The activations of one batch, and the transposed Jacobian of each piece of the model at these activations.

    Every method that takes a gradient gives the product with one piece's transposed Jacobian; the same gradient may be
    sent through any number of times. A product costs the input gradients of the piece's layers and nothing else.

    Args:
        segments: The model; its parameters need no gradient.
        images: `(N, C, H, W)`.
        labels: Class indices `(N,)`.
        first_row: Row of the dataset at which they begin, for messages.

    Attributes:
        images: The images, as the leaf of the graph.
        labels: The class indices.
        logits: `(N, classes)`.
        scale: Norm of the gradient of each image's loss at its logits, float64 `(N,)`, in nats.
    """

    def __init__(self, segments: Segments, images: torch.Tensor, labels: torch.Tensor, first_row: int = 0) -> None:
        self.labels = labels
        self.images = images.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        self._stem_end = x = segments.stem(self.images)
        self._passed: list[_Passed] = []
        for unit in segments.units:
            passed = _pass(unit, x)
            self._passed.append(passed)
            x = passed.y
        self._last = x
        self.logits = segments.head(x)
        check_labels(labels, self.logits.shape[1], first_row)
        gradient = _loss_gradient(self.logits, labels)
        self.scale = torch.linalg.vector_norm(gradient, dim=1)
        # Of unit norm, so that images of tiny loss keep their digits; norms are multiplied by the scale at the end.
        self._cotangent = (gradient / self.scale.clamp_min(torch.finfo(torch.float64).tiny)[:, None]).to(self.logits)

    @property
    def num_units(self) -> int:
        """Number of units."""
        return len(self._passed)

    def start(self, at: str) -> torch.Tensor:
        """Give the tensor at which gradients arrive: the images, or with `first-unit` the first unit's input."""
        return self.images if at == "input" else self._stem_end

    def head(self) -> torch.Tensor:
        """Give the gradient of each image's loss at the last unit's output, divided by `scale`."""
        gradient = _product(self.logits, self._last, self._cotangent)
        return gradient.contiguous(memory_format=torch.channels_last) if gradient.ndim == 4 else gradient

    def whole(self, at: str) -> torch.Tensor:
        """Give the gradient of each image's loss by ordinary backpropagation, divided by `scale`."""
        return _product(self.logits, self.start(at), self._cotangent)

    def stem(self, gradient: torch.Tensor) -> torch.Tensor:
        """Send a gradient from the first unit's input to the images."""
        return _product(self._stem_end, self.images, gradient)

    def unit(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """Send a gradient through all of a unit."""
        return _product(self._passed[index].y, self._passed[index].x, gradient)

    def post(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """Send a gradient through what comes after a unit's sum."""
        return _product(self._passed[index].y, self._passed[index].total, gradient)

    def branch(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """Send a gradient through a unit's branch."""
        return _product(self._passed[index].branch, self._passed[index].entry, gradient)

    def skip(self, index: int, gradient: torch.Tensor) -> torch.Tensor | None:
        """Send a gradient through a unit's shortcut; None where there is none."""
        skip = self._passed[index].skip
        return None if skip is None else _product(skip, self._passed[index].entry, gradient)

    def pre(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """Send a gradient through what comes before branch and shortcut part."""
        return _product(self._passed[index].entry, self._passed[index].x, gradient)


def _pass(unit: Segment, x: torch.Tensor) -> _Passed:
    entry = unit.pre(x)
    branch = unit.branch(entry)
    skip = None if unit.kind == "plain" else unit.skip(entry)
    total = branch if skip is None else branch + skip
    return _Passed(x, entry, branch, skip, total, unit.post(total))


def _product(output: torch.Tensor, entry: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    if output is entry:
        return gradient
    (product,) = torch.autograd.grad(output, entry, gradient, retain_graph=True, materialize_grads=True)
    return product


def _loss_gradient(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Give the gradient of the cross-entropy, softmax minus one-hot, without cancellation at the label: float64."""
    probabilities = logits.detach().double().softmax(1)
    rows = torch.arange(len(labels), device=labels.device)
    others = probabilities.index_put((rows, labels), torch.zeros((), dtype=torch.float64, device=labels.device))
    return others.index_put((rows, labels), -others.sum(1))
