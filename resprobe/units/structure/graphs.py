"""Questions to a traced model's graph, and the functions cut out of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import fx, nn

from resprobe.units.structure.operations import Term, is_data, overwritten


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module while the model ran: the module's name, the tensors it read, the tensor it gave."""

    name: str
    inputs: tuple[fx.Node, ...]
    output: fx.Node


@dataclass(frozen=True)
class TracedModel:
    """A model as a graph of operations.

    Attributes:
        root: The module that holds the parameters.
        graph: Every operation of one forward pass that the output depends on, in order.
        calls: Every module call, in order, nested ones included.
        dominators: For each tensor the nearest one that all of the input's influence on it passes through; sizes
            are no influence.
        trunk: The tensors that all of the input's influence on the output passes through, from the input on.
        cuts: The nodes of the trunk at which the model can be cut, since the rest reads no size from before either.
        opaque: Modules that torch.fx can't follow, which the graph has as one operation each, and why it can't.
    """

    root: nn.Module
    graph: fx.Graph
    calls: tuple[ModuleCall, ...]
    dominators: Mapping[fx.Node, fx.Node]
    trunk: tuple[fx.Node, ...]
    cuts: frozenset[fx.Node]
    opaque: Mapping[str, str]


def piece(
    traced: TracedModel,
    start: fx.Node,
    end: fx.Node | Sequence[Term],
    *,
    replaced: Mapping[fx.Node, Sequence[Term]] | None = None,
) -> fx.GraphModule:
    """Cut out the function that leads from one node to another.

    Args:
        traced: The traced model.
        start: The node whose value is the function's one input.
        end: The node, or the sum of nodes, whose value is its output; every input of it must come from `start` or
            be a constant.
        replaced: Nodes in whose place a sum of earlier nodes stands.

    Returns:
        A module that shares its parameters with the traced model and never writes into its input.
    """
    return fx.GraphModule(traced.root, piece_graph(traced, start, end, replaced=replaced))


def piece_graph(
    traced: TracedModel,
    start: fx.Node,
    end: fx.Node | Sequence[Term],
    *,
    replaced: Mapping[fx.Node, Sequence[Term]] | None = None,
) -> fx.Graph:
    """Cut out the same function as `piece`, as a graph alone.

    Args:
        traced: As in `piece`.
        start: As in `piece`.
        end: As in `piece`.
        replaced: As in `piece`.

    Returns:
        A graph with one placeholder.
    """
    ends = [Term(end)] if isinstance(end, fx.Node) else list(end)
    substitutes = dict(replaced or {})
    required = _required(start, [term.node for term in ends], substitutes)
    graph = fx.Graph()
    values = {start: graph.placeholder("x")}
    # what torch.fx can't follow may write into its input too
    if any(overwritten(traced.root, node) is not None or _is_opaque(traced, node) for node in required):
        values[start] = graph.call_method("clone", (values[start],))
    for node in traced.graph.nodes:
        if node not in required:
            continue
        if node in substitutes:
            values[node] = _sum(graph, substitutes[node], values)
        elif node.op == "placeholder":
            values[node] = node.args[0]
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
    graph.output(_sum(graph, ends, values))
    return graph


def required(start: fx.Node, *ends: fx.Node) -> set[fx.Node]:
    """Give every node that some nodes' values are computed from, back to a start, which is not included."""
    return _required(start, list(ends), {})


def flow(start: fx.Node, *ends: fx.Node) -> set[fx.Node]:
    """Give the same as `required` without constants, sizes and what only they need."""
    found: set[fx.Node] = set()
    pending = list(ends)
    while pending:
        node = pending.pop()
        if node is not start and node not in found and is_data(node):
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def descendants(node: fx.Node) -> set[fx.Node]:
    """Give every tensor that depends on a node, other than by its size."""
    found: set[fx.Node] = set()
    pending = [node]
    while pending:
        for user in pending.pop().users:
            if user not in found and is_data(user):
                found.add(user)
                pending.append(user)
    return found


def between(start: fx.Node, *ends: fx.Node) -> list[fx.Node]:
    """List the tensors on paths from one node to some others, without the first, with the last, in graph order."""
    wanted = flow(start, *ends) & descendants(start)
    return [node for node in start.graph.nodes if node in wanted]


def scope(node: fx.Node) -> str:
    """Name the module in whose forward a node was recorded; the empty string is the model itself."""
    return str(node.meta["scope"])


def common_scope(nodes: Sequence[fx.Node]) -> str:
    """Name the innermost module in whose forward all of some nodes were recorded."""
    parts = [scope(node).split(".") for node in nodes]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def is_inside(name: str, parent: str) -> bool:
    """Tell whether a module is another one or lies in it; everything lies in the model, the empty string."""
    return not parent or name == parent or name.startswith(f"{parent}.")


def _required(start: fx.Node, ends: Sequence[fx.Node], replaced: Mapping[fx.Node, Sequence[Term]]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    pending = list(ends)
    while pending:
        node = pending.pop()
        if node is not start and node not in found:
            found.add(node)
            pending.extend([term.node for term in replaced[node]] if node in replaced else node.all_input_nodes)
    return found


def _is_opaque(traced: TracedModel, node: fx.Node) -> bool:
    return node.op == "call_module" and str(node.target) in traced.opaque


def _sum(graph: fx.Graph, summands: Sequence[Term], values: Mapping[fx.Node, fx.Node]) -> fx.Node:
    scaled = [
        values[term.node] if term.scale == 1 else graph.call_method("mul", (values[term.node], term.scale))
        for term in summands
    ]
    total = scaled[0]
    for value in scaled[1:]:
        total = graph.call_method("add", (total, value))
    return total
