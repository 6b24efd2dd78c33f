"""Lesion studies: what a network still gets right after units have been deleted."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
from torch import nn

from resprobe.engine.batches import CheckedBatches
from resprobe.engine.devices import device_of
from resprobe.engine.prefix_sharing import deleting, intact
from resprobe.engine.reporting import baseline_variables, check_sizes, drawn_variables, report, unit_coordinates
from resprobe.engine.scoring import Progress, Scores, fast_segments, score
from resprobe.results.intervals import wilson_interval
from resprobe.units import find
from resprobe.units.finding import as_names

REFERENCES = "Veit, Wilber, Belongie 2016, arXiv 1605.06431"


def lesion(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    units: Sequence[str] | None = None,
    shortcut: str | None = None,
    by: str | None = None,
    precision: str = "float32",
    per_image: bool = False,
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure the error after each residual unit or plain layer is deleted, one at a time.

    A residual unit `y = post(shortcut(a) + branch(a))` becomes `y = post(shortcut(a))`; a plain layer or block
    becomes `y = x`, subsampled and zero-padded where the shape changes (coord `bypass`). Batch normalisation
    uses its stored statistics. The part of the network before the deletion is computed once per batch.

    Args:
        model: Maps images `(B, C, H, W)` to logits `(B, classes)`; it is not touched.
        batches: Normalised images and class indices `(B,)`, such as an `ImageData` or a DataLoader; read once.
        units: Names of the units to delete; all by default. With `shortcut`, the modules that are the units.
        shortcut: For a model whose structure torch.fx can't read: what the caller knows of the modules in `units`,
            `identity`, `pad`, `outside` or `none`, as in `resprobe.units.find`.
        by: For nets without shortcuts, `layer` (default) or `block`.
        precision: `float32`, `float64`, or `bfloat16`, which is faster and can move errors by half a point.
        per_image: Also give `correct` and `image_loss` of every image.
        provenance: Where the model came from, such as `Checkpoint.provenance`.
        progress: Called with images times versions done, and the total where it is known.

    Returns:
        `num_correct`, `num_newly_wrong`, `num_newly_right` (unit), counts of images; `loss` (unit) in nats; `error`,
        `error_low`, `error_high` (unit), fractions with the 95 % Wilson interval; `baseline_num_correct`,
        `baseline_loss`, `baseline_error`, `num_images` (). A unit that can't be deleted has counts -1, NaN and a
        reason in `status`.

    Raises:
        ResprobeError: If the model has no units, or data and model don't fit.

    References:
        Veit, Wilber, Belongie 2016, Residual Networks Behave Like Ensembles of Relatively Shallow Networks
        (arXiv 1605.06431), section 4.1.

    Example:
        >>> import resprobe
        >>> net = resprobe.build(resprobe.parse_architecture("resnet8", in_channels=1))
        >>> digits = resprobe.open_data("digits", num_images=20)
        >>> resprobe.lesion(net, digits).sizes["unit"]
        3
    """
    units = as_names(units)
    data = CheckedBatches(batches, device_of(model))
    segments = find(model, data.example, by=by, units=units if shortcut else None, shortcut=shortcut)
    chosen = segments.select(units) if units is not None else list(range(len(segments.units)))
    deletable = [index for index in chosen if segments.units[index].status == "ok"]
    num_units = len(segments.units)
    plans = [intact(num_units), *(deleting(num_units, [index]) for index in deletable)]
    scores = score(
        fast_segments(segments, precision),
        plans,
        data,
        precision=precision,
        per_image=per_image,
        progress=progress,
    )
    # the rows of the result that were measured, in the order of the versions after the intact one
    rows = [chosen.index(index) for index in deletable]
    variables = {**_lesion_variables(scores, rows, len(chosen)), **baseline_variables(scores)}
    coords = unit_coordinates([segments.units[index] for index in chosen])
    if per_image:
        variables |= _image_variables(scores, rows, len(chosen))
        coords |= {"image": np.arange(scores.num_images), "label": ("image", np.concatenate(scores.labels))}
    return report(
        "lesion",
        variables,
        coords,
        title="Error after the deletion of single units",
        references=REFERENCES,
        options={
            "units": units,
            "shortcut": shortcut,
            "by": by,
            "precision": precision,
            "per_image": per_image,
        },
        provenance=provenance,
        data=data,
    )


def lesion_curve(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    num_deleted: Iterable[int],
    draws: int = 30,
    seed: int = 0,
    units: Sequence[str] | None = None,
    shortcut: str | None = None,
    by: str | None = None,
    precision: str = "float32",
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure the error after several units, drawn at random, are deleted together.

    Args:
        model: As in `lesion`.
        batches: As in `lesion`.
        num_deleted: Sizes of the lesions, from 0 to the number of units that can be deleted.
        draws: Random sets of units per size; each is drawn from `seed`, the size and its own number alone.
        seed: Seed of the draws.
        units: Names of the units that may be drawn; all by default. With `shortcut`, the modules that are the units.
        shortcut: As in `lesion`.
        by: As in `lesion`.
        precision: As in `lesion`.
        provenance: As in `lesion`.
        progress: As in `lesion`.

    Returns:
        `num_correct`, `loss`, `error` (num_deleted, draw); `deleted` (num_deleted, draw, unit); the baseline as in
        `lesion`.

    Raises:
        ResprobeError: If the model has no units, data and model don't fit, or a size is out of range.

    References:
        Veit, Wilber, Belongie 2016 (arXiv 1605.06431), section 4.2.
    """
    units = as_names(units)
    data = CheckedBatches(batches, device_of(model))
    segments = find(model, data.example, by=by, units=units if shortcut else None, shortcut=shortcut)
    chosen = segments.select(units) if units is not None else range(len(segments.units))
    deletable = [index for index in chosen if segments.units[index].status == "ok"]
    sizes = check_sizes("num_deleted", num_deleted, len(deletable), draws=draws, seed=seed)
    deleted = _draw_deletions(len(segments.units), sorted(deletable), sizes, draws, seed)
    num_units = len(segments.units)
    drawn = deleted.reshape(-1, num_units)
    plans = [intact(num_units), *(deleting(num_units, np.flatnonzero(row).tolist()) for row in drawn)]
    scores = score(fast_segments(segments, precision), plans, data, precision=precision, progress=progress)
    return report(
        "lesion-curve",
        {
            **drawn_variables(scores, ("num_deleted", "draw"), deleted.shape[:2]),
            "deleted": (("num_deleted", "draw", "unit"), deleted),
            **baseline_variables(scores),
        },
        {"num_deleted": sizes, "draw": np.arange(draws), **unit_coordinates(segments.units)},
        title="Error after the deletion of several random units",
        references=REFERENCES,
        options={
            "num_deleted": sizes,
            "draws": draws,
            "seed": seed,
            "by": by,
            "precision": precision,
            "units": units,
            "shortcut": shortcut,
        },
        provenance=provenance,
        data=data,
    )


def _lesion_variables(scores: Scores, rows: list[int], num_units: int) -> dict[str, Any]:
    """Arrange the deletions along `unit`; rows without one keep -1 or NaN."""
    counts = {}
    for name in ("num_correct", "num_newly_wrong", "num_newly_right"):
        counts[name] = np.full(num_units, -1, np.int64)
        counts[name][rows] = getattr(scores, name)[1:]
    loss = np.full(num_units, np.nan)
    loss[rows] = scores.loss[1:]
    num_wrong = np.where(counts["num_correct"] < 0, -1, scores.num_images - counts["num_correct"])
    low, high = wilson_interval(num_wrong, scores.num_images)
    error = np.where(num_wrong < 0, np.nan, num_wrong / scores.num_images)
    rates = {"loss": loss, "error": error, "error_low": low, "error_high": high}
    return {name: ("unit", values) for name, values in (counts | rates).items()}


def _image_variables(scores: Scores, rows: list[int], num_units: int) -> dict[str, Any]:
    correct = np.zeros((num_units, scores.num_images), bool)
    image_loss = np.full((num_units, scores.num_images), np.nan)
    correct[rows] = np.concatenate(scores.correct, axis=1)[1:]
    image_loss[rows] = np.concatenate(scores.image_loss, axis=1)[1:]
    return {"correct": (("unit", "image"), correct), "image_loss": (("unit", "image"), image_loss)}


def _draw_deletions(
    num_units: int, deletable: Sequence[int], num_deleted: Sequence[int], draws: int, seed: int
) -> npt.NDArray[np.bool_]:
    """Draw sets of units that can be deleted: bool `(sizes, draws, units)`."""
    deleted = np.zeros((len(num_deleted), draws, num_units), bool)
    for row, size in enumerate(num_deleted):
        for draw in range(draws):
            # a generator of its own for each draw: more sizes or draws leave the earlier ones as they were
            generator = np.random.default_rng([seed, size, draw])
            deleted[row, draw, generator.choice(deletable, size, replace=False)] = True
    return deleted
