"""Layer-sequential unit variance: weights scaled by what they make of a batch."""

from typing import Any

import torch
from torch import nn

from resprobe.errors import ResprobeError
from resprobe.units.hooks import tapped
from resprobe.units.layers import find_layers

TOLERANCE = 0.01
MAX_TRIES = 10


class _Enough(Exception):  # noqa: N818  not an error: the layer has been seen
    """Ends a forward pass at the layer that is looked at."""


@torch.no_grad()
def scale_to_unit_variance(network: nn.Module, images: torch.Tensor) -> None:
    """Divide each layer's weights by the standard deviation of its output, from the first layer to the last.

    For each convolution or linear layer in the order of execution: while the variance of its output (before
    normalisation and nonlinearity, over images, positions and channels) differs from 1 by more than 0.01, and at most
    10 times, W <- W / sqrt(variance). Batch normalisations use the statistics of the batch meanwhile and have no
    statistics afterwards. The network is in training mode afterwards.

    Args:
        network: A network with orthonormal weights; they are changed in place.
        images: One batch of normalised images, `(B, C, H, W)`.

    Raises:
        ResprobeError: If a layer gives the same number everywhere, or one that is not finite.

    References:
        Mishkin and Matas 2016, All You Need Is a Good Init (arXiv 1511.06422), algorithm 1.
    """
    layers = find_layers(network.eval(), images[:2])
    network.train()
    for layer in layers:
        module = network.get_submodule(layer.name)
        weight = module.weight
        assert isinstance(weight, nn.Parameter)
        for _ in range(MAX_TRIES):
            variance = _output_variance(network, layer.name, images)
            if not 0 < variance < float("inf"):
                raise ResprobeError(
                    f"lsuv: expected outputs of layer {layer.name} that vary, got variance {variance:g}; "
                    "give more images, or another --init"
                )
            if abs(variance - 1) <= TOLERANCE:
                break
            weight.div_(variance**0.5)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.reset_running_stats()


def _output_variance(network: nn.Module, name: str, images: torch.Tensor) -> float:
    found: list[float] = []

    def note(name: str, output: Any) -> None:
        found.append(float(output.double().var(correction=0)))
        raise _Enough

    with tapped(network, [name], after=note):
        try:
            network(images)
        except _Enough:
            pass
    return found[0]
