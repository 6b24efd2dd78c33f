"""Synthetic results of smoothness."""

import numpy as np
import xarray as xr

from tests.synthetic_results import Asked


def smoothness(asked: Asked) -> xr.Dataset:
    modes, step = ["running", "batch", "folded"], np.array([0, 0.05, 0.1, 0.2, 0.4])
    shape = (len(modes), 5, len(step))
    beta = np.array([50.0, 1.0, 400.0])[:, None, None] * asked.rng.lognormal(0, 1, (3, 5, 1))
    loss = 0.02 + beta * step**2
    step_norm = np.broadcast_to(2 * step, shape)
    along = {"loss": loss, "grad_change": beta * step_norm, "step_norm": step_norm}
    whole = {
        "effective_beta": beta[..., 0],
        "loss_range": np.ptp(loss, axis=-1),
        "grad_norm": np.full(shape[:2], 2.0),
        "num_nonfinite": np.zeros(shape[:2], int),
    }
    return xr.Dataset(
        {name: (("bn_mode", "batch", "step"), values) for name, values in along.items()}
        | {name: (("bn_mode", "batch"), values) for name, values in whole.items()},
        {"bn_mode": modes, "batch": np.arange(5), "batch_images": ("batch", [100] * 5), "step": step},
    ).assign_attrs({"step_rule": "gradient"})
