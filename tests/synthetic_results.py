"""Synthetic results of the shapes that the analyses return, for tests that need results but no network.

Those of an analysis are made beside its tests, in `synthetic.py`, by a function of its name.
"""

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from resprobe.results import label, make_attrs
from resprobe.results.catalogue import CATALOGUE, name_of

NUM_IMAGES = 500


class Asked(NamedTuple):
    """What is asked of a synthetic result."""

    rng: np.random.Generator
    num_units: int
    num_draws: int
    sizes: tuple[int, ...]
    residual: bool


def synthetic_result(
    analysis: str,
    *,
    num_units: int = 9,
    num_draws: int = 30,
    sizes: tuple[int, ...] = (1, 2, 5, 10, 20),
    checkpoint: str = "resnet20.pt",
    residual: bool = True,
    seed: int = 0,
    data: str = "digits",
    **settings: Any,
) -> xr.Dataset:
    """Build a labelled result of realistic numbers: a residual net breaks slowly, a plain one at once."""
    rng = np.random.default_rng(seed)
    asked = Asked(rng, num_units, num_draws, sizes, residual)
    module = import_module(f"{CATALOGUE[analysis].package.replace('resprobe', 'tests')}.synthetic")
    made = getattr(module, name_of(analysis))(asked)
    dataset = label(made, analysis)
    dataset.attrs = make_attrs(
        analysis,
        title=f"{analysis} of {checkpoint}",
        references="Veit, Wilber, Belongie 2016",
        options={"seed": seed, "batch_size": 100, **settings},
        model={
            "checkpoint": checkpoint,
            "checkpoint_sha256": f"sha of {checkpoint}",
            "architecture": checkpoint.partition(".")[0],
            "facts": {"shortcut": {"value": "pad" if residual else "none", "how": "read"}},
        },
        data={
            "data": data,
            "data_sha256": f"sha of {data}",
            "split": "test",
            "num_images": NUM_IMAGES,
            "normalisation": "digits (0.3/0.4)",
        },
        device="cpu",
    )
    dataset.attrs |= made.attrs
    return dataset


def unit_coords(num_units: int, residual: bool) -> dict[str, Any]:
    stage = np.arange(num_units) * 3 // num_units + 1
    changes = np.diff(stage, prepend=1) > 0
    place_in_stage = [int((stage[:index] == number).sum()) for index, number in enumerate(stage)]
    return {
        "unit": [f"layer{number}.{place}" for number, place in zip(stage, place_in_stage, strict=True)],
        "depth": ("unit", np.arange(1, num_units + 1)),
        "stage": ("unit", stage),
        "kind": ("unit", ["residual" if residual else "plain"] * num_units),
        "shortcut": ("unit", np.where(changes, "pad", "identity") if residual else ["none"] * num_units),
        "bypass": ("unit", ["shortcut"] * num_units if residual else np.where(changes, "pad", "identity")),
        "branch_layers": ("unit", [2] * num_units),
        "num_params": ("unit", 4672 * 4 ** (stage - 1)),
        "status": ("unit", ["ok"] * num_units),
    }


def baseline(num_wrong: int = 32) -> dict[str, Any]:
    return {
        "num_images": NUM_IMAGES,
        "baseline_num_correct": NUM_IMAGES - num_wrong,
        "baseline_loss": 4 * num_wrong / NUM_IMAGES,
        "baseline_error": num_wrong / NUM_IMAGES,
    }


def measured(num_wrong: Any) -> dict[str, Any]:
    return {
        "num_correct": NUM_IMAGES - num_wrong,
        "loss": 4.0 * num_wrong / NUM_IMAGES,
        "error": num_wrong / NUM_IMAGES,
    }


def layer_coords(num_units: int, prefix: str = "") -> dict[str, Any]:
    names = [f"{unit}.conv{i}" for unit in unit_coords(num_units, residual=True)["unit"] for i in (1, 2)]
    number = 2 * num_units + 2
    return {
        "layer": ["conv1", *names, "linear"],
        f"{prefix}depth": ("layer", np.arange(1, number + 1)),
        f"{prefix}stage": ("layer", np.arange(number) * 3 // number + 1),
        "type": ("layer", ["Conv2d"] * (number - 1) + ["Linear"]),
    }
