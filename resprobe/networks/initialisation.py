"""Weights before training: He initialisation, scaled down per branch where nothing normalises."""

import math
from collections.abc import Iterator

import torch
from torch import nn


@torch.no_grad()
def initialise(network: nn.Module, *, generator: torch.Generator) -> None:
    """Draw every parameter anew, in place, in the order of the modules.

    Convolutions: normal with variance 2 / fan_in, so that the second moment of the activations is kept
    from layer to layer in the forward pass (He et al. 2015, arXiv 1502.01852, equation 10; the fan_out form
    of equation 14 would do as well). Batch normalisation starts as scale 1, shift 0. The linear layer, which
    no ReLU follows: uniform with variance 1 / (3 fan_in). Biases are 0.

    In residual nets without normalisation each of the n units would double the second moment. The last
    convolution of every branch is therefore divided by sqrt(n), which bounds the growth by (1 + 1/n)^n <= e
    and not 2^n. That is the condition of Hanin and Rolnick 2018 (arXiv 1803.01719): the squared branch
    scales sum to a constant. SkipInit (De and Smith 2020, arXiv 2002.10444) and Fixup (Zhang et al. 2019,
    arXiv 1901.09321) start with branches that are zero, which would leave nothing to measure there.

    Args:
        network: A network whose blocks have ``conv2`` as their last convolution and ``shortcut`` where
            they are residual; its parameters are changed.
        generator: Source of all randomness, on the parameters' device.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu", generator=generator)
        elif isinstance(module, nn.Linear):
            bound = 1 / math.sqrt(module.in_features)
            nn.init.uniform_(module.weight, -bound, bound, generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            nn.init.ones_(module.weight)
        if isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        last_convolutions = list(_last_convolutions(network))
        for convolution in last_convolutions:
            convolution.weight /= math.sqrt(len(last_convolutions))


def _last_convolutions(network: nn.Module) -> Iterator[nn.Conv2d]:
    """The last convolution of each residual branch, in order."""
    for module in network.modules():
        if hasattr(module, "shortcut"):
            convolution = module.conv2
            assert isinstance(convolution, nn.Conv2d)
            yield convolution
