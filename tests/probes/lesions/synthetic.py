"""Synthetic results of lesions."""

import numpy as np
import xarray as xr

from resprobe.results.intervals import wilson_interval
from tests.synthetic_results import NUM_IMAGES, Asked, baseline, measured, unit_coords


def lesion(asked: Asked) -> xr.Dataset:
    coords = unit_coords(asked.num_units, asked.residual)
    rate = (
        0.064 + asked.rng.exponential(0.02, asked.num_units)
        if asked.residual
        else asked.rng.uniform(0.8, 0.92, asked.num_units)
    )
    rate = np.where(np.asarray(coords["shortcut"][1]) == "pad", rate + 0.3, rate)
    num_wrong = asked.rng.binomial(NUM_IMAGES, rate)
    low, high = wilson_interval(num_wrong, NUM_IMAGES)
    intact = baseline()
    newly_right = num_wrong // 50
    variables = measured(num_wrong) | {
        "num_newly_wrong": num_wrong - (NUM_IMAGES - intact["baseline_num_correct"]) + newly_right,
        "num_newly_right": newly_right,
        "error_low": low,
        "error_high": high,
    }
    return xr.Dataset({name: ("unit", value) for name, value in variables.items()} | intact, coords)


def lesion_curve(asked: Asked) -> xr.Dataset:
    level = 0.9 / (1 + np.exp(-(np.array(asked.sizes) - (10 if asked.residual else 1)) / 2))
    rate = np.clip(level[:, None] + asked.rng.normal(0, 0.07, (len(asked.sizes), asked.num_draws)), 0.07, 0.9)
    ranks = asked.rng.permuted(np.tile(np.arange(asked.num_units), (len(asked.sizes), asked.num_draws, 1)), axis=2)
    variables = measured(asked.rng.binomial(NUM_IMAGES, rate))
    return xr.Dataset(
        {name: (("num_deleted", "draw"), value) for name, value in variables.items()}
        | {"deleted": (("num_deleted", "draw", "unit"), ranks < np.array(asked.sizes)[:, None, None])}
        | baseline(),
        {
            "num_deleted": list(asked.sizes),
            "draw": np.arange(asked.num_draws),
            **unit_coords(asked.num_units, asked.residual),
        },
    )
