"""Reordering studies: what a network still gets right after units have changed places."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
from torch import nn

from resprobe.engine.batches import CheckedBatches
from resprobe.engine.devices import device_of
from resprobe.engine.prefix_sharing import Plan, intact
from resprobe.engine.reporting import baseline_variables, check_sizes, drawn_variables, report, unit_coordinates
from resprobe.engine.scoring import Progress, fast_segments, score
from resprobe.errors import ResprobeError
from resprobe.units import Unit, WholeModel, find

REFERENCES = "Veit, Wilber, Belongie 2016, arXiv 1605.06431"


def reorder(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    num_swaps: Iterable[int],
    draws: int = 30,
    seed: int = 0,
    by: str | None = None,
    precision: str = "float32",
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure the error after randomly chosen pairs of units of equal shape have changed places.

    Each swap takes one of all pairs of units whose input and output have one and the same shape, with equal
    probability, and exchanges the places of the two; swaps follow one another, so a later one can undo an earlier one.

    Args:
        model: Maps images `(B, C, H, W)` to logits `(B, classes)`; it is not touched.
        batches: Normalised images and class indices `(B,)`; read once.
        num_swaps: Numbers of swaps, from 0 on.
        draws: Random orders per number of swaps; each is drawn from `seed`, the number and its own place alone.
        seed: Seed of the draws.
        by: For nets without shortcuts, `layer` (default) or `block`.
        precision: `float32`, `float64`, or `bfloat16`.
        provenance: Where the model came from, such as `Checkpoint.provenance`.
        progress: Called with images times versions done, and the total where it is known.

    Returns:
        `num_correct`, `loss` in nats, `error` and `kendall_tau` (num_swaps, draw); `order` (num_swaps, draw, unit): the
        index of the unit that stands at each position; the baseline as in `lesion`. `kendall_tau` is the rank
        correlation with the original order (scipy.stats.kendalltau), 1 for the original order itself.

    Raises:
        ResprobeError: If no two units have equal shape, data and model don't fit, or a number is out of range.

    References:
        Veit, Wilber, Belongie 2016 (arXiv 1605.06431), section 4.3.
    """
    data = CheckedBatches(batches, device_of(model))
    segments = find(model, data.example, by=by)
    if isinstance(segments, WholeModel):
        raise ResprobeError(
            f"reorder: expected a model that is a chain of units, got {type(model).__name__}, where "
            f"{segments.reason}; delete its units with lesion instead"
        )
    sizes = check_sizes("num_swaps", num_swaps, 1_000_000, draws=draws, seed=seed)
    order = _draw_orders(segments.units, sizes, draws, seed)
    num_units = len(segments.units)
    plans = [intact(num_units), *(_in_order(row) for row in order.reshape(-1, num_units))]
    scores = score(fast_segments(segments, precision), plans, data, precision=precision, progress=progress)
    dims = ("num_swaps", "draw")
    return report(
        "reorder",
        {
            **drawn_variables(scores, dims, order.shape[:2]),
            "kendall_tau": (dims, _kendall_tau(order)),
            "order": ((*dims, "unit"), order),
            **baseline_variables(scores),
        },
        {"num_swaps": sizes, "draw": np.arange(draws), **unit_coordinates(segments.units)},
        title="Error after units have changed places",
        references=REFERENCES,
        options={
            "num_swaps": sizes,
            "draws": draws,
            "seed": seed,
            "by": by,
            "precision": precision,
        },
        provenance=provenance,
        data=data,
    )


def _in_order(order: npt.NDArray[np.int64]) -> Plan:
    return tuple((int(index), True) for index in order)


def _draw_orders(units: Sequence[Unit], num_swaps: Sequence[int], draws: int, seed: int) -> npt.NDArray[np.int64]:
    """Draw orders of units: the index of the unit at each position, int `(sizes, draws, units)`."""
    pairs = [pair for pair in combinations(range(len(units)), 2) if _interchangeable(units, *pair)]
    if not pairs and max(num_swaps) > 0:
        raise ResprobeError(
            f"reorder: expected two units of equal shape, got {len(units)} units of different shapes; "
            "give a deeper model"
        )
    order = np.tile(np.arange(len(units)), (len(num_swaps), draws, 1))
    for row, swaps in enumerate(num_swaps):
        for draw in range(draws):
            generator = np.random.default_rng([seed, swaps, draw])
            for pair in generator.integers(len(pairs), size=swaps) if swaps else ():
                # Places of equal shape hold only units of that shape, so the pairs stay valid after every swap.
                places = list(pairs[pair])
                order[row, draw, places] = order[row, draw, places[::-1]]
    return order


def _interchangeable(units: Sequence[Unit], one: int, other: int) -> bool:
    shapes = {units[index].input_shape for index in (one, other)}
    return len(shapes | {units[index].output_shape for index in (one, other)}) == 1


def _kendall_tau(order: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    from scipy.stats import kendalltau

    original = np.arange(order.shape[-1])
    rows = order.reshape(-1, order.shape[-1])
    return np.array([kendalltau(original, row).statistic for row in rows]).reshape(order.shape[:-1])
