"""Synthetic results of paths."""

import math

import numpy as np
import xarray as xr

from tests.synthetic_results import Asked, baseline


def paths(asked: Asked) -> xr.Dataset:
    length = np.arange(asked.num_units + 1)
    counts = np.array([math.comb(asked.num_units, k) for k in length])
    norm = counts * 0.3**length / (1.3**asked.num_units)
    mean = float((norm * length).sum() / norm.sum())
    by_length = {
        "coherent_grad_norm": norm,
        "coherent_grad_norm_sem": norm / 10,
        "grad_share": norm / norm.sum(),
        "path_share": counts / 2**asked.num_units,
        "path_grad_rms": norm / counts,
        "path_grad_rms_sem": norm / counts / 10,
        "path_grad_mean": norm / counts / 2,
        "path_grad_mean_sem": norm / counts / 5,
    }
    single = {
        "full_grad_norm": 1.0,
        "full_grad_norm_sem": 0.1,
        "completeness_error": 1e-6,
        "effective_length_mean": mean,
        "effective_length_low": mean - 1,
        "effective_length_high": mean + 1,
        "effective_path_share": 0.1,
        "num_samples": 20,
    }
    return xr.Dataset(
        {name: ("path_length", values) for name, values in by_length.items()} | single | baseline(),
        {
            "path_length": length,
            "num_paths": ("path_length", counts),
            "length_in_layers": ("path_length", 2.0 * length),
        },
    )
