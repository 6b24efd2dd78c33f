"""Runs of a model that leave PyTorch's random numbers as they were."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_random_state(device: torch.device) -> Iterator[None]:
    """Put PyTorch's random state back after a model has run: a forward pass may draw numbers, even in evaluation mode.

    Args:
        device: Where the model runs.

    Yields:
        Nothing.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
