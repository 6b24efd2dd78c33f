"""Synthetic results of gains of the gradient."""

import numpy as np
import xarray as xr

from tests.synthetic_results import Asked


def gradient_gain(asked: Asked) -> xr.Dataset:
    kinds = [
        (family, norm, init, units)
        for family in ("plain", "resnet")
        for norm in ("none", "batch")
        for init in ("he", "lsuv")
        for units in (asked.num_units // 3, asked.num_units)
    ]
    shape = (len(kinds), 2, asked.num_units)
    place = np.arange(1, asked.num_units + 1)
    slope = np.array([{"plain": 0.4, "resnet": 0.05}[kind[0]] * (1 if kind[1] == "batch" else -1) for kind in kinds])
    units = np.array([kind[3] for kind in kinds])
    log = np.where(place <= units[:, None], slope[:, None] * (units[:, None] - place), np.nan)
    norms = np.exp(log[:, None] + 0.05 * asked.rng.normal(size=shape) * (place < units[:, None])[:, None])
    return xr.Dataset(
        {
            "relative_grad_norm": (("checkpoint", "draw", "place"), norms),
            "predicted_grad_norm": (("checkpoint", "place"), np.exp(log)),
        },
        {
            "checkpoint": ["-".join(map(str, kind)) for kind in kinds],
            **{
                name: ("checkpoint", [kind[index] for kind in kinds])
                for index, name in enumerate(("family", "norm", "init"))
            },
            "num_layers": ("checkpoint", 2 * units + 2),
            "num_units": ("checkpoint", units),
            "draw": [0, 1],
            "place": place,
        },
    )
