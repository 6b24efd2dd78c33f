"""From a checkpoint file to a model, and what is known about it."""

from resprobe.loading.checkpoint import Checkpoint, load
from resprobe.loading.facts import Fact
from resprobe.loading.reading import locate

__all__ = ["Checkpoint", "Fact", "load", "locate"]
