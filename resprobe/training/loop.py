"""One epoch of SGD, and the loss and error that are logged after it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resprobe.data import ImageData, Normalisation
from resprobe.training.augmentation import epoch_batches
from resprobe.training.recipe import Recipe, learning_rate

EVALUATION_BATCH_SIZE = 250


@dataclass(frozen=True)
class Split:
    """One split of a dataset in the memory of a device.

    Args:
        pixels: Images of shape (N, C, H, W), float32 in [0, 1].
        labels: Labels of shape (N,).
        normalisation: What the network's input is scaled by.
    """

    pixels: Tensor
    labels: Tensor
    normalisation: Normalisation

    @classmethod
    def from_data(cls, data: ImageData, device: torch.device) -> "Split":
        """Copy a split to a device.

        Args:
            data: The split.
            device: Where it goes.

        Returns:
            The split in memory.
        """
        pixels, labels = data.pixels()
        return cls(pixels.to(device), labels.to(device), data.normalisation)


def make_optimizer(network: nn.Module, recipe: Recipe) -> torch.optim.SGD:
    """SGD with momentum and weight decay on all parameters.

    Args:
        network: The network.
        recipe: Learning rate, momentum and weight decay are used.

    Returns:
        The optimizer.
    """
    return torch.optim.SGD(
        network.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )


def train_epoch(
    network: nn.Module,
    optimizer: torch.optim.SGD,
    split: Split,
    *,
    recipe: Recipe,
    epoch: int,
    report: Callable[[int], None],
) -> bool:
    """Go through the training set once, in place.

    Args:
        network: The network; left in training mode.
        optimizer: Its optimizer; the learning rate is set here.
        split: The training images.
        recipe: The recipe.
        epoch: The epoch, from 1.
        report: Called after each batch with the number of batches done in this epoch.

    Returns:
        Whether the loss of every batch was finite.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(recipe, epoch)
    network.train()
    device = split.pixels.device
    loss_sum = torch.zeros((), device=device)
    batches = epoch_batches(split.pixels, split.labels, recipe=recipe, epoch=epoch)
    for num_batches, (pixels, labels) in enumerate(batches, start=1):
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
            logits = network(split.normalisation.apply(pixels))
        loss = F.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if recipe.clip:
            nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
        optimizer.step()
        # Not read here: that would make a GPU wait after every batch. What isn't finite stays so in a sum.
        loss_sum += loss.detach()
        report(num_batches)
    return bool(torch.isfinite(loss_sum))


@torch.no_grad()
def evaluate(network: nn.Module, split: Split) -> tuple[float, float]:
    """Mean cross-entropy and error, with running statistics, in float32, on the images as they are.

    Args:
        network: The network; left in evaluation mode.
        split: The images.

    Returns:
        The loss in nat and the error as a fraction.
    """
    network.eval()
    loss_sum, num_wrong = 0.0, 0
    num_images = len(split.labels)
    for first in range(0, num_images, EVALUATION_BATCH_SIZE):
        rows = slice(first, first + EVALUATION_BATCH_SIZE)
        pixels, labels = split.pixels[rows], split.labels[rows]
        logits = network(split.normalisation.apply(pixels))
        loss_sum += F.cross_entropy(logits, labels, reduction="sum").item()
        num_wrong += int((logits.argmax(1) != labels).sum())
    return loss_sum / num_images, num_wrong / num_images


@contextmanager
def deterministic_cudnn(device: torch.device) -> Iterator[None]:
    """Let cuDNN choose deterministic algorithms within the block; without CUDA nothing happens.

    Args:
        device: The device that is used.

    Yields:
        Nothing.
    """
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    try:
        cudnn.deterministic, cudnn.benchmark = True, False
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
