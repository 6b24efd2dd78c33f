"""Synthetic results of the shapes that the analyses return, for tests that need results but no network."""

import math
from typing import Any

import numpy as np
import xarray as xr

from resprobe.results import label, make_attrs
from resprobe.results.intervals import wilson_interval

NUM_IMAGES = 500


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
    build = {
        "lesion": lambda: _lesion(rng, num_units, residual),
        "lesion-curve": lambda: _lesion_curve(rng, num_units, num_draws, sizes, residual),
        "reorder": lambda: _reorder(rng, num_units, num_draws, sizes),
        "paths": lambda: _paths(num_units),
        "smoothness": lambda: _smoothness(rng),
        "curvature": lambda: _curvature(),
        "surface": lambda: _surface(rng),
        "norm-lesion": lambda: _norm_lesion(rng, num_units),
        "training": lambda: _training(rng, residual),
        "gradients": lambda: _gradients(rng, num_units, residual),
        "responses": lambda: _responses(rng, num_units),
        "comparison": _comparison,
        "race": lambda: _race(rng),
        "costs": lambda: _costs(num_units),
        "gradient-gain": lambda: _gradient_gain(rng, num_units),
    }
    dataset = label(build[analysis](), analysis)
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
    dataset.attrs |= {
        "curvature": {"bn_mode": "running"},
        "smoothness": {"step_rule": "gradient"},
        "norm-lesion": {"replacement": "affine"},
        "surface": {"directions": "random", "direction_unit": "share of each filter's norm", "bn_mode": "running"},
    }.get(analysis, {})
    return dataset


def _unit_coords(num_units: int, residual: bool) -> dict[str, Any]:
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


def _baseline(num_wrong: int = 32) -> dict[str, Any]:
    return {
        "num_images": NUM_IMAGES,
        "baseline_num_correct": NUM_IMAGES - num_wrong,
        "baseline_loss": 4 * num_wrong / NUM_IMAGES,
        "baseline_error": num_wrong / NUM_IMAGES,
    }


def _measured(num_wrong: Any) -> dict[str, Any]:
    return {
        "num_correct": NUM_IMAGES - num_wrong,
        "loss": 4.0 * num_wrong / NUM_IMAGES,
        "error": num_wrong / NUM_IMAGES,
    }


def _lesion(rng: np.random.Generator, num_units: int, residual: bool) -> xr.Dataset:
    coords = _unit_coords(num_units, residual)
    rate = 0.064 + rng.exponential(0.02, num_units) if residual else rng.uniform(0.8, 0.92, num_units)
    rate = np.where(np.asarray(coords["shortcut"][1]) == "pad", rate + 0.3, rate)
    num_wrong = rng.binomial(NUM_IMAGES, rate)
    low, high = wilson_interval(num_wrong, NUM_IMAGES)
    baseline = _baseline()
    newly_right = num_wrong // 50
    variables = _measured(num_wrong) | {
        "num_newly_wrong": num_wrong - (NUM_IMAGES - baseline["baseline_num_correct"]) + newly_right,
        "num_newly_right": newly_right,
        "error_low": low,
        "error_high": high,
    }
    return xr.Dataset({name: ("unit", value) for name, value in variables.items()} | baseline, coords)


def _lesion_curve(
    rng: np.random.Generator, num_units: int, num_draws: int, sizes: tuple[int, ...], residual: bool
) -> xr.Dataset:
    level = 0.9 / (1 + np.exp(-(np.array(sizes) - (10 if residual else 1)) / 2))
    rate = np.clip(level[:, None] + rng.normal(0, 0.07, (len(sizes), num_draws)), 0.07, 0.9)
    ranks = rng.permuted(np.tile(np.arange(num_units), (len(sizes), num_draws, 1)), axis=2)
    variables = _measured(rng.binomial(NUM_IMAGES, rate))
    return xr.Dataset(
        {name: (("num_deleted", "draw"), value) for name, value in variables.items()}
        | {"deleted": (("num_deleted", "draw", "unit"), ranks < np.array(sizes)[:, None, None])}
        | _baseline(),
        {"num_deleted": list(sizes), "draw": np.arange(num_draws), **_unit_coords(num_units, residual)},
    )


def _reorder(rng: np.random.Generator, num_units: int, num_draws: int, sizes: tuple[int, ...]) -> xr.Dataset:
    swaps = np.array(sizes)[:, None]
    tau = np.clip(1 - 0.03 * swaps + rng.normal(0, 0.02, (len(sizes), num_draws)) * np.sqrt(swaps), -1, 1)
    rate = np.clip(0.064 + 1.2 * (1 - tau) ** 1.5 + rng.normal(0, 0.03, tau.shape), 0.05, 0.9)
    order = rng.permuted(np.tile(np.arange(num_units), (len(sizes), num_draws, 1)), axis=2)
    variables = _measured(rng.binomial(NUM_IMAGES, rate)) | {"kendall_tau": tau}
    return xr.Dataset(
        {name: (("num_swaps", "draw"), value) for name, value in variables.items()}
        | {"order": (("num_swaps", "draw", "unit"), order)}
        | _baseline(),
        {
            "num_swaps": list(sizes),
            "draw": np.arange(num_draws),
            "unit": _unit_coords(num_units, residual=True)["unit"],
        },
    )


def _training(rng: np.random.Generator, residual: bool) -> xr.Dataset:
    epoch = np.arange(1, 41)
    train_loss = (2.3 if residual else 2.35) * np.exp(-epoch / (6 if residual else 40))
    train_loss = train_loss * np.exp(rng.normal(0, 0.1, epoch.size))
    train_error = np.clip(train_loss / 2.6, 0, 0.9)
    variables = {
        "train_loss": train_loss,
        "train_error": train_error,
        "test_loss": train_loss + 0.1,
        "test_error": np.clip(train_error + 0.03, 0, 0.9),
        "learning_rate": np.where(epoch > 20, 0.01, 0.1),
    }
    return xr.Dataset({name: ("epoch", value) for name, value in variables.items()}, {"epoch": epoch})


def _paths(num_units: int) -> xr.Dataset:
    length = np.arange(num_units + 1)
    counts = np.array([math.comb(num_units, k) for k in length])
    norm = counts * 0.3**length / (1.3**num_units)
    mean = float((norm * length).sum() / norm.sum())
    by_length = {
        "coherent_grad_norm": norm,
        "coherent_grad_norm_sem": norm / 10,
        "grad_share": norm / norm.sum(),
        "path_share": counts / 2**num_units,
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
        {name: ("path_length", values) for name, values in by_length.items()} | single | _baseline(),
        {
            "path_length": length,
            "num_paths": ("path_length", counts),
            "length_in_layers": ("path_length", 2.0 * length),
        },
    )


def _layer_coords(num_units: int, prefix: str = "") -> dict[str, Any]:
    names = [f"{unit}.conv{i}" for unit in _unit_coords(num_units, residual=True)["unit"] for i in (1, 2)]
    number = 2 * num_units + 2
    return {
        "layer": ["conv1", *names, "linear"],
        f"{prefix}depth": ("layer", np.arange(1, number + 1)),
        f"{prefix}stage": ("layer", np.arange(number) * 3 // number + 1),
        "type": ("layer", ["Conv2d"] * (number - 1) + ["Linear"]),
    }


def _gradients(rng: np.random.Generator, num_units: int, residual: bool) -> xr.Dataset:
    units, layers = np.arange(num_units), np.arange(2 * num_units + 2)
    slope = 0.02 if residual else 0.5
    norms = np.exp(-slope * layers + rng.normal(0, 0.1, layers.size))
    by_unit = np.exp(-slope * units + rng.normal(0, 0.1, units.size))
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
        "grad_gain": np.exp(slope + 0.1 * rng.normal(size=units.size)),
        "grad_gain_sem": np.full(units.size, 0.01),
        "branch_ratio": 1 / (1 + units) if residual else np.full(units.size, np.nan),
        "branch_ratio_sem": np.full(units.size, 0.01 if residual else np.nan),
        "num_zero_grad": 0 * units,
        "num_nonfinite": 0 * units,
    }
    return xr.Dataset(
        {name: ("layer", values) for name, values in layer_values.items()}
        | {name: ("unit", values) for name, values in unit_values.items()}
        | _baseline(),
        {**_unit_coords(num_units, residual), **_layer_coords(num_units, "layer_")},
    )


def _responses(rng: np.random.Generator, num_units: int) -> xr.Dataset:
    coords = _layer_coords(num_units)
    number = len(coords["layer"])
    variables = {
        "response_mean": rng.normal(0, 0.1, number),
        "response_std": rng.uniform(0.5, 2, number),
        "num_responses": np.full(number, 1024 * NUM_IMAGES),
    }
    return xr.Dataset(
        {name: ("layer", values) for name, values in variables.items()} | {"num_images": NUM_IMAGES},
        {**coords, "measured_at": ("layer", [name.replace("conv", "bn") for name in coords["layer"]])},
    )


def _curvature() -> xr.Dataset:
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
    )


def _smoothness(rng: np.random.Generator) -> xr.Dataset:
    modes, step = ["running", "batch", "folded"], np.array([0, 0.05, 0.1, 0.2, 0.4])
    shape = (len(modes), 5, len(step))
    beta = np.array([50.0, 1.0, 400.0])[:, None, None] * rng.lognormal(0, 1, (3, 5, 1))
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
    )


def _surface(rng: np.random.Generator) -> xr.Dataset:
    x = np.linspace(-1, 1, 21)
    shape = (5, x.size)
    loss = 0.05 * np.exp(6 * abs(x) * rng.uniform(0.7, 1.3, (5, 1)))
    num_correct = NUM_IMAGES - np.round(np.clip(loss / 20, 0.064, 0.9) * NUM_IMAGES).astype(int)
    on_grid = {
        "loss": loss,
        "error": 1 - num_correct / NUM_IMAGES,
        "num_correct": num_correct,
        "done": np.ones(shape, bool),
    }
    return xr.Dataset(
        {name: (("draw", "direction_x"), values) for name, values in on_grid.items()}
        | {"num_nonfinite": 0}
        | _baseline(),
        {"draw": np.arange(5), "direction_x": x},
    )


def _costs(num_units: int) -> xr.Dataset:
    sizes = np.arange(1, 4)
    variables = {
        "num_params": 100_000 * num_units * sizes,
        "multiply_adds": 15_000_000 * num_units * sizes,
        "activation_bytes": 400_000 * num_units * sizes,
        "seconds_per_image": 0.001 * num_units * sizes,
        "seconds_per_image_median": 0.0012 * num_units * sizes,
        "paper_num_params": np.array([0.9e6, np.nan, 2.7e6]),
        "paper_multiply_adds": np.array([1.4e8, np.nan, np.nan]),
        "num_images": np.full(3, 2),
    }
    names = ["resnet20", "resnet38", "plain20"]
    return xr.Dataset({name: ("checkpoint", value) for name, value in variables.items()}, {"checkpoint": names})


def _gradient_gain(rng: np.random.Generator, num_units: int) -> xr.Dataset:
    kinds = [
        (family, norm, init, units)
        for family in ("plain", "resnet")
        for norm in ("none", "batch")
        for init in ("he", "lsuv")
        for units in (num_units // 3, num_units)
    ]
    shape = (len(kinds), 2, num_units)
    place = np.arange(1, num_units + 1)
    slope = np.array([{"plain": 0.4, "resnet": 0.05}[kind[0]] * (1 if kind[1] == "batch" else -1) for kind in kinds])
    units = np.array([kind[3] for kind in kinds])
    log = np.where(place <= units[:, None], slope[:, None] * (units[:, None] - place), np.nan)
    norms = np.exp(log[:, None] + 0.05 * rng.normal(size=shape) * (place < units[:, None])[:, None])
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


def _norm_lesion(rng: np.random.Generator, num_layers: int) -> xr.Dataset:
    lesion = _lesion(rng, num_layers, residual=True)
    names = ["num_correct", "num_newly_wrong", "num_newly_right", "loss", "error", "error_low", "error_high"]
    return xr.Dataset(
        {name: ("layer", lesion[name].values) for name in names} | _baseline(),
        {
            "layer": [f"{unit}.bn1" for unit in lesion.unit.values],
            "depth": ("layer", lesion.depth.values),
            "stage": ("layer", lesion.stage.values),
            "type": ("layer", ["BatchNorm2d"] * num_layers),
            "num_channels": ("layer", 16 * lesion.stage.values),
        },
    )


def _comparison() -> xr.Dataset:
    floats = {"logit_change": [0.0, 1.5, 2e-6], "largest_logit": [13.0, 12.0, 13.0], "loss": [0.02, 0.03, 0.02]}
    floats |= {"reference_loss": [0.02] * 3, "error": [0.01, 0.012, 0.01], "reference_error": [0.01] * 3}
    counts = {"num_identical": [NUM_IMAGES, 0, 12], "num_changed": [0, 1, 0]}
    return xr.Dataset(
        {name: ("bn_mode", values) for name, values in (floats | counts).items()} | {"num_images": NUM_IMAGES},
        {"bn_mode": ["running", "batch", "folded"]},
    )


def _race(rng: np.random.Generator) -> xr.Dataset:
    epochs = np.arange(41)
    loss = np.array([0.1, 2.3])[:, None] * np.exp(-0.05 * epochs + rng.normal(0, 0.1, (2, 41)))
    values = {"train_loss": loss, "test_loss": 1.2 * loss, "train_error": loss / 3, "test_error": loss / 2.5}
    return xr.Dataset(
        {name: (("net", "epoch"), value) for name, value in values.items()}
        | {"learning_rate": ("epoch", [np.nan] + [0.025] * 40)},
        {"net": ["plain56, measured", "plain56, random"], "layers": ("net", [56, 56]), "epoch": epochs},
    )
