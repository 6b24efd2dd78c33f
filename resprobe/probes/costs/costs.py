"""What a network costs, as a result."""

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import nn

from resprobe.engine.batches import CheckedBatches
from resprobe.engine.devices import device_of
from resprobe.engine.reporting import report
from resprobe.engine.scoring import Progress
from resprobe.errors import ResprobeError
from resprobe.probes.costs.costing import activation_bytes, count_params, multiply_adds, seconds_per_pass
from resprobe.units.structure.tracing import private_copy, without_hooks

REFERENCES = "He, Zhang, Ren, Sun 2015, arXiv 1512.03385; Simonyan, Zisserman 2014, arXiv 1409.1556"


def costs(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    repeats: int = 10,
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure parameters, multiply-adds, activation memory and time of a network.

    Args:
        model: Maps images `(B, C, H, W)` to logits; it is not touched.
        batches: Images and labels; the first batch is timed, its images give the shape for all else.
        repeats: Timed forward passes, after one that isn't.
        provenance: Where the model came from.
        progress: Called with timed images done and the total.

    Returns:
        `num_params`; `multiply_adds` of convolutions and linear maps for one image (what the papers call FLOPs);
        `activation_bytes`, what one image more in a training step keeps until the backward pass;
        `seconds_per_image`, the fastest of `repeats` forward passes in evaluation mode divided by the images of the
        batch, since other programs only ever slow a pass down, and `_median`; `num_images` of that batch. All without
        dims; `num_threads` of PyTorch is an attribute.

    Raises:
        ResprobeError: If `repeats` is no whole number from 1, or the batches are unusable.

    References:
        He et al. 2015 (arXiv 1512.03385), table 1, counts multiply-adds as FLOPs.

    Example:
        >>> import resprobe
        >>> net = resprobe.build(resprobe.parse_architecture("resnet20"))
        >>> int(resprobe.costs(net, [(torch.zeros(2, 3, 32, 32), torch.zeros(2, dtype=torch.int64))]).num_params)
        269722
    """
    if not isinstance(repeats, Integral) or repeats < 1:
        raise ResprobeError(f"repeats: expected a whole number from 1, got {repeats}; choose another")
    data = CheckedBatches(batches, device_of(model))
    images, _ = next(iter(data))
    channels, height, width = images.shape[1:]
    shape = (channels, height, width)
    times = np.array(seconds_per_pass(model, images, repeats)) / len(images)
    count = multiply_adds(without_hooks(private_copy(model)), shape)
    if progress is not None:
        progress(repeats * len(images), repeats * len(images))
    dataset = report(
        "costs",
        {
            "num_params": np.int64(count_params(model)),
            "multiply_adds": np.int64(count),
            "activation_bytes": np.int64(activation_bytes(model, shape)),
            "seconds_per_image": float(times.min()),
            "seconds_per_image_median": float(np.median(times)),
            "num_images": np.int64(len(images)),
        },
        {},
        title="Costs",
        references=REFERENCES,
        options={"repeats": repeats, "batch_size": len(images)},
        provenance=provenance,
        data=data,
    )
    dataset.attrs["num_threads"] = torch.get_num_threads()
    return dataset
