"""Units as one graph each, in which ReLUs and additions overwrite what nothing else reads."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from resprobe.units import Segment, Segments, WholeModel
from resprobe.units.structure.operations import computes_as

# Modules and functions whose output is new memory that nothing else holds.
_NEW_MEMORY = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, _BatchNorm)
_ADDITIONS = (operator.add, operator.iadd, torch.add)
_RELUS = (F.relu, torch.relu, torch.relu_)


@dataclass(frozen=True, kw_only=True)
class FusedSegment(Segment):
    """A unit that runs as one graph.

    Attributes:
        whole: The whole unit.
    """

    whole: fx.GraphModule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the whole unit on `(N, *input_shape)`, which is left as it was."""
        return self.whole(x)  # type: ignore[no-any-return]


def work_in_place(segments: Segments | WholeModel) -> Segments | WholeModel:
    """Let the segments overwrite intermediate results, without a change of what they compute.

    Allocating an output for every ReLU and addition costs a small network a quarter of its time on a CPU. The input
    of a segment is never overwritten. The pieces of a fused unit stay what they were.

    Args:
        segments: The model's segments; a whole model is returned as it is. For inference: autograd may need what
            gets overwritten.

    Returns:
        Segments of the same function, bit for bit.
    """
    if isinstance(segments, WholeModel):
        return segments
    stem, head = (
        overwrite(module) if isinstance(module, fx.GraphModule) else module for module in (segments.stem, segments.head)
    )
    return Segments(stem, tuple(_fused(unit) for unit in segments.units), head)


def overwrite(module: fx.GraphModule) -> fx.GraphModule:
    """Make ReLUs and additions write into an operand that is new memory and read by nothing else.

    Args:
        module: What is not changed.

    Returns:
        A graph module with the same function that shares its modules.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    changed = fx.GraphModule(module, graph)
    new_memory: set[fx.Node] = set()
    for node in graph.nodes:
        called = _called(changed, node)
        operands = [argument for argument in node.args if isinstance(argument, fx.Node)]
        spare = operands[0] if operands and operands[0] in new_memory and len(operands[0].users) == 1 else None
        if isinstance(called, nn.ReLU) or called in _RELUS:
            if spare is not None:
                node.op, node.target, node.args, node.kwargs = "call_function", torch.relu_, (spare,), {}
            # a ReLU that overwrites what others hold gives no new memory
            if spare is not None or not _overwrites(called, node):
                new_memory.add(node)
        elif called in _ADDITIONS and len(operands) == len(node.args) == 2 and not node.kwargs:
            if spare is not None:
                node.target = add_into
            if spare is not None or called is not operator.iadd:
                new_memory.add(node)
        # a subclass may give back its own input
        elif computes_as(called, *_NEW_MEMORY) and not changed.get_submodule(str(node.target))._forward_hooks:
            new_memory.add(node)
    changed.delete_all_unused_submodules()
    changed.recompile()
    return changed


def add_into(total: torch.Tensor, other: torch.Tensor | float) -> torch.Tensor:
    """Add to a tensor in place, or to a new one where the sum has another shape or type."""
    if isinstance(other, torch.Tensor) and total.shape == other.shape and total.dtype == other.dtype:
        return total.add_(other)
    return total + other


def _fused(unit: Segment) -> Segment:
    pieces = {"pre": unit.pre, "branch": unit.branch, "skip": unit.skip, "post": unit.post}
    graph = fx.Graph()
    entry = _inline(graph, "pre", unit.pre, graph.placeholder("x"))
    total = _inline(graph, "branch", unit.branch, entry)
    if unit.kind != "plain":
        total = graph.call_function(operator.add, (total, _inline(graph, "skip", unit.skip, entry)))
    graph.output(_inline(graph, "post", unit.post, total))
    whole = overwrite(fx.GraphModule(nn.ModuleDict(pieces), graph))
    own = {name: getattr(unit, name) for name in Segment.__dataclass_fields__}
    return FusedSegment(whole=whole, **own)


def _inline(graph: fx.Graph, prefix: str, piece: nn.Module, argument: fx.Node) -> fx.Node:
    """Copy a piece with one input into a graph and give the node of its output."""
    if not isinstance(piece, fx.GraphModule):
        return graph.call_module(prefix, (argument,))
    values: dict[fx.Node, fx.Node] = {}
    for node in piece.graph.nodes:
        if node.op == "placeholder":
            values[node] = argument
        elif node.op == "output":
            result: Sequence[fx.Node] = node.args
            return values[result[0]]
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
            if node.op in ("call_module", "get_attr"):
                values[node].target = f"{prefix}.{node.target}"
    raise AssertionError("a graph without an output")


def _called(owner: fx.GraphModule, node: fx.Node) -> object:
    """Give the module or function that a node calls."""
    if node.op == "call_module":
        return owner.get_submodule(str(node.target))
    return node.target if node.op == "call_function" else None


def _overwrites(called: object, node: fx.Node) -> bool:
    if isinstance(called, nn.ReLU):
        return called.inplace
    return called is torch.relu_ or bool(node.kwargs.get("inplace", len(node.args) > 1 and node.args[1]))
