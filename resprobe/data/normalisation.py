"""Per-channel normalisation of pixels: the constants in use, and how they are written as text."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from resprobe.errors import ResprobeError


@dataclass(frozen=True)
class Normalisation:
    """Channel-wise `(pixel - mean) / std`, on pixels scaled to [0, 1].

    Args:
        name: what the constants are called, `"custom"` where they were given as numbers.
        mean: one value per channel, in [0, 1].
        std: one value per channel, above 0.

    Raises:
        ResprobeError: there aren't as many stds as means, a mean is outside [0, 1], or a std isn't positive.
    """

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std):
            raise ResprobeError(
                f"normalisation {self.name}: expected as many means as stds, got {len(self.mean)} and "
                f"{len(self.std)}; give one of each per channel"
            )
        for mean in self.mean:
            if not 0 <= mean <= 1:
                raise ResprobeError(
                    f"normalisation {self.name}: expected means in [0, 1], got {mean}; "
                    "pixels are scaled to [0, 1], so divide constants for 0..255 by 255"
                )
        for std in self.std:
            if not (math.isfinite(std) and std > 0):
                raise ResprobeError(
                    f"normalisation {self.name}: expected finite stds above 0, got {std}; "
                    "use 1 to leave a channel's scale as it is"
                )

    def as_text(self) -> str:
        """Name and constants in full, for the attributes of a result.

        Returns:
            Text such as `"mnist (0.1307/0.3081)"`; what is in the brackets is read by `parse_normalisation`.
        """
        mean, std = (",".join(repr(value) for value in values) for values in (self.mean, self.std))
        return f"{self.name} ({mean}/{std})"

    def check_channels(self, num_channels: int) -> None:
        """Refuse images with another number of channels; `none` fits any.

        Args:
            num_channels: channels of the images.

        Raises:
            ResprobeError: the normalisation is for another number of channels.
        """
        if self != NORMALISATIONS["none"] and len(self.mean) != num_channels:
            raise ResprobeError(
                f"normalisation {self.name}: expected {num_channels} channels as in the images, "
                f"got constants for {len(self.mean)}; give one mean and one std per channel with --normalise"
            )

    def apply(self, pixels: Tensor) -> Tensor:
        """Normalise a batch.

        Args:
            pixels: (B, C, H, W) floating point, scaled to [0, 1]; left as it is.

        Returns:
            (B, C, H, W) new tensor of the same dtype, on the same device.

        Raises:
            ResprobeError: the normalisation is for another number of channels.
        """
        self.check_channels(pixels.shape[1])
        mean, std = (
            torch.tensor(values, dtype=pixels.dtype, device=pixels.device).view(-1, 1, 1)
            for values in (self.mean, self.std)
        )
        return pixels.sub(mean).div_(std)


NORMALISATIONS: dict[str, Normalisation] = {
    normalisation.name: normalisation
    for normalisation in (
        Normalisation("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        Normalisation("cifar10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        # The mean of the images' stds, not the std of all pixels: kuangliu/pytorch-cifar and descendants.
        Normalisation("cifar10-kuangliu", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        # Constants on the 0..255 scale: wide residual nets and tomgoldstein/loss-landscape.
        Normalisation(
            "cifar10-wideresnet",
            (125.3 / 255, 123.0 / 255, 113.9 / 255),
            (63.0 / 255, 62.1 / 255, 66.7 / 255),
        ),
        Normalisation("cifar100", (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        Normalisation("mnist", (0.1307,), (0.3081,)),
        Normalisation("fashion-mnist", (0.2860,), (0.3530,)),
        # Measured on the training split of `digits`.
        Normalisation("digits", (0.3052,), (0.3760,)),
        Normalisation("none", (0.0,), (1.0,)),
    )
}
"""Normalisations by name; `none` leaves pixels in [0, 1] and fits any number of channels."""
