"""From counts to a labelled Dataset with its provenance."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import xarray as xr

from resprobe.engine.batches import CheckedBatches
from resprobe.engine.repeated_batches import RepeatedBatches
from resprobe.engine.scoring import Scores
from resprobe.errors import ResprobeError
from resprobe.results import label, make_attrs
from resprobe.units import Unit

LARGEST_SEED = 2**63 - 1


def report(
    analysis: str,
    variables: Mapping[str, Any],
    coords: Mapping[str, Any],
    *,
    title: str,
    references: str,
    options: Mapping[str, Any],
    provenance: Mapping[str, Any] | None,
    data: CheckedBatches | RepeatedBatches,
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


def check_sizes(option: str, sizes: Iterable[int], largest: int, *, draws: int, seed: int) -> list[int]:
    """Refuse sizes of a random experiment that can't be drawn.

    Args:
        option: Name of the option, for the message.
        sizes: Numbers of deleted units or of swaps.
        largest: The largest one that makes sense.
        draws: Repetitions of each size.
        seed: Seed of the draws.

    Returns:
        The sizes.

    Raises:
        ResprobeError: If there is no size or no draw, a size is out of range, one comes twice, or something is no
            whole number.
    """
    try:
        found = [operator.index(size) for size in sizes]
    except TypeError:
        raise ResprobeError(f"{option}: expected whole numbers, got {sizes!r}; give a list such as [1, 2, 5]") from None
    if not found or min(found) < 0 or max(found) > largest or len(set(found)) < len(found):
        raise ResprobeError(
            f"{option}: expected different whole numbers from 0 to {largest}, got {_shortened(found)}; choose others"
        )
    if not isinstance(draws, Integral) or draws < 1:
        raise ResprobeError(f"draws: expected 1 or more, got {draws}; choose at least 20 for a band")
    check_seed(seed)
    return found


def is_whole(value: object) -> bool:
    """Tell whether a value is a whole number; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_seed(seed: int) -> None:
    """Refuse what numpy or PyTorch takes no seed from, or netCDF can't hold.

    Args:
        seed: Seed of the draws.

    Raises:
        ResprobeError: If it is no whole number, negative or larger than 64 bits hold.
    """
    if not is_whole(seed) or seed < 0:
        raise ResprobeError(f"seed: expected a whole number from 0, got {seed}; choose another")
    if seed > LARGEST_SEED:
        raise ResprobeError(f"seed: expected at most {LARGEST_SEED} (2**63 - 1), got {seed}; choose another")


def _shortened(numbers: Sequence[int]) -> str:
    """List numbers, of many the first ones and the last."""
    if len(numbers) > 6:
        return f"{', '.join(map(str, numbers[:3]))} ... {numbers[-1]}"
    return ", ".join(map(str, numbers)) or "none"
