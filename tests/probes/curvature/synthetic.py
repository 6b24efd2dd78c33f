"""Synthetic results of curvature."""

import numpy as np
import xarray as xr

from tests.synthetic_results import Asked


def curvature(asked: Asked) -> xr.Dataset:
    grid = np.linspace(-1.0, 13.0, 200)
    density = np.exp(-(grid**2) / 0.1) + 1e-5 * np.exp(-((grid - 12) ** 2) / 0.1)
    top = {"eigenvalue": [12.1, 6.4, 2.2], "residual": [1e-5, 1e-5, 0.5], "converged": [True, True, False]}
    return xr.Dataset(
        {name: ("rank", value) for name, value in top.items()}
        | {f"block_{name}": (("block", "rank"), [value, value]) for name, value in top.items()}
        | {"lowest_eigenvalue": -0.5, "lowest_residual": 1e-3, "lowest_converged": True}
        | {"trace": 30.7, "trace_sem": 4.5, "loss": 0.04, "grad_norm": 0.36, "num_params": 269434}
        | {"density": ("eigenvalue_grid", density / np.trapezoid(density, grid))}
        | {"block_trace": ("block", [20.0, 10.7]), "block_trace_sem": ("block", [0.0, 2.0])}
        | {"block_num_params": ("block", [60, 269374])},
        {"rank": [1, 2, 3], "eigenvalue_grid": grid, "block": ["stem", "head"]},
    ).assign_attrs({"bn_mode": "running"})
