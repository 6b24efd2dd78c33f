"""Weights before training: the initialisations of the literature."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import nn

from resprobe.errors import ResprobeError

INITIALISATIONS = ("he", "xavier", "lecun", "orthogonal", "lsuv")

Draw = Callable[[torch.Tensor, torch.Generator], object]


@torch.no_grad()
def initialise(network: nn.Module, *, generator: torch.Generator, init: str = "he") -> None:
    """Draw every parameter anew, in place, in the order of the modules.

    - `he`: convolutions normal with variance 2 / fan_in, so that the second moment of the activations is kept from
      layer to layer in the forward pass (He et al. 2015, arXiv 1502.01852, equation 10; the fan_out form of equation
      14 would do as well). The linear layer, which no ReLU follows: uniform with variance 1 / (3 fan_in).
    - `xavier`: normal with variance 2 / (fan_in + fan_out) (Glorot and Bengio 2010, equation 12, its normal form).
    - `lecun`: normal with variance 1 / fan_in (LeCun, Bottou, Orr, Mueller 1998, Efficient BackProp, section 4.6).
    - `orthogonal`: orthonormal rows or columns of the kernel as a matrix `(out, in * height * width)` (Saxe,
      McClelland, Ganguli 2014, arXiv 1312.6120), without the factor sqrt(2) that would make up for ReLUs.
    - `lsuv`: the same, to be scaled by `resprobe.networks.lsuv.scale_to_unit_variance`, which needs images.

    Batch normalisation starts as scale 1, shift 0. Biases are 0.

    In residual nets without normalisation each of the n units would double the second moment under `he`. There, and
    in no other initialisation, the last convolution of every branch is divided by sqrt(n), which bounds the growth by
    (1 + 1/n)^n <= e and not 2^n. That is the condition of Hanin and Rolnick 2018 (arXiv 1803.01719): the squared
    branch scales sum to a constant. SkipInit (De and Smith 2020, arXiv 2002.10444) and Fixup (Zhang et al. 2019,
    arXiv 1901.09321) start with branches that are zero, which would leave nothing to measure there.

    Args:
        network: A network whose blocks have ``conv2`` as their last convolution and ``shortcut`` where
            they are residual; its parameters are changed.
        generator: Source of all randomness, on the parameters' device.
        init: Name of the initialisation.
    """
    check_init(init)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            _draw(module, init, generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            nn.init.ones_(module.weight)
        if isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
    if init == "he" and not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        last_convolutions = list(_last_convolutions(network))
        for convolution in last_convolutions:
            convolution.weight /= math.sqrt(len(last_convolutions))


def check_init(init: str) -> None:
    """Refuse an initialisation that is unknown.

    Args:
        init: Its name.

    Raises:
        ResprobeError: If there is no such one.
    """
    if init not in INITIALISATIONS:
        raise ResprobeError(f"init: expected one of {', '.join(INITIALISATIONS)}, got {init!r}; choose one of them")


def _draw(module: nn.Conv2d | nn.Linear, init: str, generator: torch.Generator) -> None:
    weight = module.weight
    if init == "he" and isinstance(module, nn.Linear):
        bound = 1 / math.sqrt(module.in_features)
        nn.init.uniform_(weight, -bound, bound, generator=generator)
    elif init == "he":
        nn.init.kaiming_normal_(weight, mode="fan_in", nonlinearity="relu", generator=generator)
    elif init == "xavier":
        nn.init.xavier_normal_(weight, generator=generator)
    elif init == "lecun":
        nn.init.kaiming_normal_(weight, mode="fan_in", nonlinearity="linear", generator=generator)
    else:
        nn.init.orthogonal_(weight, generator=generator)


def _last_convolutions(network: nn.Module) -> Iterator[nn.Conv2d]:
    """The last convolution of each residual branch, in order."""
    for module in network.modules():
        if hasattr(module, "shortcut"):
            convolution = module.conv2
            assert isinstance(convolution, nn.Conv2d)
            yield convolution
