"""Synthetic results of reorderings."""

import numpy as np
import xarray as xr

from tests.synthetic_results import NUM_IMAGES, Asked, baseline, measured, unit_coords


def reorder(asked: Asked) -> xr.Dataset:
    swaps = np.array(asked.sizes)[:, None]
    tau = np.clip(
        1 - 0.03 * swaps + asked.rng.normal(0, 0.02, (len(asked.sizes), asked.num_draws)) * np.sqrt(swaps), -1, 1
    )
    rate = np.clip(0.064 + 1.2 * (1 - tau) ** 1.5 + asked.rng.normal(0, 0.03, tau.shape), 0.05, 0.9)
    order = asked.rng.permuted(np.tile(np.arange(asked.num_units), (len(asked.sizes), asked.num_draws, 1)), axis=2)
    variables = measured(asked.rng.binomial(NUM_IMAGES, rate)) | {"kendall_tau": tau}
    return xr.Dataset(
        {name: (("num_swaps", "draw"), value) for name, value in variables.items()}
        | {"order": (("num_swaps", "draw", "unit"), order)}
        | baseline(),
        {
            "num_swaps": list(asked.sizes),
            "draw": np.arange(asked.num_draws),
            "unit": unit_coords(asked.num_units, residual=True)["unit"],
        },
    )
