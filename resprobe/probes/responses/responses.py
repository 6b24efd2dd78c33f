"""Responses: how strong the signal is that each convolution gives."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from resprobe.engine.batches import CheckedBatches, check_labels
from resprobe.engine.devices import device_of, exact_dtype, exact_float32
from resprobe.engine.moments import Moments
from resprobe.engine.reporting import report
from resprobe.engine.scoring import Progress
from resprobe.errors import ResprobeError
from resprobe.units import run_example
from resprobe.units.hooks import first_tensor, tapped
from resprobe.units.layers import find_layers, layer_coordinates
from resprobe.units.structure.tracing import private_copy, without_hooks


def responses(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    precision: str = "float32",
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure mean and standard deviation of each convolution's output after its batch normalisation.

    The responses of a layer are taken before its nonlinearity and before the addition of a shortcut, over images,
    positions and channels. Where a batch normalisation reads the convolution's output and nothing stands between, its
    output is measured, with the stored statistics; else (nets without normalisation, pre-activation nets where the
    convolution feeds an addition) that of the convolution itself. The coord `measured_at` names the module.

    Args:
        model: Maps images `(B, C, H, W)` to logits `(B, classes)`; it is not touched, and any model will do.
        batches: Normalised images and class indices `(B,)`, such as an `ImageData` or a DataLoader; read once.
        precision: `float32` or `float64` for the model; sums are in float64 always, so that batch size and order of the
            images make no difference.
        provenance: Where the model came from, such as `Checkpoint.provenance`.
        progress: Called with images done, and the total where it is known.

    Returns:
        `response_mean`, `response_std` (layer), without unit, the latter of the population (divided by the number of
        responses); `num_responses` (layer), images times positions times channels; `num_images` (). The layers are
        the convolutions in the order of execution. Values that are not finite make mean or deviation NaN.

    Raises:
        ResprobeError: If the model has no convolutions, or data and model don't fit.

    References:
        He, Zhang, Ren, Sun 2015, Deep Residual Learning for Image Recognition (arXiv 1512.03385), figure 7.

    Example:
        >>> import resprobe
        >>> net = resprobe.build(resprobe.parse_architecture("resnet8", in_channels=1), seed=0)
        >>> digits = resprobe.open_data("digits", num_images=20)
        >>> resprobe.responses(net, digits).layer.values[:2].tolist()
        ['conv1', 'layer1.0.conv1']
    """
    dtype = exact_dtype(precision)
    data = CheckedBatches(batches, device_of(model))
    duplicate = without_hooks(private_copy(model)).to(dtype)
    with torch.inference_mode():
        run_example(duplicate, data.example.to(dtype))
    layers = find_layers(duplicate, data.example.to(dtype), kind=_ConvNd)
    if not layers:
        raise ResprobeError(
            f"model {type(model).__name__}: expected convolutions, got none; responses are those of convolutions"
        )
    measured_at = _measured_at(duplicate, data.example.to(dtype), [layer.name for layer in layers])
    moments, num_images = _moments(duplicate, data, dtype, list(measured_at.values()), progress)
    by_layer = [moments[measured_at[layer.name]] for layer in layers]
    return report(
        "responses",
        {
            "response_mean": ("layer", np.array([one.mean for one in by_layer])),
            "response_std": ("layer", np.array([one.std for one in by_layer])),
            "num_responses": ("layer", np.array([one.count for one in by_layer], np.int64)),
            "num_images": np.int64(num_images),
        },
        {
            **layer_coordinates(layers),
            "measured_at": ("layer", [measured_at[layer.name] for layer in layers]),
        },
        title="Responses of the convolutions",
        references="He, Zhang, Ren, Sun 2015, arXiv 1512.03385",
        options={"precision": precision},
        provenance=provenance,
        data=data,
    )


def _moments(
    model: nn.Module, data: CheckedBatches, dtype: torch.dtype, places: list[str], progress: Progress | None
) -> tuple[dict[str, Moments], int]:
    """Add up what comes out of each place over all images; give also their number."""
    moments = {name: Moments() for name in places}

    def note(name: str, output: Any) -> None:
        tensor = first_tensor(output)
        assert tensor is not None
        moments[name].add_tensor(tensor)

    done = 0
    with torch.inference_mode(), exact_float32(), tapped(model, list(moments), after=note):
        for images, labels in data:
            logits = model(images.to(dtype))
            check_labels(labels, logits.shape[1], done)
            done += len(labels)
            if progress is not None:
                progress(done, data.num_images)
    return moments, done


def _measured_at(model: nn.Module, example: torch.Tensor, convolutions: list[str]) -> dict[str, str]:
    """Name for each convolution the batch normalisation that reads its output, else itself.

    A normalisation counts where it reads the very tensor that the convolution gave. One that also reads other tensors
    (a module that is called repeatedly), or a convolution with several readers of this kind, doesn't.

    Args:
        model: A private copy of the model.
        example: A few images.
        convolutions: Names of the convolutions.

    Returns:
        Names of modules by names of convolutions.
    """
    giver: dict[int, str] = {}
    outputs: list[Any] = []  # kept, so that no two tensors have the same identity
    readings: dict[str, list[str | None]] = {}

    def leave(name: str, output: Any) -> None:
        outputs.append(output)
        giver[id(output)] = name

    def enter(name: str, entry: torch.Tensor | None) -> None:
        readings.setdefault(name, []).append(giver.get(id(entry)))

    norms = [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    with torch.inference_mode(), tapped(model, convolutions, after=leave), tapped(model, norms, before=enter):
        model(example)
    readers: dict[str, list[str]] = {}
    for norm, read in readings.items():
        givers = set(read)
        if len(givers) == 1 and None not in givers:
            readers.setdefault(str(read[0]), []).append(norm)
    return {name: readers[name][0] if len(readers.get(name, [])) == 1 else name for name in convolutions}
