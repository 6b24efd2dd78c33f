"""Tables of gradients and responses."""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from rich.table import Table

from resprobe.tables.layout import empty_table

MAX_ROWS = 30


def gradients(dataset: xr.Dataset) -> tuple[Sequence[Table], str]:
    """Make the tables of the layers and of the units, and their summary."""
    return [_layers(dataset), _units(dataset)], " ".join(_summary(dataset))


def responses(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of responses and its summary."""
    table = empty_table(["layer", "stage"], ["mean", "std", "measured at"])
    for index in _shown(dataset.sizes["layer"]):
        row = dataset.isel(layer=index)
        place = "" if row.measured_at.item() == row.layer.item() else str(row.measured_at.item())
        table.add_row(*_place(row, "layer", "stage"), _number(row.response_mean), _number(row.response_std), place)
    std = dataset.response_std
    finite = std.where(np.isfinite(std)).dropna("layer")
    if finite.size == 0:
        return table, "no layer has finite responses"
    least, most = (finite.isel(layer=int(pick)) for pick in (finite.values.argmin(), finite.values.argmax()))
    return table, (
        f"{std.size} layers, median std {_number(finite.median())}, least {_number(least)} ({least.layer.item()}), "
        f"most {_number(most)} ({most.layer.item()}){_left_out(std.size)}"
    )


def _layers(dataset: xr.Dataset) -> Table:
    table = empty_table(["layer", "stage"], ["gradient norm", "+-", "full", "weight norm", "ratio"])
    for index in _shown(dataset.sizes["layer"]):
        row = dataset.isel(layer=index)
        table.add_row(
            *_place(row, "layer", "layer_stage"),
            _number(row.weight_grad_norm),
            _number(row.weight_grad_norm_sem),
            _number(row.full_weight_grad_norm),
            _number(row.weight_norm),
            _number(row.grad_weight_ratio),
        )
    return table


def _units(dataset: xr.Dataset) -> Table:
    with_noise = "grad_correlation" in dataset
    numbers = ["gradient norm", "+-", "gain", "branch", *(["correlation"] if with_noise else [])]
    table = empty_table(["unit", "stage"], numbers)
    for index in _shown(dataset.sizes["unit"]):
        row = dataset.isel(unit=index)
        if str(row.status.item()) != "ok":
            table.add_row(*_place(row, "unit", "stage"), *["-"] * len(numbers))
            continue
        table.add_row(
            *_place(row, "unit", "stage"),
            _number(row.activation_grad_norm),
            _number(row.activation_grad_norm_sem),
            _number(row.grad_gain),
            _number(row.branch_ratio),
            *([_number(row.grad_correlation)] if with_noise else []),
        )
    return table


def _summary(dataset: xr.Dataset) -> list[str]:
    norms = dataset.weight_grad_norm.values
    lines = [
        f"first layer {_number(norms[0])}, last {_number(norms[-1])} nat; gain of the {dataset.sizes['unit']} units "
        f"together {_number(_product(dataset.grad_gain.values))}; BN mode {dataset.attrs['bn_mode']}"
        f"{_left_out(max(dataset.sizes.values()))}"
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


def _place(row: xr.Dataset, name: str, stage: str) -> tuple[str, str]:
    return str(row[name].item()), str(row[stage].item())


def _shown(number: int) -> list[int]:
    """Choose the rows of a long table: about so many, evenly spaced, the first and the last among them."""
    if number <= MAX_ROWS:
        return list(range(number))
    return [int(row) for row in np.unique(np.linspace(0, number - 1, MAX_ROWS).round())]


def _left_out(number: int) -> str:
    return f"; {MAX_ROWS} of {number} rows shown, all are in the file" if number > MAX_ROWS else ""


def _number(value: xr.DataArray | float) -> str:
    number = float(value)
    return "-" if np.isnan(number) else f"{number:.3g}"
