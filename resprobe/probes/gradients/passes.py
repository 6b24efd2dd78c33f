"""Runs one forward and one backward pass per batch, and adds up what it reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from resprobe.engine.averages import mean_and_sem
from resprobe.engine.batches import CheckedBatches, check_labels
from resprobe.engine.devices import exact_float32
from resprobe.engine.scoring import Progress
from resprobe.normalisation.batch_norm import check_batch
from resprobe.probes.gradients.capturing import Pass, Place, image_norms, run_captured
from resprobe.probes.gradients.cosines import PairCosines
from resprobe.units import Segments, WholeModel

Floats = npt.NDArray[np.float64]
# what is measured at a unit, image by image
QUANTITIES = ("activation_grad_norm", "grad_gain", "branch_ratio")


@dataclass
class GradientSums:
    """What has been added up over batches.

    Attributes:
        weight_norm: Norm of each layer's weights, `(layers,)`.
        full_gradients: For each weight the gradient of the summed loss, float64; None where none has come.
        sizes: Images of each batch.
        weight_grad_norms: For each batch `(layers,)`.
        unit_sums: For each quantity and batch the sum over images, `(units,)`.
        unit_counts: The same for the number of images summed.
        num_zero_grad: Images without gradient at a unit's output, `(units,)`.
        num_nonfinite: Images with anything not finite, `(units,)`.
        cosines: With noise, the correlation at each unit's input.
        loss_sum: Sum of the losses, in nats.
        num_correct: Images that the model gets right.
    """

    weight_norm: Floats
    full_gradients: list[list[torch.Tensor | None]]
    num_zero_grad: npt.NDArray[np.int64]
    num_nonfinite: npt.NDArray[np.int64]
    cosines: list[PairCosines]
    sizes: list[int] = field(default_factory=list)
    weight_grad_norms: list[Floats] = field(default_factory=list)
    unit_sums: dict[str, list[Floats]] = field(default_factory=lambda: {name: [] for name in QUANTITIES})
    unit_counts: dict[str, list[Floats]] = field(default_factory=lambda: {name: [] for name in QUANTITIES})
    loss_sum: float = 0.0
    num_correct: int = 0

    def variables(self) -> dict[str, Any]:
        """Give the variables of the result."""
        num_images = sum(self.sizes)
        norms = np.array(self.weight_grad_norms)
        counts = np.broadcast_to(np.array(self.sizes, np.float64)[:, None], norms.shape)
        mean, sem = mean_and_sem(norms * counts, counts)
        full = [_joint_norm(parts) / num_images for parts in self.full_gradients]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio, ratio_sem = mean / self.weight_norm, sem / self.weight_norm
        layer_values = {
            "weight_grad_norm": mean,
            "weight_grad_norm_sem": sem,
            "full_weight_grad_norm": np.array(full),
            "weight_norm": self.weight_norm,
            "grad_weight_ratio": ratio,
            "grad_weight_ratio_sem": ratio_sem,
            "num_nonfinite_batches": (~np.isfinite(norms)).sum(0),
        }
        unit_values: dict[str, Any] = {
            "num_zero_grad": self.num_zero_grad,
            "num_nonfinite": self.num_nonfinite,
        }
        for name in QUANTITIES:
            mean, sem = mean_and_sem(self.unit_sums[name], self.unit_counts[name])
            unit_values |= {name: mean, f"{name}_sem": sem}
        if self.cosines:
            unit_values["grad_correlation"] = np.array([cosines.mean for cosines in self.cosines])
        return {
            **{name: ("layer", values) for name, values in layer_values.items()},
            **{name: ("unit", values) for name, values in unit_values.items()},
            "baseline_num_correct": np.int64(self.num_correct),
            "baseline_loss": self.loss_sum / num_images,
            "baseline_error": 1 - self.num_correct / num_images,
            "num_images": np.int64(num_images),
        }


def measure(
    model: Segments | WholeModel,
    chosen: Sequence[int],
    layers: Sequence[Sequence[str]],
    batches: CheckedBatches,
    *,
    dtype: torch.dtype,
    needs_company: bool,
    noise: bool,
    progress: Progress | None,
) -> GradientSums:
    """Run forward and backward over all batches.

    Args:
        model: A private model of this dtype; its weights are made to need gradients.
        chosen: Positions of the units to measure.
        layers: Full names of the weights of each layer.
        batches: The images.
        dtype: Number type of the model.
        needs_company: Whether the statistics of a batch are used, for which one image is too few.
        noise: Also read the gradients of the first logit.
        progress: Called after each batch.

    Returns:
        The sums.

    Raises:
        ResprobeError: If a label is out of range, or a batch has one image where that is too few.
    """
    weights = _weights(model, layers)
    sums = GradientSums(
        weight_norm=np.array([_joint_norm(parts) for parts in weights]),
        full_gradients=[[None] * len(parts) for parts in weights],
        num_zero_grad=np.zeros(len(chosen), np.int64),
        num_nonfinite=np.zeros(len(chosen), np.int64),
        cosines=[PairCosines() for _ in chosen] if noise else [],
    )
    done = 0
    with exact_float32():
        for images, labels in batches:
            if needs_company:
                check_batch(len(labels), done)
            images, labels = _outside_inference(images), _outside_inference(labels)
            run = run_captured(model, chosen, _as_input(images, dtype))
            check_labels(labels, run.logits.shape[1], done)
            _add_batch(sums, run, weights, labels)
            done += len(labels)
            if progress is not None:
                progress(done, batches.num_images)
    return sums


def _add_batch(sums: GradientSums, run: Pass, weights: list[list[nn.Parameter]], labels: torch.Tensor) -> None:
    losses = F.cross_entropy(run.logits, labels, reduction="none")
    parameters = list({parameter: None for parts in weights for parameter in parts})
    inputs: Any = [*parameters, *run.points]
    found = torch.autograd.grad(losses.sum(), inputs, allow_unused=True, retain_graph=bool(sums.cosines))
    by_weight = dict(zip(parameters, found, strict=False))
    by_point = found[len(parameters) :]
    _add_weights(sums, [[by_weight[parameter] for parameter in parts] for parts in weights], len(labels))
    _add_units(sums, run.places, by_point, len(labels))
    if sums.cosines:
        _add_cosines(sums.cosines, run)
    sums.loss_sum += float(losses.detach().double().sum())
    finite = run.logits.isfinite().all(1)
    sums.num_correct += int(((run.logits.argmax(1) == labels) & finite).sum())


def _add_weights(sums: GradientSums, gradients: list[list[torch.Tensor | None]], num_images: int) -> None:
    sums.sizes.append(num_images)
    sums.weight_grad_norms.append(np.array([_joint_norm(parts) / num_images for parts in gradients]))
    for full, parts in zip(sums.full_gradients, gradients, strict=True):
        for index, gradient in enumerate(parts):
            if gradient is not None:
                before = full[index]
                full[index] = gradient.double() if before is None else before.add_(gradient)


def _add_units(
    sums: GradientSums, places: list[Place], by_point: Sequence[torch.Tensor | None], num_images: int
) -> None:
    # a point without gradient has no influence on the loss
    at_point = [
        np.zeros(num_images) if gradient is None else image_norms(gradient).cpu().numpy() for gradient in by_point
    ]
    batch_sums = {name: np.zeros(len(places)) for name in QUANTITIES}
    batch_counts = {name: np.zeros(len(places)) for name in QUANTITIES}
    for index, place in enumerate(places):
        values = _image_values(place, at_point)
        is_finite = np.ones(num_images, bool)
        for name, (value, counted) in values.items():
            batch_sums[name][index] = value[counted].sum()
            batch_counts[name][index] = counted.sum()
            is_finite &= np.isfinite(value) | ~counted
        sums.num_nonfinite[index] += (~is_finite).sum()
        if "grad_gain" in values:
            sums.num_zero_grad[index] += (~values["grad_gain"][1]).sum()
    for name in QUANTITIES:
        sums.unit_sums[name].append(batch_sums[name])
        sums.unit_counts[name].append(batch_counts[name])


def _image_values(place: Place, at_point: list[Floats]) -> dict[str, tuple[Floats, npt.NDArray[np.bool_]]]:
    """Give what is known at a unit: for each quantity the value of each image, and whether it counts."""
    values = {}
    if place.output is not None:
        output = at_point[place.output]
        every = np.ones(len(output), bool)
        values["activation_grad_norm"] = output, every
        if place.entry is not None:
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                values["grad_gain"] = at_point[place.entry] / output, output != 0
    if place.branch_ratio is not None:
        ratio = place.branch_ratio.cpu().numpy()
        values["branch_ratio"] = ratio, np.ones(len(ratio), bool)
    return values


def _add_cosines(cosines: list[PairCosines], run: Pass) -> None:
    """Add the gradients of the first logit by the units' inputs."""
    wanted = [place.entry for place in run.places if place.entry is not None]
    found = torch.autograd.grad(run.logits[:, 0].sum(), [run.points[entry] for entry in wanted], allow_unused=True)
    by_point = dict(zip(wanted, found, strict=True))
    for total, place in zip(cosines, run.places, strict=True):
        gradient = None if place.entry is None else by_point[place.entry]
        if gradient is not None:
            total.add(gradient, image_norms(gradient))


def _weights(model: Segments | WholeModel, layers: Sequence[Sequence[str]]) -> list[list[nn.Parameter]]:
    """Look the weights up in the pieces of a private model, and let them need gradients."""
    pieces = [model.model] if isinstance(model, WholeModel) else _pieces(model)
    known = {name: parameter for piece in pieces for name, parameter in piece.named_parameters()}
    weights = [[known[name] for name in names if name in known] for names in layers]
    for parts in weights:
        for parameter in parts:
            parameter.requires_grad_(True)
    return weights


def _pieces(model: Segments) -> list[nn.Module]:
    of_units = [part for unit in model.units for part in (unit.pre, unit.branch, unit.skip, unit.post)]
    return [model.stem, *of_units, model.head]


def _joint_norm(parts: Sequence[torch.Tensor | None]) -> float:
    """Give the norm of several tensors as one; NaN without any."""
    known = [part for part in parts if part is not None]
    if not known:
        return float("nan")
    return float(torch.stack([image_norms(part[None])[0] for part in known]).norm())


def _as_input(images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    layout = torch.channels_last if images.ndim == 4 else torch.contiguous_format
    return images.detach().to(dtype=dtype, memory_format=layout)


def _outside_inference(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor that was made in inference mode, since no gradient can pass by it."""
    return tensor.clone() if tensor.is_inference() else tensor
