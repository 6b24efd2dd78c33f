"""Synthetic results of comparisons and races."""

import numpy as np
import xarray as xr

from tests.synthetic_results import NUM_IMAGES, Asked


def comparison(asked: Asked) -> xr.Dataset:
    floats = {"logit_change": [0.0, 1.5, 2e-6], "largest_logit": [13.0, 12.0, 13.0], "loss": [0.02, 0.03, 0.02]}
    floats |= {"reference_loss": [0.02] * 3, "error": [0.01, 0.012, 0.01], "reference_error": [0.01] * 3}
    counts = {"num_identical": [NUM_IMAGES, 0, 12], "num_changed": [0, 1, 0]}
    return xr.Dataset(
        {name: ("bn_mode", values) for name, values in (floats | counts).items()} | {"num_images": NUM_IMAGES},
        {"bn_mode": ["running", "batch", "folded"]},
    )


def race(asked: Asked) -> xr.Dataset:
    epochs = np.arange(41)
    loss = np.array([0.1, 2.3])[:, None] * np.exp(-0.05 * epochs + asked.rng.normal(0, 0.1, (2, 41)))
    values = {"train_loss": loss, "test_loss": 1.2 * loss, "train_error": loss / 3, "test_error": loss / 2.5}
    return xr.Dataset(
        {name: (("net", "epoch"), value) for name, value in values.items()}
        | {"learning_rate": ("epoch", [np.nan] + [0.025] * 40)},
        {"net": ["plain56, measured", "plain56, random"], "layers": ("net", [56, 56]), "epoch": epochs},
    )
