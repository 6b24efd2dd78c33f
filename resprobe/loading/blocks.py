"""Finds the blocks among the modules of a checkpoint, and what is branch and what shortcut in each of them."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from resprobe.loading.conventions import BRANCH_NAME, SHORTCUT_NAME, STEMS
from resprobe.loading.modules import StoredModule, is_alphabetical
from resprobe.networks.blueprint import BlockPlan, Convolution, Norm


class NotRecognised(Exception):
    """The modules form no network of a known kind; the text says why."""


@dataclass(frozen=True)
class Layout:
    """The modules of a checkpoint by their place.

    Attributes:
        outside: Modules outside the blocks: stem and head.
        blocks: The modules of each block, by the block's name, in order.
        late: Names of the outside modules that come after the first block.
        ordered: Whether the order of the modules says something, being the one in which they were made.
    """

    outside: list[StoredModule]
    blocks: dict[str, list[StoredModule]]
    late: set[str]
    ordered: bool


def find_blocks(modules: Sequence[StoredModule]) -> Layout:
    """Group modules into blocks.

    A block is the innermost module that holds two convolutions or more, not counting shortcuts; where it holds the
    branch alone, the module around it.

    Args:
        modules: The live modules of a checkpoint.

    Returns:
        The blocks and the rest.

    Raises:
        NotRecognised: If there is no block, or one inside another.
    """
    convolutions = [module.name for module in modules if module.kind == "convolution"]
    if not convolutions:
        raise NotRecognised("there is no convolution")
    counts: Counter[str] = Counter()
    for name in convolutions:
        if not _is_shortcut_name(".".join(name.split(".")[-2:])):
            counts.update(_ancestors(name))
    roots = dict.fromkeys(filter(None, (_root(name, counts, modules) for name in convolutions)))
    ordered = not is_alphabetical(modules)
    stem = _stem_root(list(roots), convolutions, ordered)
    if stem is not None:
        del roots[stem]
    nested = next(((a, b) for a in roots for b in roots if b.startswith(f"{a}.")), None)
    if nested is not None:
        raise NotRecognised(f"the block {nested[0]} has more than branch and shortcut in it: {nested[1]}")
    if not roots:
        raise NotRecognised("there is no module that holds two convolutions, and so no block")
    blocks: dict[str, list[StoredModule]] = {root: [] for root in roots}
    outside: list[StoredModule] = []
    late: set[str] = set()
    for module in modules:
        home = next((name for name in _ancestors(module.name) if name in blocks), None)
        (outside if home is None else blocks[home]).append(module)
        if home is None and any(blocks.values()):
            late.add(module.name)
    return Layout(outside, blocks, late, ordered)


def read_block(name: str, modules: Sequence[StoredModule], in_channels: int) -> BlockPlan:
    """Tell branch and shortcut of one block apart.

    Args:
        name: The block.
        modules: Its modules.
        in_channels: Channels that come in.

    Returns:
        The block, of stride 1 and stage 0.

    Raises:
        NotRecognised: If its shapes fit no basic or bottleneck block.
    """
    strange = next((module for module in modules if module.kind not in ("convolution", "norm")), None)
    if strange is not None:
        raise NotRecognised(f"{strange.name} of shape {strange.shape} is no part of a basic or bottleneck block")
    by_name = [module for module in modules if _is_shortcut_name(module.name[len(name) + 1 :])]
    branch = [module for module in modules if module not in by_name]
    if not any(module.kind == "convolution" for module in by_name):
        by_name = _shortcut_by_shape(branch, in_channels)
        branch = [module for module in branch if module not in by_name]
    convolutions = _chain([module for module in branch if module.kind == "convolution"], in_channels)
    if convolutions is None:
        shapes = ", ".join(str(module.shape) for module in branch if module.kind == "convolution")
        raise NotRecognised(
            f"the convolutions of block {name} don't follow one another: {in_channels} channels, {shapes}"
        )
    norms = [Norm(module.name, module.shape[0], module.has_bias) for module in branch if module.kind == "norm"]
    projection, projection_norm = _projection(name, by_name, in_channels, convolutions[-1].out_channels)
    return BlockPlan(
        name=name,
        stage=0,
        convolutions=tuple(convolutions),
        norms=tuple(norms),
        projection=projection,
        projection_norm=projection_norm,
        projection_pools=projection is not None and bool(re.search(r"\.1$", projection.name)),
    )


def _projection(
    name: str, modules: Sequence[StoredModule], in_channels: int, out_channels: int
) -> tuple[Convolution | None, Norm | None]:
    convolutions = [module for module in modules if module.kind == "convolution"]
    norms = [Norm(module.name, module.shape[0], module.has_bias) for module in modules if module.kind == "norm"]
    if not modules:
        return None, None
    chain = _chain(convolutions, in_channels)
    fits = len(convolutions) == 1 and len(norms) <= 1 and chain is not None
    if not fits or chain is None or {chain[0].out_channels, *(norm.channels for norm in norms)} != {out_channels}:
        raise NotRecognised(
            f"the shortcut of block {name} ({', '.join(module.name for module in modules)}) is no projection from "
            f"{in_channels} to {out_channels} channels"
        )
    return chain[0], (norms[0] if norms else None)


def _chain(modules: Sequence[StoredModule], in_channels: int) -> list[Convolution] | None:
    """Follow convolutions from one to the next; None where the channels don't fit."""
    chain = []
    for module in modules:
        out_channels, per_group, *kernel = module.shape
        groups, rest = divmod(in_channels, per_group)
        # pointwise convolutions with groups don't occur: there it is a sign that the order is another
        if rest or groups < 1 or out_channels % groups or (groups > 1 and module.is_pointwise):
            return None
        if any(side % 2 == 0 for side in kernel):
            return None
        height, width = kernel
        chain.append(
            Convolution(
                module.name, in_channels, out_channels, (height, width), groups=groups, has_bias=module.has_bias
            )
        )
        in_channels = out_channels
    return chain or None


def _shortcut_by_shape(branch: Sequence[StoredModule], in_channels: int) -> list[StoredModule]:
    """Find a projection without a telling name: a pointwise convolution without which the others form a chain."""
    convolutions = [module for module in branch if module.kind == "convolution"]
    if len(convolutions) < 3 or _chain(convolutions, in_channels) is not None:
        return []
    for candidate in convolutions:
        rest = [module for module in convolutions if module is not candidate]
        chain = _chain(rest, in_channels)
        fits = chain is not None and candidate.shape == (chain[-1].out_channels, in_channels, 1, 1)
        if candidate.is_pointwise and fits:
            norms = [module for module in branch if module.kind == "norm"]
            own = norms[convolutions.index(candidate)] if len(norms) == len(convolutions) else None
            return [candidate] if own is None else [candidate, own]
    return []


def _root(name: str, counts: Counter[str], modules: Sequence[StoredModule]) -> str | None:
    """Name the block that a convolution belongs to, or None."""
    root = next((ancestor for ancestor in _ancestors(name) if counts[ancestor] > 1), None)
    while root is not None and "." in root:
        parent, _, own = root.rpartition(".")
        is_indexed = own[-1].isdigit() and not BRANCH_NAME.fullmatch(own)
        beside = [
            module
            for module in modules
            if module.name.startswith(f"{parent}.") and not module.name.startswith(f"{root}.")
        ]
        others = sum(module.kind == "convolution" for module in beside)
        if is_indexed or others > 1 or any(module.kind == "linear" for module in beside):
            break
        root = parent
    return root


def _stem_root(roots: Sequence[str], convolutions: Sequence[str], ordered: bool) -> str | None:
    """Name the group of convolutions that is a stem of several layers, if there is one."""
    inside = {name: next((root for root in roots if name.startswith(f"{root}.")), None) for name in convolutions}
    if ordered:
        return inside[convolutions[0]]
    if any(root is None and _is_stem_name(name) for name, root in inside.items()):
        return None
    return next((root for root in inside.values() if root is not None and _is_stem_name(f"{root}.0")), None)


def _is_stem_name(name: str) -> bool:
    return any(re.fullmatch(naming.expression, name) for naming in STEMS)


def _is_shortcut_name(name: str) -> bool:
    return any(SHORTCUT_NAME.search(part) for part in name.split("."))


def _ancestors(name: str) -> list[str]:
    """List the modules around a module, from the inside out."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1)]
