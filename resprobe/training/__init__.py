"""Training of the networks in `resprobe.networks`, with a log as a Dataset; resumable to the bit."""

from resprobe.training.recipe import Recipe, default_recipe
from resprobe.training.runs import train

__all__ = ["Recipe", "default_recipe", "train"]
