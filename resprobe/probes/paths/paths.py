"""Gradient by path length: through how many residual branches does the gradient flow?"""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
from torch import nn

from resprobe.engine.batches import CheckedBatches
from resprobe.engine.devices import device_of, exact_float32
from resprobe.engine.reporting import check_seed, report
from resprobe.engine.scoring import Progress
from resprobe.errors import ResprobeError
from resprobe.probes.paths.measuring import measured, prepare
from resprobe.probes.paths.norms import TOLERANCES, Measurement
from resprobe.probes.paths.report import Totals, exact_counts, mean_layers, path_variables, stage_variables
from resprobe.probes.paths.samples import draw_paths
from resprobe.units import Segments, Unit, find
from resprobe.units.unravelled import count_paths, graph

REFERENCES = "Veit, Wilber, Belongie 2016, arXiv 1605.06431"
ESTIMATORS = ("exact", "signs", "sampled", "all")
PLACES = ("input", "first-unit")
PLAIN_NOTE = "a net without shortcuts has one path, through all of its layers"


def paths(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    estimator: str = "exact",
    at: str = "input",
    by_stage: bool = False,
    repeats: int = 10,
    samples: int = 20,
    seed: int = 0,
    by: str | None = None,
    precision: str = "float32",
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Split the gradient of each image's loss by the number of residual branches that its paths take.

    A path takes the branch or the shortcut of every residual unit; its length is the number of branches. At fixed
    activations the gradient is the sum over all 2^n paths. Three quantities describe it, which must not be mixed:

    - `coherent_grad_norm`: the norm of the sum over **all** paths of a length, exactly;
    - `path_grad_rms`: the root-mean-square norm of a **single** path of a length, over all of them and all images, by
      random signs;
    - `path_grad_mean`: the mean norm of a single path, over a random sample, as in Veit et al.

    The number of paths times either of the latter is an upper bound of the first that ignores cancellation.

    The gradient is that of the cross-entropy of one image in nats, not divided by the batch, with respect to the
    normalised image (or the first unit's input); batch normalisation uses its stored statistics. Norms are in nats
    per unit of that input. Each length carries its own power of two and each image its own scale, so that nothing
    underflows on the way back; a norm of 0 says that no gradient arrives.

    Args:
        model: As in `resprobe.lesion`: a chain of units.
        batches: As in `resprobe.lesion`; the size of the batches and the order of the images don't matter to the exact
            result.
        estimator: `exact`; `signs` or `sampled` to add one of the others; `all`. The exact split is always there, since
            it contains the self-test.
        at: Where the gradient arrives: `input`, or `first-unit` for the first unit's input.
        by_stage: Also split by the branches of each stage alone, the other stages passed as a whole.
        repeats: Repetitions with random signs; the standard error comes from them.
        samples: Sampled paths for each length, the same for all images; the standard error comes from them.
        seed: Seed of signs and samples.
        by: For nets without shortcuts, `layer` (default) or `block`. Such a net has one path, of full length.
        precision: `float32` or `float64`.
        provenance: As in `resprobe.lesion`.
        progress: As in `resprobe.lesion`.

    Returns:
        `coherent_grad_norm` (path_length), mean over images, with `_sem` over images; `full_grad_norm`, the mean norm
        of the gradient itself; `completeness_error`, the largest difference between the sum over all lengths and the
        gradient, relative to its norm, of any image; `grad_share` and `path_share` (path_length); the
        `effective_length_mean`, `_low` and `_high` (5 and 95 % of the coherent norms' sum) and
        `effective_path_share`, the share of all paths that have a length from low to high. With the other
        estimators `path_grad_rms`, `path_grad_mean` (path_length), each with `_sem`, and `num_samples`. By stage,
        `stage_grad_norm` (stage, stage_length) with `_sem`, and `stage_num_paths`. Coords `num_paths`, exact (as text
        where it exceeds 64 bits), and `length_in_layers`, the mean number of weight layers on these branches.

    Raises:
        ResprobeError: If the model is no chain of units, an option is out of range, data and model don't fit, or the
            self-test fails: `completeness_error` above 1e-3 in float32, 1e-10 in float64.

    References:
        Veit, Wilber, Belongie 2016 (arXiv 1605.06431), section 5, samples paths; the exact split is the same
        definition carried through all of them at once.

    Example:
        >>> import resprobe
        >>> net = resprobe.build(resprobe.parse_architecture("resnet8", in_channels=1)).eval()
        >>> digits = resprobe.open_data("digits", num_images=20)
        >>> resprobe.paths(net, digits).num_paths.values.tolist()
        [1, 3, 3, 1]
    """
    _check_options(estimator, at, precision, repeats, samples)
    check_seed(seed)
    with torch.inference_mode(False), torch.enable_grad(), exact_float32():
        data = CheckedBatches(batches, device_of(model))
        found = find(model, data.example.clone(), by=by)
        unravelled = graph(found)
        assert isinstance(found, Segments)
        segments = prepare(found, precision)
        num_paths = count_paths(unravelled)
        stages = _units_of_stages(found.units) if by_stage else {}
        optional = [index for index, unit in enumerate(found.units) if unit.kind == "residual"]
        drawn = samples if estimator in ("sampled", "all") else 0
        measurement = Measurement(
            at=at,
            lengths=list(num_paths),
            precision=precision,
            stages=list(stages.values()),
            signs=(seed, repeats if estimator in ("signs", "all") else 0),
            sampled=draw_paths(list(num_paths), optional, len(found.units), drawn, seed) if drawn else (),
        )
        totals = Totals(measurement, len(found.units))
        for norms in measured(segments, data, measurement, progress):
            totals.add(norms)
    variables = path_variables(totals, num_paths, measurement, drawn)
    if by_stage:
        variables |= stage_variables(totals, [count_paths(unravelled, stage=stage) for stage in stages])
    options = {"estimator": estimator, "at": at, "by_stage": by_stage, "repeats": repeats, "samples": samples}
    dataset = report(
        "paths",
        variables,
        _coordinates(num_paths, found.units, stages),
        title="Gradient by path length",
        references=REFERENCES,
        options={**options, "seed": seed, "by": by, "precision": precision},
        provenance=provenance,
        data=data,
    )
    dataset.attrs["note"] = "" if optional else PLAIN_NOTE
    return dataset


def _units_of_stages(units: Sequence[Unit]) -> dict[int, list[int]]:
    """Give each stage's units by their position, in the order of the stages."""
    stages = sorted({unit.stage for unit in units})
    return {stage: [index for index, unit in enumerate(units) if unit.stage == stage] for stage in stages}


def _coordinates(
    num_paths: Mapping[int, int], units: Sequence[Unit], stages: Mapping[int, list[int]]
) -> dict[str, Any]:
    coords: dict[str, Any] = {
        "path_length": np.array(list(num_paths), np.int64),
        "num_paths": ("path_length", exact_counts(list(num_paths.values()))),
        "length_in_layers": ("path_length", _layers(units)),
    }
    if stages:
        coords |= {"stage": list(stages), "stage_length": np.arange(max(map(len, stages.values())) + 1)}
    return coords


def _layers(units: Sequence[Unit]) -> npt.NDArray[np.float64]:
    optional = [unit.branch_layers for unit in units if unit.kind == "residual"]
    return mean_layers(optional, sum(unit.branch_layers for unit in units if unit.kind != "residual"))


def _check_options(estimator: str, at: str, precision: str, repeats: int, samples: int) -> None:
    for what, value, known in (
        ("estimator", estimator, ESTIMATORS),
        ("at", at, PLACES),
        ("precision of a gradient", precision, tuple(TOLERANCES)),
    ):
        if value not in known:
            raise ResprobeError(f"{what}: expected {', '.join(known)}, got {value!r}; choose one of them")
    for what, number in (("repeats", repeats), ("samples", samples)):
        if not isinstance(number, Integral) or number < 2:
            raise ResprobeError(f"{what}: expected 2 or more for a standard error, got {number}; choose at least 10")
