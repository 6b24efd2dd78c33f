"""From counts to a labelled Dataset with its provenance."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from resprobe.errors import ResprobeError
from resprobe.probes.batches import CheckedBatches
from resprobe.probes.scoring import Scores
from resprobe.results import label, make_attrs
from resprobe.segments import Unit


def report(
    analysis: str,
    variables: Mapping[str, Any],
    coords: Mapping[str, Any],
    *,
    title: str,
    references: str,
    options: Mapping[str, Any],
    provenance: Mapping[str, Any] | None,
    data: CheckedBatches,
    bn_mode: str = "running",
) -> xr.Dataset:
    """Make the result of an analysis: variables and coords with their labels, attributes with what they depend on.

    Args:
        analysis: Name of the analysis in the schema.
        variables: Data variables, as `xarray.Dataset` takes them.
        coords: Coordinates, likewise.
        title: One line for people.
        references: The papers that the analysis follows.
        options: Every option that the numbers depend on.
        provenance: Where the model came from.
        data: The batches, after the pass.
        bn_mode: The statistics that batch normalisations used.

    Returns:
        The result.
    """
    dataset = label(xr.Dataset(dict(variables), coords=dict(coords)), analysis)
    dataset.attrs = make_attrs(
        analysis,
        title=title,
        references=references,
        options=options,
        model=provenance,
        data=data.provenance,
        device=str(data.device),
    )
    dataset.attrs["bn_mode"] = bn_mode
    return dataset


def baseline_variables(scores: Scores) -> dict[str, Any]:
    """Give the variables of the intact model, version 0 of the scores, and the number of images."""
    return {
        "baseline_num_correct": scores.num_correct[0],
        "baseline_loss": scores.loss[0],
        "baseline_error": scores.error[0],
        "num_images": np.int64(scores.num_images),
    }


def drawn_variables(scores: Scores, dims: tuple[str, str], shape: tuple[int, ...]) -> dict[str, Any]:
    """Give `num_correct`, `loss` and `error` of the altered versions, arranged along size and draw."""
    return {name: (dims, getattr(scores, name)[1:].reshape(shape)) for name in ("num_correct", "loss", "error")}


def unit_coordinates(units: Sequence[Unit]) -> dict[str, Any]:
    """Describe units along the dim `unit`.

    Args:
        units: The units, in the order of the result.

    Returns:
        The coords `unit` (names), `depth`, `stage`, `kind`, `shortcut`, `bypass`, `branch_layers`, `num_params`,
        `status`.
    """
    texts = ("kind", "shortcut", "bypass", "status")
    counts = ("depth", "stage", "branch_layers", "num_params")
    return {
        "unit": [unit.name for unit in units],
        **{name: ("unit", [str(getattr(unit, name)) for unit in units]) for name in texts},
        **{name: ("unit", np.array([getattr(unit, name) for unit in units], np.int64)) for name in counts},
    }


def check_sizes(option: str, sizes: Sequence[int], largest: int, draws: int) -> None:
    """Refuse sizes of a random experiment that can't be drawn.

    Args:
        option: Name of the option, for the message.
        sizes: Numbers of deleted units or of swaps.
        largest: The largest one that makes sense.
        draws: Repetitions of each size.

    Raises:
        ResprobeError: If there is no size or no draw, a size is out of range, or one comes twice.
    """
    if not sizes or min(sizes) < 0 or max(sizes) > largest or len(set(sizes)) < len(sizes):
        raise ResprobeError(
            f"{option}: expected different whole numbers from 0 to {largest}, got "
            f"{', '.join(map(str, sizes)) or 'none'}; choose others"
        )
    if draws < 1:
        raise ResprobeError(f"draws: expected 1 or more, got {draws}; choose at least 20 for a band")
