"""Synthetic results of responses."""

import numpy as np
import xarray as xr

from tests.synthetic_results import NUM_IMAGES, Asked, layer_coords


def responses(asked: Asked) -> xr.Dataset:
    coords = layer_coords(asked.num_units)
    number = len(coords["layer"])
    variables = {
        "response_mean": asked.rng.normal(0, 0.1, number),
        "response_std": asked.rng.uniform(0.5, 2, number),
        "num_responses": np.full(number, 1024 * NUM_IMAGES),
    }
    return xr.Dataset(
        {name: ("layer", values) for name, values in variables.items()} | {"num_images": NUM_IMAGES},
        {**coords, "measured_at": ("layer", [name.replace("conv", "bn") for name in coords["layer"]])},
    )
