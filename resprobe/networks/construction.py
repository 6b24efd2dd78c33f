"""A deeper network with the same function: the construction of He et al. 2015, section 1, carried out."""

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resprobe.errors import ResprobeError
from resprobe.networks.architecture import NUM_STAGES, Architecture, parse_architecture
from resprobe.networks.identities import make_identity_convolution, make_identity_norm
from resprobe.networks.residual import Block, ResidualNetwork, build

STATISTICS = ("measured", "unit")

Batches = Iterable[tuple[Tensor, Tensor]]
Moments = tuple[Tensor, Tensor]


def deepen(
    network: nn.Module,
    num_units: int,
    *,
    batches: Batches | None = None,
    statistics: str = "measured",
    seed: int = 0,
) -> ResidualNetwork:
    """Build a deeper network of the same function: units that change nothing at the end of each stage.

    - A plain block becomes two identity convolutions (Dirac), each with a batch normalisation that is the identity with
      its stored statistics. The ReLU after it changes nothing, since what comes in has been through a ReLU.
    - Without activation after the addition (pre-activation) that isn't so. There the block takes over the normalisation
      of the layer behind it, which becomes the identity in turn: relu(norm(x)) is the same, one block earlier.
    - A residual unit ends in a zero: the scale of its last normalisation, or the weights of its last convolution where
      no normalisation follows (Goyal et al. 2017, arXiv 1706.02677, section 5.1). Its other layers are as at the
      beginning of a training, so that it can learn.

    With the statistics of a batch, which training uses, an identity normalisation of a plain net normalises: what then
    happens depends on `statistics`. A residual unit that ends in zero is the identity in either case.

    Args:
        network: A network of `resprobe.build`; it is not touched.
        num_units: Residual units or plain blocks to add, of two layers each, a third of them to each stage.
        batches: Pairs of normalised images `(B, C, H, W)` and labels, to measure statistics on; only plain nets with
            batch normalisation and `measured` need them.
        statistics: What identity normalisations store: `measured`, mean and variance of what comes in, undone by scale
            and shift, so that nearly the same comes out with the statistics of a batch too; or `unit`, mean 0 and
            variance 1, without scale and shift.
        seed: Seed of the weights that the new residual units begin with.

    Returns:
        The deeper network in evaluation mode, on the CPU, with parameters of its own. `resprobe.compare_logits`
        measures how far its logits are from those of the network: on a CPU they are the same to the bit.

    Raises:
        ResprobeError: If it is another kind of network, the units can't be spread evenly over the stages, or there are
            no images to measure statistics on.

    Example:
        >>> import resprobe
        >>> shallow = resprobe.build(resprobe.parse_architecture("plain8", in_channels=1), seed=0).eval()
        >>> deep = deepen(shallow, 3, statistics="unit")
        >>> images = torch.rand(2, 1, 8, 8)
        >>> deep.architecture.name, torch.equal(deep(images), shallow(images))
        ('plain14', True)
    """
    if not isinstance(network, ResidualNetwork):
        raise ResprobeError(
            f"network: expected a plain or residual network of resprobe, got {type(network).__name__}; only these can "
            "be deepened (--arch resnet20 names one whose file doesn't say so)"
        )
    architecture = deeper_architecture(network.architecture, num_units)
    if statistics not in STATISTICS:
        raise ResprobeError(f"statistics: expected {' or '.join(STATISTICS)}, got {statistics!r}; choose one of them")
    source = copy.deepcopy(network).cpu().eval()
    deep = build(architecture, seed=seed).eval()
    per_stage = num_units // NUM_STAGES
    # new blocks come last in their stage, so that the names of the others stay
    deep.load_state_dict({**deep.state_dict(), **source.state_dict()})
    added = [_blocks(_stage(deep, stage))[-per_stage:] for stage in range(NUM_STAGES)]
    if architecture.residual:
        for block in (block for blocks in added for block in blocks):
            _end_in_zero(block)
        return deep
    moments: list[Moments | None] = [None] * NUM_STAGES
    if statistics == "measured" and architecture.norm == "batch":
        if batches is None:
            raise ResprobeError(
                "batches: expected images to measure statistics on, got none; give some, or statistics='unit' "
                "(--statistics unit)"
            )
        moments = list(_measure(source, batches))
    for stage, blocks in enumerate(added):
        _make_identity(deep, stage, blocks, moments[stage])
    return deep


def deeper_architecture(architecture: Architecture, num_units: int) -> Architecture:
    """Give the facts of a network with more units.

    Args:
        architecture: The network's facts.
        num_units: Residual units or plain blocks to add, a third of them to each stage.

    Returns:
        The same facts with 2 num_units more layers.

    Raises:
        ResprobeError: If the number is no multiple of 3 from 3.
    """
    if num_units < NUM_STAGES or num_units % NUM_STAGES:
        below = max(num_units // NUM_STAGES * NUM_STAGES, NUM_STAGES)
        nearest = " or ".join(str(number) for number in dict.fromkeys([below, max(below, num_units // 3 * 3 + 3)]))
        raise ResprobeError(
            f"units: expected a multiple of {NUM_STAGES}, so that each stage gets as many, got {num_units}; "
            f"take {nearest}"
        )
    return replace(architecture, depth=architecture.depth + 2 * num_units)


def units_to_reach(architecture: Architecture, name: str) -> int:
    """Count the units that lead from one network to a deeper one.

    Args:
        architecture: The shallower network's facts.
        name: Name of the deeper one, such as `plain56`.

    Returns:
        Number of units of two layers.

    Raises:
        ResprobeError: If it is of another family, or not deeper.
    """
    deeper = parse_architecture(name)
    if (deeper.residual, deeper.preactivation) != (architecture.residual, architecture.preactivation):
        family = architecture.name.removesuffix(str(architecture.depth))
        raise ResprobeError(f"to: expected a deeper {family}N for {architecture.name}, got {name}; choose one")
    if deeper.depth <= architecture.depth:
        raise ResprobeError(
            f"to: expected more than the {architecture.depth} layers of {architecture.name}, got {name}"
        )
    return (deeper.depth - architecture.depth) // 2


@torch.no_grad()
def _end_in_zero(block: Block) -> None:
    """Let a residual unit's branch give zero."""
    if isinstance(block.bn2, nn.BatchNorm2d) and not block.preactivation:
        nn.init.zeros_(block.bn2.weight)
        nn.init.zeros_(block.bn2.bias)
        return
    nn.init.zeros_(block.conv2.weight)
    if block.conv2.bias is not None:
        nn.init.zeros_(block.conv2.bias)


def _make_identity(deep: ResidualNetwork, stage: int, blocks: list[Block], moments: Moments | None) -> None:
    """Let new plain blocks at the end of a stage pass their input on."""
    norms = [norm for block in blocks for norm in (block.bn1, block.bn2)]
    if deep.architecture.preactivation:
        behind = _norm_behind(deep, stage)
        first, *rest = norms
        first.load_state_dict(behind.state_dict())
        norms = [*rest, behind]
    for norm in norms:
        if isinstance(norm, nn.BatchNorm2d):
            make_identity_norm(norm, *(moments or ()))
    for block in blocks:
        make_identity_convolution(block.conv1)
        make_identity_convolution(block.conv2)


@torch.no_grad()
def _measure(network: ResidualNetwork, batches: Batches) -> Iterable[Moments]:
    """Measure mean and variance of each channel where new blocks come in: at the end of each stage."""
    sums = [torch.zeros(3, 1, dtype=torch.float64) for _ in range(NUM_STAGES)]
    for images, _ in batches:
        for stage, activations in enumerate(_at_the_ends(network, images.cpu())):
            values = activations.double().transpose(0, 1).flatten(1)
            parts = [torch.full((len(values),), values.shape[1]).double(), values.sum(1), values.square().sum(1)]
            sums[stage] = sums[stage] + torch.stack(parts)
    if not sums[0][0].any():
        raise ResprobeError("batches: expected at least one batch of images, got none; give some")
    for count, total, squares in sums:
        mean = total / count
        yield mean, (squares / count - mean.square()).clamp(min=0)


def _at_the_ends(network: ResidualNetwork, x: Tensor) -> Iterable[Tensor]:
    """Give the activations, all from zero up, that new blocks of each stage would get."""
    x = network.conv1(x)
    if not network.architecture.preactivation:
        x = F.relu(network.bn1(x))
    for stage in range(NUM_STAGES):
        x = _stage(network, stage)(x)
        yield F.relu(_norm_behind(network, stage)(x)) if network.architecture.preactivation else x


def _norm_behind(network: ResidualNetwork, stage: int) -> nn.Module:
    """Give the normalisation that the output of a stage goes into, in a pre-activation network."""
    if stage + 1 == NUM_STAGES:
        return network.bn
    norm = _stage(network, stage + 1)[0].bn1
    assert isinstance(norm, nn.Module)
    return norm


def _blocks(stage: nn.Sequential) -> list[Block]:
    """Give the blocks of a stage."""
    return [block for block in stage if isinstance(block, Block)]


def _stage(network: ResidualNetwork, stage: int) -> nn.Sequential:
    """Give a stage by its number from 0."""
    return (network.layer1, network.layer2, network.layer3)[stage]
