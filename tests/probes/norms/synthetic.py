"""Synthetic results of lesions of normalisations."""

import xarray as xr

from tests.probes.lesions.synthetic import lesion
from tests.synthetic_results import Asked, baseline


def norm_lesion(asked: Asked) -> xr.Dataset:
    units = lesion(asked._replace(residual=True))
    names = ["num_correct", "num_newly_wrong", "num_newly_right", "loss", "error", "error_low", "error_high"]
    return xr.Dataset(
        {name: ("layer", units[name].values) for name in names} | baseline(),
        {
            "layer": [f"{unit}.bn1" for unit in units.unit.values],
            "depth": ("layer", units.depth.values),
            "stage": ("layer", units.stage.values),
            "type": ("layer", ["BatchNorm2d"] * asked.num_units),
            "num_channels": ("layer", 16 * units.stage.values),
        },
    ).assign_attrs({"replacement": "affine"})
