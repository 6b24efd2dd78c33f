"""Gradients by the weights of each layer and the activations of each unit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import xarray as xr
from torch import nn

from resprobe.engine.batches import CheckedBatches
from resprobe.engine.devices import device_of, exact_dtype
from resprobe.engine.reporting import report, unit_coordinates
from resprobe.engine.scoring import Progress
from resprobe.normalisation.batch_norm import check_bn_mode, has_batch_norm, use_batch_statistics
from resprobe.probes.gradients.capturing import is_visible
from resprobe.probes.gradients.passes import measure
from resprobe.units import Segments, Unit, WholeModel, find
from resprobe.units.layers import Layer, find_layers, layer_coordinates
from resprobe.units.structure.tracing import private_copy, without_hooks

REFERENCES = (
    "He, Zhang, Ren, Sun 2015, arXiv 1512.03385; Balduzzi et al. 2017, arXiv 1702.08591; "
    "De, Smith 2020, arXiv 2002.10444"
)


@torch.inference_mode(False)
@torch.enable_grad()
def gradients(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    bn_mode: str = "running",
    noise: bool = False,
    units: Sequence[str] | None = None,
    shortcut: str | None = None,
    by: str | None = None,
    precision: str = "float32",
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure the gradient at every layer and unit, in one forward and one backward pass per batch.

    L_i is the cross-entropy of image i in nats. With N images in all and n_b in batch b:

    - By the weights W of a layer (biases left out), `weight_grad_norm` = sum_b (n_b / N) ||d (mean of L_i over batch
      b) / dW||, the mean of what a training step on a batch sees: batches count by their images, and the value
      depends on the batch size, through the noise of the batches. `full_weight_grad_norm` = ||d (mean of L_i over
      all images) / dW|| does not.
    - By the output y of a unit, `activation_grad_norm` = mean over images of ||dL_i / dy_i||: not divided by the size
      of the batch. `grad_gain` = mean over images of ||dL_i / dx_i|| / ||dL_i / dy_i||, x the unit's input; an image
      whose gradient at y is exactly zero has none and is counted in `num_zero_grad`. `branch_ratio` = mean over
      images of ||branch(a_i)|| / ||shortcut(a_i)||, a = pre(x).
    - Standard errors come from the spread between batches (`resprobe.engine.averages.mean_and_sem`); they are NaN for
      a single batch.

    In mode `running` images don't influence each other, so that all but `weight_grad_norm`, its ratio and the
    standard errors are independent of batch size and order. In mode `batch` they do: dL_i is then the gradient of the
    sum of the losses of the batch. Values that are not finite stay in the means and are counted. In float32 gradients
    below 1e-45 are zero; use float64 for nets in which they vanish that far.

    Args:
        model: Maps images `(B, C, H, W)` to logits `(B, classes)`; it is not touched.
        batches: Normalised images and class indices `(B,)`, such as an `ImageData` or a DataLoader; read once.
        bn_mode: What batch normalisations use: `running`, their stored statistics, or `batch`, those of the batch; the
            stored ones are never updated. All else is in evaluation mode. A net that was never trained has no
            statistics worth the name and needs `batch`.
        noise: Also give `grad_correlation`, which takes a second backward pass.
        units: Names of the units to measure; all by default. With `shortcut`, the modules that are the units.
        shortcut: For a model whose structure torch.fx can't read: what the caller knows of the modules in `units`,
            `identity`, `pad`, `outside` or `none`, as in `resprobe.units.find`. Of `outside` units only the gradient
            at the output is known.
        by: For nets without shortcuts, `layer` (default) or `block`.
        precision: `float32` or `float64`.
        provenance: Where the model came from, such as `Checkpoint.provenance`.
        progress: Called with images done, and the total where it is known.

    Returns:
        `weight_grad_norm`, `full_weight_grad_norm` (layer) in nats, weights having no unit; `weight_norm` (layer);
        `grad_weight_ratio` (layer), `weight_grad_norm / weight_norm`, in nats; `num_nonfinite_batches` (layer). NaN
        where no gradient reaches a layer. `activation_grad_norm` (unit) in nats; `grad_gain`, `branch_ratio` (unit),
        ratios; `num_zero_grad`, `num_nonfinite` (unit), images. `branch_ratio` is NaN for plain layers, which have no
        shortcut. Each with `_sem` where it varies by batch. With `noise`, `grad_correlation` (unit): the mean over
        all pairs of images i < j of the cosine between dz_i / dx_i and dz_j / dx_j, z the first logit and x the unit's
        input; 1 where all images send the same gradient, 0 where gradients are like white noise (shattered). The loss
        would not do there: its gradients have different signs for different classes. `baseline_num_correct`,
        `baseline_loss`, `baseline_error`, `num_images` () as in `lesion`. The coords `depth` and `stage` are the
        units'; the layers have `layer_depth`, `layer_stage` and `type`. The attribute `bn_mode` names the mode.

    Raises:
        ResprobeError: If the model has no units, data and model don't fit, an option is unknown, or a batch of one
            image meets `bn_mode="batch"`.

    References:
        He et al. 2015 (arXiv 1512.03385), section 4.1, on gradient norms in plain nets. Balduzzi et al. 2017, The
        Shattered Gradients Problem (arXiv 1702.08591). De and Smith 2020 (arXiv 2002.10444), on the scale of
        residual branches.

    Example:
        >>> import resprobe
        >>> net = resprobe.build(resprobe.parse_architecture("resnet8", in_channels=1), seed=0)
        >>> digits = resprobe.open_data("digits", num_images=20)
        >>> resprobe.gradients(net, digits, bn_mode="batch").sizes["layer"]
        8
    """
    check_bn_mode(bn_mode)
    dtype = exact_dtype(precision)
    data = CheckedBatches(batches, device_of(model))
    found = find(model, data.example, by=by, units=units if shortcut else None, shortcut=shortcut)
    chosen = found.select(units) if units is not None else list(range(len(found.units)))
    layers = _layers_of(model, data.example)
    found = found.map(lambda module: _prepared(module, dtype, bn_mode))
    sums = measure(
        found,
        chosen,
        [layer.parameters for layer in layers],
        data,
        dtype=dtype,
        needs_company=bn_mode == "batch" and has_batch_norm(model),
        noise=noise,
        progress=progress,
    )
    return report(
        "gradients",
        sums.variables(),
        {
            **unit_coordinates([_described(found, position) for position in chosen]),
            **layer_coordinates(layers, prefix="layer_"),
        },
        title="Gradients by layer and unit",
        references=REFERENCES,
        options={
            "units": units,
            "shortcut": shortcut,
            "by": by,
            "precision": precision,
            "bn_mode": bn_mode,
            "noise": noise,
            "batch_size": data.batch_size,
        },
        provenance=provenance,
        data=data,
        bn_mode=bn_mode,
    )


def _layers_of(model: nn.Module, example: torch.Tensor) -> tuple[Layer, ...]:
    duplicate = without_hooks(private_copy(model))
    dtype = next((p.dtype for p in duplicate.parameters() if p.is_floating_point()), example.dtype)
    return find_layers(duplicate, example.to(dtype))


def _prepared(module: nn.Module, dtype: torch.dtype, bn_mode: str) -> nn.Module:
    """Bring a private piece to its number type and mode, laid out as convolutions on a CPU like it."""
    if bn_mode == "batch":
        use_batch_statistics(module)
    return module.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _described(model: Segments | WholeModel, position: int) -> Unit:
    """Give a unit with the status of this analysis: what can't be deleted may well be measured."""
    unit = model.units[position]
    if is_visible(model, position):
        return replace(unit, status="ok")
    if isinstance(model, WholeModel) and model.is_named:
        return unit
    return replace(unit, status=f"{model.reason}; name modules with units= and shortcut=")  # type: ignore[union-attr]
