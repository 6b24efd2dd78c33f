"""Normalisation by a mean image, as in the first papers on residual nets."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from resprobe.data.normalisation import Normalisation
from resprobe.errors import ResprobeError


@dataclass(frozen=True, eq=False)
class PixelNormalisation(Normalisation):
    """`(pixel - mean of that pixel) / std of the channel`, on pixels scaled to [0, 1].

    Args:
        name: `npz:` and the file.
        mean: the mean image, averaged over pixels: one value per channel.
        std: one value per channel, above 0.
        image: the mean image `(C, H, W)`.
    """

    image: Tensor

    def as_text(self) -> str:
        """Name and hash of the mean image, and the stds.

        Returns:
            Text for the attributes of a result.
        """
        digest = hashlib.sha256(self.image.numpy().tobytes()).hexdigest()[:12]
        return f"{self.name} (per pixel {digest}/{','.join(repr(value) for value in self.std)})"

    def apply(self, pixels: Tensor) -> Tensor:
        """Normalise a batch.

        Args:
            pixels: (B, C, H, W) floating point, scaled to [0, 1]; left as it is.

        Returns:
            (B, C, H, W) new tensor of the same dtype, on the same device.

        Raises:
            ResprobeError: the images have another shape than the mean image.
        """
        if pixels.shape[1:] != self.image.shape:
            raise ResprobeError(
                f"normalisation {self.name}: expected images of shape {tuple(self.image.shape)}, "
                f"got {tuple(pixels.shape[1:])}; give a mean image of the same size"
            )
        std = torch.tensor(self.std, dtype=pixels.dtype, device=pixels.device).view(-1, 1, 1)
        return pixels.sub(self.image.to(pixels)).div_(std)


def read_pixel_normalisation(path: Path) -> PixelNormalisation:
    """Read a mean image.

    Args:
        path: an npz file with `mean` (H, W, C), (C, H, W) or (H, W), on pixels scaled to [0, 1], and, if the images are
            to be scaled too, `std` (C,).

    Returns:
        The normalisation.

    Raises:
        ResprobeError: the file is missing or doesn't hold these arrays.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            mean = np.asarray(arrays["mean"], np.float32)
            std = np.asarray(arrays["std"], np.float64) if "std" in arrays else None
    except (OSError, KeyError, ValueError, TypeError, AttributeError, BadZipFile) as error:
        raise ResprobeError(
            f"normalisation npz:{path}: expected an npz file with an array mean, got none ({error}); "
            "save one with numpy.savez(FILE, mean=...)"
        ) from error
    if mean.ndim == 2:
        mean = mean[None]
    elif mean.ndim == 3 and mean.shape[0] not in (1, 3):
        mean = mean.transpose(2, 0, 1)
    if mean.ndim != 3 or not np.isfinite(mean).all() or mean.min() < 0 or mean.max() > 1:
        raise ResprobeError(
            f"normalisation npz:{path}: expected a mean image (H, W, C) in [0, 1], got shape {mean.shape}, values "
            f"{mean.min():g} to {mean.max():g}; divide values for 0..255 by 255"
        )
    stds = np.ones(len(mean)) if std is None else np.broadcast_to(std, (len(mean),))
    image = torch.from_numpy(np.ascontiguousarray(mean))
    means = tuple(float(value) for value in image.mean((1, 2)))
    return PixelNormalisation(f"npz:{path.name}", means, tuple(float(value) for value in stds), image)
