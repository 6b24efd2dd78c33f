"""Smoothness of the loss along the gradient: how far can one step be trusted?"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
from torch import nn

from resprobe.engine.batches import CheckedBatches
from resprobe.engine.devices import device_of, exact_dtype, exact_float32
from resprobe.engine.reporting import report
from resprobe.engine.scoring import Progress
from resprobe.errors import ResprobeError
from resprobe.normalisation.batch_norm import check_batch
from resprobe.normalisation.bn_modes import BN_MODES, in_mode, modes_of
from resprobe.probes.landscape.loss_lines import Line, Loss, measure_line
from resprobe.probes.landscape.step_rules import check_steps

REFERENCES = (
    "Santurkar, Tsipras, Ilyas, Madry 2018, arXiv 1805.11604; for the rule relative Li, Xu, Taylor, Studer, "
    "Goldstein 2018, arXiv 1712.09913"
)
DEFINITIONS = (
    "g: gradient of the batch's mean loss at theta. grad_change: ||g(theta_t) - g(theta)||. effective_beta: the "
    "largest ||g(theta_t) - g(theta)|| / ||theta_t - theta|| over the steps t > 0. loss_range: largest less smallest "
    "loss over all steps, t = 0 included."
)

Floats = npt.NDArray[np.float64]


def smoothness(
    model: nn.Module | Mapping[str, nn.Module],
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    bn_modes: Sequence[str] | None = None,
    steps: Sequence[float] | None = None,
    step_rule: str = "gradient",
    num_batches: int | None = 10,
    loss: Loss | None = None,
    precision: str = "float32",
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure how loss and gradient change along the negative gradient of each batch.

    For each batch `g` is the gradient of its mean loss with respect to all trainable parameters, at the model's own
    `theta`. For each step length t the weights move to `theta_t`:

    - rule `gradient`: `theta_t = theta - t g`, as in Santurkar et al.; t is a learning rate;
    - rule `relative`: each filter (output channel of a convolution, row of a linear map) moves by t times its own norm
      along its own negative gradient; biases and the scales and offsets of normalisations stay. So nets can be
      compared whose weights differ in scale. A convolution before a batch normalisation may be multiplied by any
      number without a change of what it computes; in the mode `batch` this rule sees no difference either.

    The effective beta of a batch is the largest `||g(theta_t) - g|| / ||theta_t - theta||` over the steps above 0. For
    `loss = theta' H theta / 2` it is `||H g|| / ||g||` at every step.

    The weights move on a private copy; nothing of the model changes. Each batch takes one forward and backward pass
    for each step and mode. What is not finite along the line stays so, in the maxima too, and is counted.

    Args:
        model: Maps images `(B, C, H, W)` to logits `(B, classes)`; it is not touched. Several models by name are
            measured on the same batches.
        batches: Normalised images and class indices `(B,)`, such as an `ImageData`. Their size matters to the result.
        bn_modes: What batch normalisation does: `running` (stored statistics), `batch` (those of the batch, none are
            stored), `folded` (that of `running`, absorbed by the weights: the same function, other parameters) or
            `none`, for a model without. Default: all that a model can have. Of several models each is measured in
            those that it can have.
        steps: Step lengths, increasing; 0 is always among them. Default: 0.05 to 0.4 for `gradient`, which is 1/2 to 4
            times the learning rate 0.1 of He et al. 2015, the range of Santurkar et al.; 0.005 to 0.1 for `relative`.
        step_rule: `gradient` or `relative`.
        num_batches: Use the first so many; None for all.
        loss: Gives the mean loss of a batch, one number, from `(outputs, labels)`. Default: cross-entropy in nats.
        precision: `float32` or `float64`.
        provenance: As in `resprobe.lesion`.
        progress: Called with images times passes done, and the total where it is known.

    Returns:
        `loss` in nats, `grad_change` and `step_norm` (bn_mode, batch, step); `effective_beta`, `loss_range`,
        `grad_norm` (bn_mode, batch), and `num_nonfinite`, the number of steps at which loss or gradient is not finite;
        coord `batch_images`. With several models all have the dim `checkpoint` first; where a model has no such mode
        they are NaN and -1.

    Raises:
        ResprobeError: If an option is out of range, no parameter is trainable, a model can't be folded, or a batch has
            one image in the mode `batch`.

    References:
        Santurkar, Tsipras, Ilyas, Madry 2018, How Does Batch Normalization Help Optimization? (arXiv 1805.11604),
        section 3.1 and figure 4. Filters and what stays: Li et al. 2018 (arXiv 1712.09913), section 4.

    Example:
        >>> import resprobe
        >>> net = resprobe.build(resprobe.parse_architecture("resnet8", in_channels=1), seed=0)
        >>> digits = resprobe.open_data("digits", num_images=20, batch_size=10)
        >>> result = resprobe.smoothness(net, digits, steps=[0.1, 0.2])
        >>> dict(result.loss.sizes)
        {'bn_mode': 3, 'batch': 2, 'step': 3}
    """
    lengths = check_steps(step_rule, steps)
    dtype = exact_dtype(precision)
    _check_num_batches(num_batches)
    models = {"": model} if isinstance(model, nn.Module) else dict(model)
    modes = _choose_modes(models, bn_modes)
    with torch.inference_mode(False), torch.enable_grad(), exact_float32():
        data = CheckedBatches(batches, device_of(next(iter(models.values()))))
        versions = {(name, mode): _version(models[name], mode, dtype, data.example.clone()) for name, mode in modes}
        measure = functools.partial(measure_line, steps=lengths, rule=step_rule, loss=loss)
        lines, sizes = _lines(versions, data, num_batches, dtype, measure, len(lengths), progress)
    chosen_modes = [mode for mode in BN_MODES if any(mode == used for _, used in versions)]
    dataset = report(
        "smoothness",
        _variables(lines, list(models), chosen_modes, len(lengths), squeezed=isinstance(model, nn.Module)),
        {
            "bn_mode": chosen_modes,
            "batch": np.arange(len(sizes)),
            "batch_images": ("batch", np.array(sizes, np.int64)),
            "step": np.array(lengths),
            **({} if isinstance(model, nn.Module) else {"checkpoint": list(models)}),
        },
        title="Smoothness of the loss",
        references=REFERENCES,
        options={
            "bn_modes": None if bn_modes is None else list(bn_modes),
            "steps": None if steps is None else [float(step) for step in steps],
            "step_rule": step_rule,
            "num_batches": num_batches,
            "batch_size": data.batch_size,
            "loss": None if loss is None else getattr(loss, "__name__", type(loss).__name__),
            "precision": precision,
        },
        provenance=provenance,
        data=data,
        bn_mode=", ".join(chosen_modes),
    )
    dataset.attrs |= {"num_images": sum(sizes), "step_rule": step_rule, "definitions": DEFINITIONS}
    return dataset


def _lines(
    versions: Mapping[tuple[str, str], nn.Module],
    data: CheckedBatches,
    num_batches: int | None,
    dtype: torch.dtype,
    measure: Callable[..., Line],
    num_steps: int,
    progress: Progress | None,
) -> tuple[list[dict[tuple[str, str], Line]], list[int]]:
    """Measure the line of each network in each mode for each batch; give also the sizes of the batches."""
    lines: list[dict[tuple[str, str], Line]] = []
    sizes: list[int] = []
    total = _total(data, num_batches)
    count = len(versions) * num_steps
    for images, labels in islice(data, num_batches):
        row = sum(sizes)
        if any(mode == "batch" for _, mode in versions):
            check_batch(len(labels), row)
        done = 0

        def advance(row: int = row, num_images: int = len(labels)) -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(row * count + done * num_images, None if total is None else total * count)

        found = {}
        for version, network in versions.items():
            # copies, since a model may work in place on its input, and autograd takes no inference tensors
            given = images.to(dtype, copy=True), labels.clone()
            found[version] = measure(network, *given, row=row, advance=advance)
        lines.append(found)
        sizes.append(len(labels))
    return lines, sizes


def _version(model: nn.Module, mode: str, dtype: torch.dtype, example: torch.Tensor) -> nn.Module:
    network = in_mode(model, mode, dtype, example)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ResprobeError(
            f"model {type(model).__name__}: expected trainable parameters, got none that require a gradient; "
            "call requires_grad_() on it"
        )
    return network


def _choose_modes(models: Mapping[str, nn.Module], bn_modes: Sequence[str] | None) -> list[tuple[str, str]]:
    """Pair each model with each of its modes that is asked for."""
    if not models:
        raise ResprobeError("models: expected at least one, got none; give a model or several by name")
    if bn_modes is None:
        return [(name, mode) for name, model in models.items() for mode in modes_of(model)]
    for mode in bn_modes:
        if mode not in BN_MODES:
            raise ResprobeError(f"bn_modes: expected {', '.join(BN_MODES)}, got {mode!r}; choose some of them")
    pairs = [(name, mode) for name, model in models.items() for mode in modes_of(model) if mode in bn_modes]
    without = [name for name in models if name not in {name for name, _ in pairs}]
    unused = [mode for mode in bn_modes if mode not in {mode for _, mode in pairs}]
    if without or unused or not bn_modes:
        name = without[0] if without else next(iter(models))
        expected = ", ".join(modes_of(models[name]))
        raise ResprobeError(
            f"bn_modes: expected some of {expected} for {name or type(models[name]).__name__}, got "
            f"{', '.join(bn_modes) or 'none'}; leave them out for all that a model can have"
        )
    return pairs


def _check_num_batches(num_batches: int | None) -> None:
    if num_batches is not None and num_batches < 1:
        raise ResprobeError(f"num_batches: expected 1 or more, got {num_batches}; leave it out for 10")


def _total(data: CheckedBatches, num_batches: int | None) -> int | None:
    """Give the number of images that will be read, where it is known."""
    if data.num_images is None or num_batches is None:
        return data.num_images
    return min(data.num_images, num_batches * data.batch_size)


def _variables(
    lines: list[dict[tuple[str, str], Line]], names: list[str], modes: list[str], num_steps: int, *, squeezed: bool
) -> dict[str, Any]:
    """Arrange the lines along checkpoint, mode, batch and step."""
    shape = (len(names), len(modes), len(lines))
    along: dict[str, Floats] = {name: np.full((*shape, num_steps), np.nan) for name in Line._fields[:3]}
    grad_norm = np.full(shape, np.nan)
    measured = np.zeros(shape, bool)
    for batch, found in enumerate(lines):
        for (name, mode), line in found.items():
            place = names.index(name), modes.index(mode), batch
            measured[place] = True
            grad_norm[place] = line.grad_norm
            for field, array in along.items():
                array[place] = getattr(line, field)
    # what is not finite stays so: no maximum skips it
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = along["grad_change"][..., 1:] / along["step_norm"][..., 1:]
        whole = {
            "effective_beta": ratio.max(-1),
            "loss_range": along["loss"].max(-1) - along["loss"].min(-1),
            "grad_norm": grad_norm,
        }
    finite = np.isfinite(along["loss"]) & np.isfinite(along["grad_change"])
    counts = {"num_nonfinite": np.where(measured, (~finite).sum(-1), -1)}
    dims = ("checkpoint", "bn_mode", "batch", "step")
    first = 1 if squeezed else 0
    variables: dict[str, Any] = {name: (dims[first:], value[0] if squeezed else value) for name, value in along.items()}
    return variables | {
        name: (dims[first:3], value[0] if squeezed else value) for name, value in (whole | counts).items()
    }
