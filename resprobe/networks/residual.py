"""Plain and residual networks for small images: depth, width, shortcut, normalisation, block kind."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resprobe.errors import ResprobeError
from resprobe.networks.architecture import Architecture, parse_architecture
from resprobe.networks.initialisation import check_init, initialise
from resprobe.networks.lsuv import scale_to_unit_variance
from resprobe.units.bypass import Bypass

__all__ = ["Architecture", "Block", "ResidualNetwork", "build", "parse_architecture"]


class Block(nn.Module):
    """Two 3x3 convolutions, with or without a shortcut around them.

    Post-activation: y = relu(shortcut(x) + bn2(conv2(relu(bn1(conv1(x)))))).
    Pre-activation: y = shortcut(x) + conv2(relu(bn2(conv1(relu(bn1(x)))))).
    A plain block is the same without the addition and has no ``shortcut``. Without normalisation ``bn1``
    and ``bn2`` are identities.

    Args:
        architecture: The network's facts.
        in_channels: Channels that come in.
        out_channels: Channels that go out; twice as many as come in where ``stride`` is 2.
        stride: 1, or 2 in the first block of the second and third stage.
    """

    def __init__(self, architecture: Architecture, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.residual = architecture.residual
        self.preactivation = architecture.preactivation
        norm = architecture.norm
        # state_dict keeps the order of assignment, which other people's checkpoints share.
        if self.preactivation:
            self.bn1 = _norm(in_channels, norm)
            self.conv1 = _conv(in_channels, out_channels, stride, norm)
            self.bn2 = _norm(out_channels, norm)
            self.conv2 = _conv(out_channels, out_channels, 1, norm)
        else:
            self.conv1 = _conv(in_channels, out_channels, stride, norm)
            self.bn1 = _norm(out_channels, norm)
            self.conv2 = _conv(out_channels, out_channels, 1, norm)
            self.bn2 = _norm(out_channels, norm)
        if self.residual:
            self.shortcut = _shortcut(architecture, in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H', W'), H' = ceil(H / stride).

        Args:
            x: Activations of shape (N, in_channels, H, W).

        Returns:
            The block's output.
        """
        if self.preactivation:
            branch = self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))
        else:
            branch = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        out = branch + self.shortcut(x) if self.residual else branch
        return out if self.preactivation else F.relu(out)


class ResidualNetwork(nn.Module):
    """A plain or residual network after He et al. 2015 (arXiv 1512.03385), section 4.2.

    A 3x3 stem, three stages of blocks at full, half and quarter resolution, global average pooling and a
    linear layer. The keys of its ``state_dict`` are ``conv1``, ``bn1``, ``layer1.0.conv1``, ..., ``linear``;
    pre-activation nets have no ``bn1`` and a final ``bn``. Parameters are PyTorch's defaults: `build`
    gives the initialisation that the papers use.

    Args:
        architecture: The network's facts.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        width, norm = architecture.width, architecture.norm
        self.conv1 = _conv(architecture.in_channels, width, 1, norm)
        if not architecture.preactivation:
            self.bn1 = _norm(width, norm)
        self.layer1 = _stage(architecture, width, width, 1)
        self.layer2 = _stage(architecture, width, 2 * width, 2)
        self.layer3 = _stage(architecture, 2 * width, 4 * width, 2)
        if architecture.preactivation:
            self.bn = _norm(4 * width, norm)
        self.linear = nn.Linear(4 * width, architecture.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits.

        Args:
            x: Normalised images of shape (N, in_channels, H, W).

        Returns:
            Logits of shape (N, num_classes).
        """
        x = self.conv1(x)
        if not self.architecture.preactivation:
            x = F.relu(self.bn1(x))
        x = self.layer3(self.layer2(self.layer1(x)))
        if self.architecture.preactivation:
            x = F.relu(self.bn(x))
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def build(
    architecture: Architecture, *, seed: int | None = None, init: str = "he", images: Tensor | None = None
) -> ResidualNetwork:
    """Make a freshly initialised network, leaving the global random state untouched.

    Args:
        architecture: The network's facts.
        seed: Seed of the weights; None draws one from the system.
        init: `he`, `xavier`, `lecun`, `orthogonal` or `lsuv`, as in `resprobe.networks.initialisation.initialise`.
        images: For `lsuv`, one batch of normalised images, `(B, C, H, W)`.

    Returns:
        The network on the CPU in training mode.

    Raises:
        ResprobeError: If there is no such initialisation, or `lsuv` has no images.

    Example:
        >>> net = build(parse_architecture("plain20", in_channels=1), seed=0)
        >>> net(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    check_init(init)
    if init == "lsuv" and images is None:
        raise ResprobeError("init='lsuv': expected images= with it, got none; give one batch of normalised images")
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    # Constructing PyTorch's layers draws default weights from the global generator.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        network = ResidualNetwork(architecture)
    initialise(network, generator=generator, init=init)
    if init == "lsuv" and images is not None:
        scale_to_unit_variance(network, images)
    return network


def _stage(architecture: Architecture, in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    """A stage of n blocks; the first one changes the shape."""
    first = Block(architecture, in_channels, out_channels, stride)
    others = (Block(architecture, out_channels, out_channels, 1) for _ in range(architecture.blocks_per_stage - 1))
    return nn.Sequential(first, *others)


def _shortcut(architecture: Architecture, in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """What stands on the shortcut; pre-activation projections have no normalisation (He et al. 2016)."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    if architecture.shortcut == "pad":
        return Bypass(stride, out_channels - in_channels)
    has_bias = architecture.norm == "none"
    projection = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=has_bias)
    if architecture.preactivation or architecture.norm == "none":
        return nn.Sequential(projection)
    return nn.Sequential(projection, nn.BatchNorm2d(out_channels))


def _conv(in_channels: int, out_channels: int, stride: int, norm: str) -> nn.Conv2d:
    """A 3x3 convolution; a bias would have no effect before batch normalisation."""
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=norm == "none")


def _norm(channels: int, norm: str) -> nn.Module:
    """Batch normalisation, or the identity."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.Identity()
