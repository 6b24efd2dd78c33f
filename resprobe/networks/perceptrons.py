"""Fully connected networks, the smallest ones that show what depth does, and deeper ones of the same function."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resprobe.errors import ResprobeError


class Perceptron(nn.Module):
    """Linear layers with a ReLU after each but the last: the pixels of an image in, logits out.

    Args:
        in_features: Numbers in an image, channels times height times width.
        num_layers: Linear layers, the last one included; from 2.
        width: Outputs of each but the last.
        num_classes: Outputs of the last.
    """

    def __init__(self, in_features: int, num_layers: int, *, width: int = 64, num_classes: int = 10) -> None:
        super().__init__()
        if num_layers < 2:
            raise ResprobeError(f"layers: expected 2 or more, got {num_layers}; choose another number")
        sizes = [in_features, *[width] * (num_layers - 1), num_classes]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(sizes, sizes[1:], strict=False))

    def forward(self, x: Tensor) -> Tensor:
        """Map images `(B, C, H, W)` to logits `(B, num_classes)`."""
        x = x.flatten(1)
        for index, layer in enumerate(self.layers):
            x = layer(F.relu(x) if index else x)
        return x


def build_perceptron(
    in_features: int, num_layers: int, *, width: int = 64, num_classes: int = 10, seed: int = 0
) -> Perceptron:
    """Make a freshly initialised perceptron, leaving the global random state untouched.

    Weights are normal with variance 2 / fan_in (He et al. 2015, arXiv 1502.01852), those of the last layer with
    variance 1 / fan_in, since no ReLU follows; biases are 0.

    Args:
        in_features: Numbers in an image.
        num_layers: Linear layers, the last one included.
        width: Outputs of each but the last.
        num_classes: Outputs of the last.
        seed: Seed of the weights.

    Returns:
        The network in training mode.

    Example:
        >>> net = build_perceptron(64, 6)
        >>> net(torch.zeros(2, 1, 8, 8)).shape, len(net.layers)
        (torch.Size([2, 10]), 6)
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        network = Perceptron(in_features, num_layers, width=width, num_classes=num_classes)
    for index, layer in enumerate(network.layers, start=1):
        assert isinstance(layer, nn.Linear)
        nn.init.kaiming_normal_(
            layer.weight, nonlinearity="linear" if index == num_layers else "relu", generator=generator
        )
        nn.init.zeros_(layer.bias)
    return network


def deepen_perceptron(network: Perceptron, num_layers: int) -> Perceptron:
    """Pad a perceptron with identity layers before its last one: the same function, to the bit.

    Their weights are the identity matrix, their biases 0, and what comes in has been through a ReLU, so that theirs
    changes nothing.

    Args:
        network: The network; it is not touched.
        num_layers: Layers to add.

    Returns:
        The deeper network, with parameters of its own.

    Raises:
        ResprobeError: If there is no layer to add.
    """
    if num_layers < 1:
        raise ResprobeError(f"layers: expected 1 or more to add, got {num_layers}; choose another number")
    *first, last = copy.deepcopy(network).layers
    width = last.in_features
    assert isinstance(width, int)
    with torch.random.fork_rng(devices=[]):
        added = [nn.Linear(width, width) for _ in range(num_layers)]
    for layer in added:
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    deeper = copy.deepcopy(network)
    deeper.layers = nn.ModuleList([*first, *added, last])
    return deeper
