"""Synthetic results of surfaces of the loss."""

import numpy as np
import xarray as xr

from tests.synthetic_results import NUM_IMAGES, Asked, baseline


def surface(asked: Asked) -> xr.Dataset:
    x = np.linspace(-1, 1, 21)
    shape = (5, x.size)
    loss = 0.05 * np.exp(6 * abs(x) * asked.rng.uniform(0.7, 1.3, (5, 1)))
    num_correct = NUM_IMAGES - np.round(np.clip(loss / 20, 0.064, 0.9) * NUM_IMAGES).astype(int)
    on_grid = {
        "loss": loss,
        "error": 1 - num_correct / NUM_IMAGES,
        "num_correct": num_correct,
        "done": np.ones(shape, bool),
    }
    return xr.Dataset(
        {name: (("draw", "direction_x"), values) for name, values in on_grid.items()}
        | {"num_nonfinite": 0}
        | baseline(),
        {"draw": np.arange(5), "direction_x": x},
    ).assign_attrs({"directions": "random", "direction_unit": "share of each filter's norm", "bn_mode": "running"})
