"""From the names and shapes of a checkpoint's tensors to the network that they belong to."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path

import torch

from resprobe.errors import ResprobeError
from resprobe.loading.blocks import Layout, NotRecognised, find_blocks, read_block
from resprobe.loading.conventions import HEADS, describe_mismatch
from resprobe.loading.modules import StoredModule, dead_modules, stored_modules
from resprobe.loading.patterns import compact
from resprobe.networks.blueprint import BlockPlan, Blueprint, Convolution, Linear, Norm


@dataclass(frozen=True)
class Recognition:
    """What a checkpoint's keys and shapes say.

    Attributes:
        blueprint: The network, with no word yet on what they don't say, except for `preactivation`.
        sides: `preactivation` as far as it is known: one value, or both.
        dead: Keys of tensors that no image has passed through; they are left out.
    """

    blueprint: Blueprint
    sides: tuple[bool, ...]
    dead: tuple[str, ...]


def recognise(tensors: Mapping[str, torch.Tensor], *, path: Path) -> Recognition:
    """Read the network off its tensors.

    Args:
        tensors: A state_dict without prefixes.
        path: Its file, for messages.

    Returns:
        The network.

    Raises:
        ResprobeError: If it is no residual or plain network of basic or bottleneck blocks; the message lists the keys
            and says what doesn't fit.
    """
    modules = stored_modules(tensors)
    dead = dead_modules(tensors, modules)
    live = [module for module in modules if module.name not in dead]
    try:
        blueprint, sides = _assemble(live)
    except NotRecognised as error:
        raise ResprobeError(
            f"{path}: expected a residual or plain network of basic or bottleneck blocks, got "
            f"{compact(tensors)}: {error}; {describe_mismatch(tensors)}; name the network with --arch, "
            "such as resnet20, torchvision:resnet50 or timm:resnet50d"
        ) from error
    dead_keys = tuple(key for key in tensors if key.rpartition(".")[0] in dead)
    return Recognition(blueprint, sides, dead_keys)


def _assemble(modules: Sequence[StoredModule]) -> tuple[Blueprint, tuple[bool, ...]]:
    strange = next((module for module in modules if module.kind == "unknown"), None)
    if strange is not None:
        what = f"{strange.name} is" if strange.name else "the tensors at the top are"
        raise NotRecognised(f"{what} no convolution, linear layer or batch normalisation with running statistics")
    layout = find_blocks(modules)
    stem, stem_rest = _stem(layout)
    blocks = _blocks(layout, stem[-1].out_channels)
    sides = _sides(blocks)
    head = _head(layout, blocks[-1].out_channels)
    outside_norms = [module for module in stem_rest if module.kind == "norm"]
    stem_norms, head_norm = _outside_norms(layout, outside_norms, stem, blocks[-1].out_channels, sides)
    if len(sides) > 1:
        sides = _sides_by_place(layout, blocks, bool(stem_norms), head_norm is not None)
    norm_of = dict(zip((convolution.name for convolution in stem), stem_norms, strict=False))
    blueprint = Blueprint(
        stem=tuple((convolution, norm_of.get(convolution.name)) for convolution in stem),
        blocks=tuple(_with_stages(blocks)),
        head_norm=head_norm,
        head=head,
    )
    return blueprint, sides


def _stem(layout: Layout) -> tuple[list[Convolution], list[StoredModule]]:
    """Read the convolutions before the first block; also give the other modules outside the blocks."""
    classifier = _classifier(layout)
    convolutions = [module for module in layout.outside if module.kind == "convolution" and module not in classifier]
    if not convolutions:
        raise NotRecognised("there is no convolution before the first block")
    channels = convolutions[0].shape[1]
    stem = []
    for module in convolutions:
        out_channels, in_channels, height, width = module.shape
        if in_channels != channels or height % 2 == 0 or width % 2 == 0:
            raise NotRecognised(f"{module.name} of shape {module.shape} has no place in a stem of {channels} channels")
        stem.append(Convolution(module.name, in_channels, out_channels, (height, width), has_bias=module.has_bias))
        channels = out_channels
    return stem, [module for module in layout.outside if module not in convolutions]


def _blocks(layout: Layout, in_channels: int) -> list[BlockPlan]:
    blocks = []
    for name, modules in layout.blocks.items():
        block = read_block(name, modules, in_channels)
        blocks.append(block)
        in_channels = block.out_channels
    kinds = {(len(block.convolutions), len(block.norms)) for block in blocks}
    if len(kinds) > 1:
        counts = " and ".join(
            f"{convolutions} convolutions with {norms} norms" for convolutions, norms in sorted(kinds)
        )
        raise NotRecognised(f"the blocks are not alike: {counts}")
    return blocks


def _sides(blocks: Sequence[BlockPlan]) -> tuple[bool, ...]:
    """Tell from the sizes of the normalisations whether they come before the convolutions: one answer, or both."""
    if not blocks[0].norms:
        return (False,)
    sides = []
    for preactivation in (False, True):
        fits = all(
            [norm.channels for norm in block.norms] == _norm_sizes(block, preactivation=preactivation)
            for block in blocks
        )
        sides += [preactivation] * fits
    if not sides:
        got = f"{[norm.channels for norm in blocks[0].norms]} beside {[c.out_channels for c in blocks[0].convolutions]}"
        raise NotRecognised(f"the normalisations fit their convolutions neither before nor after them: {got} channels")
    return tuple(sides)


def _norm_sizes(block: BlockPlan, *, preactivation: bool) -> list[int]:
    if not preactivation:
        return [convolution.out_channels for convolution in block.convolutions]
    sizes = [convolution.in_channels for convolution in block.convolutions]
    return [*sizes, block.out_channels] if len(block.norms) > len(sizes) else sizes


def _sides_by_place(layout: Layout, blocks: Sequence[BlockPlan], stem_norm: bool, head_norm: bool) -> tuple[bool, ...]:
    """Decide where all sizes are equal: by what comes first in a block, or by the normalisations outside."""
    first_kinds = {modules[0].kind for modules in layout.blocks.values()}
    parts: list[Convolution | Norm] = [*blocks[0].convolutions, *blocks[0].norms]
    names = [part.name.rpartition(".") for part in parts]
    # inside one Sequential the numbers are the order, however the keys are sorted
    is_sequence = len({parent for parent, _, _ in names}) == 1 and all(own.isdigit() for _, _, own in names)
    if (layout.ordered or is_sequence) and len(first_kinds) == 1:
        return (first_kinds == {"norm"},)
    return (head_norm,) if stem_norm != head_norm else (False, True)


def _outside_norms(
    layout: Layout, norms: Sequence[StoredModule], stem: Sequence[Convolution], out_channels: int, sides: Sequence[bool]
) -> tuple[list[Norm], Norm | None]:
    """Share the normalisations outside the blocks between stem and head."""
    stored: list[Norm] = [Norm(module.name, module.shape[0], module.has_bias) for module in norms]
    options = []
    for head_norm in (None, *reversed(stored)):
        rest = _paired(stem, [norm for norm in stored if norm is not head_norm])
        if rest is not None and (head_norm is None or head_norm.channels == out_channels):
            options.append((rest, head_norm))
    if not options:
        names = ", ".join(f"{norm.name} of {norm.channels} channels" for norm in stored)
        raise NotRecognised(f"{names} fits neither the stem nor the end")
    return min(options, key=lambda option: _misplaced(layout, option, sides))


def _paired(stem: Sequence[Convolution], norms: Sequence[Norm]) -> list[Norm] | None:
    """Order normalisations by the convolutions of the stem that they follow; None where they don't fit."""
    if not norms:
        return []
    left = list(norms)
    paired = []
    for convolution in stem:
        parent = convolution.name.rpartition(".")[0]
        fitting = [norm for norm in left if norm.channels == convolution.out_channels]
        # those in the same module first: they are in order, one outside comes last
        norm = min(fitting, key=lambda norm: norm.name.rpartition(".")[0] != parent, default=None)  # noqa: B023
        if norm is None:
            return None
        left.remove(norm)
        paired.append(norm)
    return None if left else paired


def _misplaced(layout: Layout, option: tuple[list[Norm], Norm | None], sides: Sequence[bool]) -> int:
    """Count what speaks against a share of the outside normalisations: the order of the keys, else the kind of net."""
    rest, head_norm = option
    if not layout.ordered:
        return int((head_norm is not None) != (True in sides))
    wrong = sum(norm.name in layout.late for norm in rest)
    return wrong + (head_norm is not None and head_norm.name not in layout.late)


def _head(layout: Layout, channels: int) -> tuple[Linear, ...]:
    modules = _classifier(layout)
    if not modules:
        raise NotRecognised("there is no linear layer at the end")
    head = []
    for module in modules:
        out_features, in_features = module.shape[:2]
        is_convolution = module.kind == "convolution"
        head.append(Linear(module.name, in_features, out_features, module.has_bias, is_convolution))
    side = (head[0].in_features / channels) ** 0.5
    if side != int(side) or side < 1 or any(a.out_features != b.in_features for a, b in pairwise(head)):
        shapes = ", ".join(f"{linear.name} {(linear.out_features, linear.in_features)}" for linear in head)
        raise NotRecognised(f"the linear layers ({shapes}) don't follow the last block's {channels} channels")
    return tuple(head)


def _classifier(layout: Layout) -> list[StoredModule]:
    """Find the linear layers, or the one that is stored as a 1x1 convolution."""
    linear = [module for module in layout.outside if module.kind == "linear"]
    if linear:
        return linear
    pointwise = [module for module in layout.outside if module.is_pointwise]
    named = [module for module in pointwise if any(re.fullmatch(n.expression, module.name) for n in HEADS)]
    return (named or [module for module in pointwise if module.name in layout.late])[-1:]


def _with_stages(blocks: Sequence[BlockPlan]) -> list[BlockPlan]:
    """Number the stages; each but the first starts with a block of stride 2."""
    starts = _stage_starts(blocks)
    staged = []
    stage = 0
    for index, block in enumerate(blocks):
        stage += index in starts
        staged.append(replace(block, stage=stage, stride=2 if index in starts else 1))
    return staged


def _stage_starts(blocks: Sequence[BlockPlan]) -> set[int]:
    """Find the first blocks of the later stages: by the names where shapes agree, else where the width changes."""
    by_name = set()
    position = 0
    for _, group in groupby(block.name.rpartition(".")[0] for block in blocks):
        by_name.add(position)
        position += len(list(group))
    by_name.discard(0)
    changes = {
        index
        for index, block in enumerate(blocks)
        if index and (block.in_channels != block.out_channels or block.projection is not None)
    }
    return by_name if by_name and (by_name <= changes or not changes) else changes
