"""Synthetic results of costs."""

import numpy as np
import xarray as xr

from tests.synthetic_results import Asked


def costs(asked: Asked) -> xr.Dataset:
    sizes = np.arange(1, 4)
    variables = {
        "num_params": 100_000 * asked.num_units * sizes,
        "multiply_adds": 15_000_000 * asked.num_units * sizes,
        "activation_bytes": 400_000 * asked.num_units * sizes,
        "seconds_per_image": 0.001 * asked.num_units * sizes,
        "seconds_per_image_median": 0.0012 * asked.num_units * sizes,
        "paper_num_params": np.array([0.9e6, np.nan, 2.7e6]),
        "paper_multiply_adds": np.array([1.4e8, np.nan, np.nan]),
        "num_images": np.full(3, 2),
    }
    names = ["resnet20", "resnet38", "plain20"]
    return xr.Dataset({name: ("checkpoint", value) for name, value in variables.items()}, {"checkpoint": names})
