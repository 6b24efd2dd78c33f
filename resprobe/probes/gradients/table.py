"""The tables of gradients."""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from rich.table import Table

from resprobe.showing.layout import empty_table, left_out, place_of, rounded, shown_rows


def gradients(dataset: xr.Dataset) -> tuple[Sequence[Table], str]:
    """Make the tables of the layers and of the units, and their summary."""
    return [_layers(dataset), _units(dataset)], " ".join(_summary(dataset))


def _layers(dataset: xr.Dataset) -> Table:
    table = empty_table(["layer", "stage"], ["gradient norm", "+-", "full", "weight norm", "ratio"])
    for index in shown_rows(dataset.sizes["layer"]):
        row = dataset.isel(layer=index)
        table.add_row(
            *place_of(row, "layer", "layer_stage"),
            rounded(row.weight_grad_norm),
            rounded(row.weight_grad_norm_sem),
            rounded(row.full_weight_grad_norm),
            rounded(row.weight_norm),
            rounded(row.grad_weight_ratio),
        )
    return table


def _units(dataset: xr.Dataset) -> Table:
    with_noise = "grad_correlation" in dataset
    numbers = ["gradient norm", "+-", "gain", "branch", *(["correlation"] if with_noise else [])]
    table = empty_table(["unit", "stage"], numbers)
    for index in shown_rows(dataset.sizes["unit"]):
        row = dataset.isel(unit=index)
        if str(row.status.item()) != "ok":
            table.add_row(*place_of(row, "unit", "stage"), *["-"] * len(numbers))
            continue
        table.add_row(
            *place_of(row, "unit", "stage"),
            rounded(row.activation_grad_norm),
            rounded(row.activation_grad_norm_sem),
            rounded(row.grad_gain),
            rounded(row.branch_ratio),
            *([rounded(row.grad_correlation)] if with_noise else []),
        )
    return table


def _summary(dataset: xr.Dataset) -> list[str]:
    norms = dataset.weight_grad_norm.values
    lines = [
        f"first layer {rounded(norms[0])}, last {rounded(norms[-1])} nat; gain of the {dataset.sizes['unit']} units "
        f"together {rounded(_product(dataset.grad_gain.values))}; BN mode {dataset.attrs['bn_mode']}"
        f"{left_out(max(dataset.sizes.values()))}"
    ]
    status = dataset.status.values
    unmeasured = status != "ok"
    if unmeasured.any():
        lines.append(f"Units without values: {unmeasured.sum()} ({status[unmeasured][0]}).")
    num_zero = int(dataset.num_zero_grad.max()) if dataset.sizes["unit"] else 0
    if num_zero:
        lines.append(f"Up to {num_zero} images have no gradient left and count in no gain.")
    num_images = int((dataset.num_nonfinite > 0).sum())
    num_layers = int((dataset.num_nonfinite_batches > 0).sum())
    if num_images or num_layers:
        lines.append(f"Not finite: somewhere at {num_images} units and {num_layers} layers.")
    return lines


def _product(values: np.ndarray) -> float:
    """Multiply what is known; through the logarithm, since it may be very small or large."""
    known = values[np.isfinite(values) & (values > 0)]
    return float(np.exp(np.log(known).sum())) if len(known) else float("nan")
