"""A checkpoint of a deeper network with the same function, and the proof that it is the same."""

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import xarray as xr

from resprobe.data import ImageData
from resprobe.engine.scoring import Progress
from resprobe.errors import ResprobeError
from resprobe.loading import Checkpoint
from resprobe.networks.construction import deepen, deeper_architecture, units_to_reach
from resprobe.networks.hashing import hash_tensors
from resprobe.networks.residual import Architecture, ResidualNetwork
from resprobe.probes.construction.logit_comparison import compare_logits
from resprobe.training.resuming import CHECKPOINT_FORMAT, FORMAT_VERSION

LARGEST_CHANGE = 1e-5  # of a logit, of the size of the largest one: what rounding explains


class Deepened(NamedTuple):
    """A checkpoint of a deeper network, and how its logits compare."""

    architecture: Architecture
    content: bytes
    comparison: xr.Dataset


def count_units(checkpoint: Checkpoint, units: int | None, to: str | None) -> int:
    """Find out how many units to add.

    Args:
        checkpoint: The network.
        units: The number, where it is given.
        to: Name of the deeper network, where that is given.

    Returns:
        The number.

    Raises:
        ResprobeError: If both or neither are given, or the network has none of the architectures that can be deepened.
    """
    if (units is None) == (to is None):
        got = "neither" if units is None else "both"
        raise ResprobeError(f"units: expected --units N or --to NAME, got {got}; give --units 18 or --to plain56")
    if not isinstance(checkpoint.architecture, Architecture):
        raise ResprobeError(
            f"{checkpoint.path}: expected a network of resprobe's own architectures, got {checkpoint.name} with other "
            "names of tensors; only these can be deepened"
        )
    if units is not None:
        deeper_architecture(checkpoint.architecture, units)
        return units
    assert to is not None
    return units_to_reach(checkpoint.architecture, to)


def deepen_checkpoint(
    checkpoint: Checkpoint,
    data: ImageData,
    num_units: int,
    *,
    statistics: str = "measured",
    seed: int = 0,
    progress: Progress | None = None,
) -> Deepened:
    """Deepen the network of a checkpoint, and check on images that its function is the same.

    Args:
        checkpoint: The network.
        data: Images for the statistics, if these are measured, and for the comparison.
        num_units: As in `deepen`.
        statistics: As in `deepen`.
        seed: As in `deepen`.
        progress: Called with images compared, and their number.

    Returns:
        The content of a checkpoint that `resprobe.load` opens and `resprobe train --init-from` goes on with; its entry
        `construction` says what it was made of and how its logits compare. And the result of `compare_logits`.

    Raises:
        ResprobeError: If the network can't be deepened, or a logit differs by more than rounding, 1e-5 of the largest.
    """
    deep = deepen(checkpoint.model, num_units, batches=data, statistics=statistics, seed=seed)
    made: dict[str, Any] = {
        "checkpoint": checkpoint.path.name,
        "checkpoint_sha256": checkpoint.sha256,
        "architecture": checkpoint.name,
        "num_units": num_units,
        "statistics": statistics,
        "seed": seed,
    }
    comparison = compare_logits(
        checkpoint.model,
        deep,
        data,
        provenance=checkpoint.provenance,
        settings={
            "deepened": deep.architecture.name,
            "deepened_sha256": hash_tensors(deep.state_dict()),
            **{name: made[name] for name in ("num_units", "statistics", "seed")},
        },
        progress=progress,
    )
    _check_same(comparison, checkpoint)
    return Deepened(deep.architecture, _content(checkpoint, deep, data, made, comparison), comparison)


def _content(
    checkpoint: Checkpoint, deep: ResidualNetwork, data: ImageData, made: Mapping[str, Any], comparison: xr.Dataset
) -> bytes:
    """Make the content of the deeper network's checkpoint."""
    content = {
        "format": CHECKPOINT_FORMAT,
        "format_version": FORMAT_VERSION,
        "state_dict": {name: tensor.contiguous() for name, tensor in deep.state_dict().items()},
        "architecture": deep.architecture.as_dict(),
        "data": checkpoint.data or data.name,
        "normalisation": {
            "name": data.normalisation.name,
            "mean": list(data.normalisation.mean),
            "std": list(data.normalisation.std),
        },
        # the function is the same, and so is its error
        **({} if checkpoint.claimed_error is None else {"test_error": checkpoint.claimed_error}),
        "construction": {**made, "compared_on": data.provenance, "comparison": _as_plain(comparison)},
        **{name: comparison.attrs[name] for name in ("resprobe_version", "torch_version")},
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _check_same(comparison: xr.Dataset, checkpoint: Checkpoint) -> None:
    """Refuse a deeper network of another function: by its stored statistics, or without normalisation."""
    row = comparison.isel(bn_mode=0)
    change, largest = float(row.logit_change), float(row.largest_logit)
    # not >, which a NaN would pass
    if not change <= LARGEST_CHANGE * largest:
        raise ResprobeError(
            f"{checkpoint.path}: expected the same logits after deepening, got a difference of {change:.3g} on logits "
            f"up to {largest:.3g}; nothing was written, look for weights or activations that are not finite"
        )


def _as_plain(comparison: xr.Dataset) -> dict[str, dict[str, float | int]]:
    """Give the variables by mode as plain numbers."""
    names = ("logit_change", "largest_logit", "num_identical", "num_changed", "error", "loss")
    return {
        str(mode): {name: comparison[name].sel(bn_mode=mode).item() for name in names}
        for mode in comparison.bn_mode.values
    }
