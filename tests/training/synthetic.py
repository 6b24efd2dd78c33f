"""Synthetic results of trainings."""

import numpy as np
import xarray as xr

from tests.synthetic_results import Asked


def training(asked: Asked) -> xr.Dataset:
    epoch = np.arange(1, 41)
    train_loss = (2.3 if asked.residual else 2.35) * np.exp(-epoch / (6 if asked.residual else 40))
    train_loss = train_loss * np.exp(asked.rng.normal(0, 0.1, epoch.size))
    train_error = np.clip(train_loss / 2.6, 0, 0.9)
    variables = {
        "train_loss": train_loss,
        "train_error": train_error,
        "test_loss": train_loss + 0.1,
        "test_error": np.clip(train_error + 0.03, 0, 0.9),
        "learning_rate": np.where(epoch > 20, 0.01, 0.1),
    }
    return xr.Dataset({name: ("epoch", value) for name, value in variables.items()}, {"epoch": epoch})
