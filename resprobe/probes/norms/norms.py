"""Lesions of batch normalisation: what a network gets right when one layer normalises otherwise."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from resprobe.engine.batches import Batch, CheckedBatches
from resprobe.engine.devices import device_of, exact_float32, precision_dtype
from resprobe.engine.moments import Moments
from resprobe.engine.reporting import baseline_variables, report
from resprobe.engine.scoring import Progress, Scores, score_versions
from resprobe.errors import ResprobeError
from resprobe.normalisation.batch_norm import batch_norms, check_batch
from resprobe.normalisation.folding import replace_module
from resprobe.results.intervals import wilson_interval
from resprobe.units.hooks import tapped
from resprobe.units.layers import Layer, layer_coordinates
from resprobe.units.structure.tracing import private_copy

REFERENCES = "Ioffe, Szegedy 2015, arXiv 1502.03167"
REPLACEMENTS = ("affine", "batch", "recomputed")


class _Layer(NamedTuple):
    """A batch normalisation that the model calls, and its stage."""

    name: str
    norm: _BatchNorm
    stage: int


def norm_lesion(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    replacement: str = "affine",
    precision: str = "float32",
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure the error after each batch normalisation is replaced, one at a time, the others as they are.

    A batch normalisation computes `y = gamma (x - mean) / sqrt(var + eps) + beta` for each channel, with the mean and
    variance of its training. It is replaced by

    - `affine`: `y = gamma x + beta`: no normalisation;
    - `batch`: the same with the mean and variance of the batch at hand;
    - `recomputed`: the same with the mean and variance over all the given images of what comes in there in the intact
      network: what stale statistics cost.

    Each replacement takes one forward pass over the images.

    Args:
        model: Maps images `(B, C, H, W)` to logits `(B, classes)`; it is not touched.
        batches: Normalised images and class indices `(B,)`, such as an `ImageData`. Read once; with `recomputed` twice.
            Their size matters to `batch` alone.
        replacement: `affine`, `batch` or `recomputed`.
        precision: `float32`, `float64` or `bfloat16`.
        provenance: As in `resprobe.lesion`.
        progress: As in `resprobe.lesion`.

    Returns:
        `num_correct`, `num_newly_wrong`, `num_newly_right` (layer), counts of images; `loss` (layer) in nats; `error`,
        `error_low`, `error_high` (layer), fractions with the 95 % Wilson interval; the baseline as in
        `resprobe.lesion`. Coords of `layer`: `depth`, `stage` (a new one begins where the images get smaller),
        `type`, `num_channels`.

    Raises:
        ResprobeError: If the model calls no batch normalisation, an option is unknown, data and model don't fit, a
            batch has one image with `batch`, or the batches can't be read twice with `recomputed`.

    References:
        Ioffe, Szegedy 2015, Batch Normalization (arXiv 1502.03167), algorithm 1 and 2, for the statistics.

    Example:
        >>> import resprobe
        >>> net = resprobe.build(resprobe.parse_architecture("resnet8", in_channels=1))
        >>> digits = resprobe.open_data("digits", num_images=20)
        >>> resprobe.norm_lesion(net, digits).sizes["layer"]
        7
    """
    if replacement not in REPLACEMENTS:
        raise ResprobeError(f"replacement: expected {', '.join(REPLACEMENTS)}, got {replacement!r}; choose one of them")
    dtype = precision_dtype(precision)
    data = CheckedBatches(batches, device_of(model))
    private = private_copy(model)
    intact = private.to(dtype=dtype)
    layers = _called_layers(intact, data.example.to(dtype), type(model).__name__)
    if replacement == "recomputed":
        replaced = _with_recomputed_statistics(intact, layers, batches, data.device, dtype)
    else:
        like = data.example.to(dtype)
        replaced = [
            _affine(layer.norm, like) if replacement == "affine" else _replaced(layer.norm, None, None)
            for layer in layers
        ]
    needs_batch = replacement == "batch"
    scores = score_versions(
        _in_turn(intact, layers, replaced, data if needs_batch else None),
        len(layers) + 1,
        data,
        precision=precision,
        divisible=not needs_batch and all(norm.running_mean is not None for norm in batch_norms(intact).values()),
        progress=progress,
    )
    dataset = report(
        "norm-lesion",
        {**_layer_variables(scores), **baseline_variables(scores)},
        _coordinates(layers),
        title=f"Error after batch normalisations were replaced ({replacement})",
        references=REFERENCES,
        options={"replacement": replacement, "precision": precision, "batch_size": data.batch_size},
        provenance=provenance,
        data=data,
    )
    dataset.attrs["replacement"] = replacement
    return dataset


def _in_turn(
    intact: nn.Module, layers: list[_Layer], replaced: list[_BatchNorm], data: CheckedBatches | None
) -> Callable[[torch.Tensor], Iterator[tuple[list[int], torch.Tensor]]]:
    """Give what runs a batch through the network, intact and replaced; with `data` each must have statistics."""

    def run(images: torch.Tensor) -> Iterator[tuple[list[int], torch.Tensor]]:
        if data is not None:
            check_batch(len(images), data.num_seen - len(images))
        yield [0], intact(images.clone())
        for version, (layer, norm) in enumerate(zip(layers, replaced, strict=True), start=1):
            replace_module(intact, layer.norm, norm)
            try:
                logits = intact(images.clone())
            finally:
                # also where memory runs out, after which the halves of the batch come here
                replace_module(intact, norm, layer.norm)
            yield [version], logits

    return run


def _called_layers(model: nn.Module, example: torch.Tensor, model_name: str) -> list[_Layer]:
    """Find the batch normalisations in the order of their first call."""
    norms = batch_norms(model)
    pixels: dict[str, int] = {}

    def see(name: str, entry: torch.Tensor | None) -> None:
        assert entry is not None
        pixels.setdefault(name, entry[0, 0].numel())

    with torch.inference_mode(), tapped(model, list(norms), before=see):
        model(example.clone())
    if not pixels:
        raise ResprobeError(
            f"model {model_name}: expected batch normalisations, got none that it calls; "
            "norm_lesion needs nn.BatchNorm modules"
        )
    layers: list[_Layer] = []
    smallest, stage = None, 0
    for name, number in pixels.items():
        if smallest is None or number < smallest:
            smallest, stage = number, stage + 1
        layers.append(_Layer(name, norms[name], stage))
    return layers


def _replaced(norm: _BatchNorm, mean: torch.Tensor | None, variance: torch.Tensor | None) -> _BatchNorm:
    """Copy a normalisation with other statistics; None for those of each batch."""
    changed = copy.deepcopy(norm)
    changed.running_mean, changed.running_var = mean, variance
    return changed


def _affine(norm: _BatchNorm, like: torch.Tensor) -> _BatchNorm:
    """Copy a normalisation as its affine part alone: mean 0, variance 1, no epsilon."""
    size = norm.num_features
    changed = _replaced(norm, like.new_zeros(size), like.new_ones(size))
    changed.eps = 0.0
    return changed


def _with_recomputed_statistics(
    model: nn.Module, layers: list[_Layer], batches: Iterable[Batch], device: torch.device, dtype: torch.dtype
) -> list[_BatchNorm]:
    """Copy normalisations with the statistics of what they read, in one pass over all images."""
    if iter(batches) is batches:
        raise ResprobeError(
            "batches: expected some that can be read twice, got an iterator; give a list, an ImageData or a DataLoader"
        )
    moments = {layer.name: Moments(layer.norm.num_features) for layer in layers}

    def see(name: str, entry: torch.Tensor | None) -> None:
        assert entry is not None
        moments[name].add(entry.transpose(0, 1).flatten(1).to("cpu", torch.float64).numpy())

    with torch.inference_mode(), exact_float32(), tapped(model, list(moments), before=see):
        for images, _ in CheckedBatches(batches, device):
            model(images.to(dtype, copy=True))
    changed = []
    for layer in layers:
        found = moments[layer.name]
        # the biased variance, with which the statistics of a batch normalise too
        mean, variance = (torch.from_numpy(a).to(device, dtype) for a in (found.mean, found.variance))
        changed.append(_replaced(layer.norm, mean, variance))
    return changed


def _layer_variables(scores: Scores) -> dict[str, Any]:
    counts = {name: getattr(scores, name)[1:] for name in ("num_correct", "num_newly_wrong", "num_newly_right")}
    low, high = wilson_interval(scores.num_images - counts["num_correct"], scores.num_images)
    rates = {"loss": scores.loss[1:], "error": scores.error[1:], "error_low": low, "error_high": high}
    return {name: ("layer", values) for name, values in (counts | rates).items()}


def _coordinates(layers: list[_Layer]) -> dict[str, Any]:
    described = [
        Layer(name=layer.name, type=type(layer.norm).__name__, parameters=(), depth=depth, stage=layer.stage)
        for depth, layer in enumerate(layers, start=1)
    ]
    channels = np.array([layer.norm.num_features for layer in layers], np.int64)
    return {**layer_coordinates(described), "num_channels": ("layer", channels)}
