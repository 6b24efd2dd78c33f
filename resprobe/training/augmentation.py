"""Training images in random order, shifted and mirrored; every epoch reproducible on its own."""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from resprobe.training.recipe import Recipe


def epoch_batches(images: Tensor, labels: Tensor, *, recipe: Recipe, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Go through the training set once, in random order, augmented.

    Order and augmentation depend on `recipe.seed` and the epoch alone: the same call gives the same batches,
    whatever was drawn before, and the global random state is neither read nor changed.

    Args:
        images: Images of shape (N, C, H, W) in which 0 is what comes in at the border (black).
        labels: Labels of shape (N,).
        recipe: Seed, batch size, shift and flip are used.
        epoch: The epoch, from 1.

    Yields:
        Images of shape (B, C, H, W) and of `images`' type, and labels of shape (B,).
    """
    num_images, _, height, width = images.shape
    shift = recipe.max_shift
    generator = epoch_generator(recipe.seed, epoch)
    order = torch.randperm(num_images, generator=generator)
    corners = torch.randint(0, 2 * shift + 1, (num_images, 2), generator=generator)
    flipped = torch.rand(num_images, generator=generator) < (0.5 if recipe.flip else 0.0)
    for first in range(0, num_images, recipe.batch_size):
        chosen = order[first : first + recipe.batch_size]
        rows = corners[chosen, :1] + torch.arange(height)
        columns = corners[chosen, 1:] + torch.arange(width)
        columns = torch.where(flipped[chosen, None], columns.flip(1), columns)
        chosen_on_device = chosen.to(images.device)
        batch = F.pad(images[chosen_on_device], (shift, shift, shift, shift))
        yield _crop(batch, rows.to(images.device), columns.to(images.device)), labels[chosen_on_device]


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """The source of an epoch's randomness, from seed and epoch alone.

    Args:
        seed: The training's seed.
        epoch: The epoch, from 1.

    Returns:
        A generator on the CPU.
    """
    state = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


def _crop(batch: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Take rows (B, H) and columns (B, W) of each image of a batch (B, C, H', W')."""
    image = torch.arange(len(batch), device=batch.device)[:, None, None]
    return batch[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
