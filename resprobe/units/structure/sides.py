"""Tells the shortcut of a sum from its branch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from torch import fx

from resprobe.units.structure.graphs import TracedModel, between
from resprobe.units.structure.operations import (
    Term,
    called_module,
    factors,
    is_complement,
    is_data,
    parameters_read,
    weight_depth,
    weight_layers,
)


@dataclass(frozen=True)
class Sides:
    """The two sides of an addition; the attributes are those of `Span`."""

    branch: tuple[Term, ...]
    skip: tuple[Term, ...]
    remains: tuple[Term, ...]
    is_gated: bool = False
    gate: fx.Node | None = None
    status: str = "ok"


def tell_apart(traced: TracedModel, fork: fx.Node, summands: Sequence[Term]) -> Sides:
    """Order the summands of an addition as branch and shortcut.

    The shortcut is the fork itself; else, in a Highway sum `T * H + (1 - T) * x`, the side whose value reaches the
    sum with less weight; else the summand with least weight.

    Args:
        traced: The model's graph.
        fork: The point from which all summands come.
        summands: Two or more.

    Returns:
        The two sides, with the reason in `status` where neither is the shortcut.

    References:
        Srivastava, Greff, Schmidhuber 2015, Highway Networks (arXiv 1505.00387), equation 3.
    """
    direct = tuple(term for term in summands if term.node is fork)
    if direct:
        branch = tuple(term for term in summands if term.node is not fork)
        return Sides(branch, direct, direct)
    highway = _highway(traced, fork, summands)
    if highway is not None:
        return highway
    first, second, *_ = ranked = sorted(summands, key=lambda term: _weight(traced, fork, term.node))
    skip, branch = (first,), tuple(term for term in summands if term is not first)
    if _weight(traced, fork, first.node) == _weight(traced, fork, second.node):
        status = "both sides of the addition have the same layers, so neither is the shortcut"
        return Sides(tuple(ranked[1:]), skip, skip, status=status)
    if weight_depth(traced.root, between(fork, first.node)) > 1:
        status = "each side of the addition has several weight layers in a row, so neither is the shortcut"
        return Sides(branch, skip, skip, status=status)
    return Sides(branch, skip, skip, is_gated=_is_gated(fork, first.node))


def is_learned(traced: TracedModel, node: fx.Node) -> bool:
    """Tell whether a node computes with parameters of the model."""
    module = called_module(traced.root, node)
    reads = any(read.meta["learned"] for read in node.all_input_nodes if not is_data(read))
    return reads or (module is not None and any(True for _ in module.parameters()))


def _highway(traced: TracedModel, fork: fx.Node, summands: Sequence[Term]) -> Sides | None:
    if len(summands) != 2 or any(term.scale != 1 for term in summands):
        return None
    products = [factors(term.node) for term in summands]
    if products[0] is None or products[1] is None:
        return None
    for gate, transformed in permutations(products[0]):
        for complement, carried in permutations(products[1]):
            if is_complement(complement, gate) or is_complement(gate, complement):
                ends = [(gate, transformed, summands[0]), (complement, carried, summands[1])]
                return _coupled(traced, fork, ends)
    return None


def _coupled(traced: TracedModel, fork: fx.Node, ends: list[tuple[fx.Node, fx.Node, Term]]) -> Sides:
    """Order the sides of a sum whose gates add up to 1 by the weight of what the gates multiply."""
    ends = sorted(ends, key=lambda end: _weight(traced, fork, end[1]))
    (_, carried, skip), (gate, transformed, branch) = ends
    same = _weight(traced, fork, carried) == _weight(traced, fork, transformed)
    status = "both gates multiply the same layers, so neither side is the shortcut" if same else "ok"
    return Sides((branch,), (skip,), (Term(carried),), is_gated=True, gate=gate, status=status)


def _is_gated(fork: fx.Node, node: fx.Node) -> bool:
    product = factors(node)
    return product is not None and fork in product and all(is_data(factor) for factor in product)


def _weight(traced: TracedModel, fork: fx.Node, end: fx.Node) -> tuple[int, int]:
    if end is fork:
        return (0, 0)
    nodes = between(fork, end)
    numbers = sum(parameter.numel() for parameter in parameters_read(traced.root, nodes))
    return weight_layers(traced.root, nodes), numbers
