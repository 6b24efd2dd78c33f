"""Synthetic results of gradients."""

import numpy as np
import xarray as xr

from tests.synthetic_results import Asked, baseline, layer_coords, unit_coords


def gradients(asked: Asked) -> xr.Dataset:
    units, layers = np.arange(asked.num_units), np.arange(2 * asked.num_units + 2)
    slope = 0.02 if asked.residual else 0.5
    norms = np.exp(-slope * layers + asked.rng.normal(0, 0.1, layers.size))
    by_unit = np.exp(-slope * units + asked.rng.normal(0, 0.1, units.size))
    layer_values = {
        "weight_grad_norm": norms,
        "weight_grad_norm_sem": norms / 10,
        "full_weight_grad_norm": norms / 2,
        "weight_norm": 5 + layers / 10,
        "grad_weight_ratio": norms / 5,
        "grad_weight_ratio_sem": norms / 50,
        "num_nonfinite_batches": 0 * layers,
    }
    unit_values = {
        "activation_grad_norm": by_unit,
        "activation_grad_norm_sem": by_unit / 10,
        "grad_gain": np.exp(slope + 0.1 * asked.rng.normal(size=units.size)),
        "grad_gain_sem": np.full(units.size, 0.01),
        "branch_ratio": 1 / (1 + units) if asked.residual else np.full(units.size, np.nan),
        "branch_ratio_sem": np.full(units.size, 0.01 if asked.residual else np.nan),
        "num_zero_grad": 0 * units,
        "num_nonfinite": 0 * units,
    }
    return xr.Dataset(
        {name: ("layer", values) for name, values in layer_values.items()}
        | {name: ("unit", values) for name, values in unit_values.items()}
        | baseline(),
        {**unit_coords(asked.num_units, asked.residual), **layer_coords(asked.num_units, "layer_")},
    )
