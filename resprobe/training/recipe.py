"""How a network is trained: the numbers, their defaults per dataset, the learning rate per epoch."""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from resprobe.errors import ResprobeError
from resprobe.networks.residual import Architecture

SCHEDULES = ("step", "cosine")
PRECISIONS = ("float32", "bfloat16")


LARGEST_SEED = 2**63 - 1  # what torch.Generator takes


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything besides network and data that decides the outcome of a training.

    The defaults are those of He et al. 2015 (arXiv 1512.03385), section 4.2, for CIFAR-10: 64,000
    iterations of 128 images are 164 epochs.

    Args:
        epochs: Passes over the training set.
        batch_size: Images per step; the last batch of an epoch may be smaller.
        learning_rate: Step size of SGD after the warm-up.
        momentum: Momentum of SGD.
        weight_decay: L2 penalty on all parameters, biases and batch normalisation included.
        warmup_epochs: Epochs at the beginning at a tenth of the learning rate. He et al. keep 110 layers
            there until the training error is below 80 %; a fixed length treats all depths alike.
        schedule: ``step`` (divided by 10 after half and again after three quarters of the epochs) or
            ``cosine`` (to zero along half a cosine).
        clip: Largest allowed norm of the whole gradient; 0 leaves it as it is.
        max_shift: Random shift of each training image, in pixels and in each direction; zeros come in.
        flip: Whether training images are mirrored left to right half of the time.
        precision: ``float32``, or ``bfloat16`` for mixed precision (`torch.autocast`).
        seed: Seed of the weights, the order of the images and the augmentation.

    Raises:
        ResprobeError: If a value is out of range.
    """

    epochs: int = 164
    batch_size: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    warmup_epochs: int = 1
    schedule: str = "step"
    clip: float = 0.0
    max_shift: int = 0
    flip: bool = False
    precision: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what can't be used."""
        for name, minimum in (
            ("epochs", 1),
            ("batch_size", 1),
            ("warmup_epochs", 0),
            ("max_shift", 0),
            ("seed", 0),
        ):
            if not isinstance(getattr(self, name), int):
                raise ResprobeError(f"{name}: expected a whole number, got {getattr(self, name)!r}; choose another")
            _check_number(name, getattr(self, name), minimum=minimum)
        if self.seed > LARGEST_SEED:
            raise ResprobeError(f"seed: expected a number from 0 to {LARGEST_SEED}, got {self.seed}; choose another")
        for name in ("momentum", "weight_decay", "clip"):
            _check_number(name, getattr(self, name), minimum=0)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ResprobeError(f"learning_rate: expected a number above 0, got {self.learning_rate}; try 0.1")
        for name, valid in (("schedule", SCHEDULES), ("precision", PRECISIONS)):
            if getattr(self, name) not in valid:
                raise ResprobeError(
                    f"{name}: expected {' or '.join(valid)}, got {getattr(self, name)!r}; choose one of them"
                )

    def as_dict(self) -> dict[str, bool | int | float | str]:
        """Plain values for a file.

        Returns:
            One entry per field.
        """
        return asdict(self)


# A shift by an eighth of the image's height, as 4 of 32 pixels on CIFAR. Digits and letters aren't mirrored.
# Digits: He et al.'s rate of 0.1 for 128 images, scaled to batches of 32 (Goyal et al. 2017, arXiv 1706.02677), which
# make the most steps of 1,297 images; the cosine, since 40 epochs are too few to spend a quarter at a hundredth of it.
_PER_DATASET: dict[str, dict[str, Any]] = {
    "digits": {
        "epochs": 40,
        "batch_size": 32,
        "learning_rate": 0.025,
        "schedule": "cosine",
        "warmup_epochs": 2,
        "max_shift": 1,
    },
    "mnist": {"epochs": 20, "max_shift": 2},
    "fashion-mnist": {"epochs": 40, "max_shift": 2, "flip": True},
    "cifar10": {"max_shift": 4, "flip": True},
    "cifar100": {"max_shift": 4, "flip": True},
}


def default_recipe(architecture: Architecture, data_name: str, **overrides: Any) -> Recipe:
    """The recipe for a network on a dataset.

    Batch, epochs and augmentation follow the dataset; data without a recipe of its own get that of CIFAR-10
    without augmentation, since what leaves a label unchanged isn't known. Networks without normalisation get
    a learning rate of 0.05 and a gradient clipped to norm 1. Depth changes nothing, so
    that networks of different depth are compared under one recipe.

    Args:
        architecture: The network's facts.
        data_name: The dataset's name.
        **overrides: Fields of `Recipe` that replace the defaults.

    Returns:
        The recipe.

    Raises:
        ResprobeError: If an override isn't a field of `Recipe`, or is out of range.

    Example:
        >>> from resprobe.networks.residual import parse_architecture
        >>> default_recipe(parse_architecture("plain20"), "digits", seed=3).epochs
        40
    """
    valid = [field.name for field in fields(Recipe)]
    unknown = [name for name in overrides if name not in valid]
    if unknown:
        raise ResprobeError(
            f"recipe: expected fields of {', '.join(valid)}, got {', '.join(unknown)}; correct the name"
        )
    values = dict(_PER_DATASET.get(data_name, {}))
    if architecture.norm == "none":
        values |= {"learning_rate": 0.05, "clip": 1.0}
    return replace(Recipe(), **(values | overrides))


def learning_rate(recipe: Recipe, epoch: int) -> float:
    """The step size of one epoch; it is constant within an epoch.

    Args:
        recipe: The recipe.
        epoch: The epoch, from 1.

    Returns:
        The learning rate.
    """
    if epoch <= recipe.warmup_epochs:
        return recipe.learning_rate / 10
    progress = (epoch - 1) / recipe.epochs
    if recipe.schedule == "cosine":
        return recipe.learning_rate * (1 + math.cos(math.pi * progress)) / 2
    num_drops = (progress >= 0.5) + (progress >= 0.75)
    return recipe.learning_rate / (1, 10, 100)[num_drops]


def _check_number(name: str, value: float, *, minimum: int) -> None:
    """Raise unless value is a finite number from minimum."""
    if not (math.isfinite(value) and value >= minimum):
        raise ResprobeError(f"{name}: expected a number from {minimum}, got {value}; choose another")
