"""The computation graph of a model: its trunk, and the pieces between two points of the trunk."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import networkx as nx
from torch import fx, nn

from resprobe.errors import ResprobeError


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
        graph: Every operation of one forward pass, in order.
        calls: Every module call, in order, nested ones included.
        trunk: The nodes that every path from the input to the output passes through, from the input on.
    """

    root: nn.Module
    graph: fx.Graph
    calls: tuple[ModuleCall, ...]
    trunk: tuple[fx.Node, ...]


def private_copy(model: nn.Module) -> nn.Module:
    """Copy a model in evaluation mode, sharing nothing with it.

    Args:
        model: Any module; it is not touched.

    Returns:
        A deep copy with the user's hooks, in evaluation mode, whose parameters need no gradient.

    Raises:
        ResprobeError: If the model can't be copied.
    """
    try:
        duplicate = copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise ResprobeError(
            f"model {type(model).__name__}: expected a module that copy.deepcopy can copy, got {error}; "
            "remove what can't be copied (tensors that carry a gradient graph, open files)"
        ) from error
    return duplicate.eval().requires_grad_(False)


def without_hooks(model: nn.Module) -> nn.Module:
    """Drop every forward hook of a private copy, so that tracing and replaying it call nobody else's code."""
    for module in model.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return model


def trace(model: nn.Module) -> TracedModel:
    """Record the operations of a model's forward pass and find its trunk.

    The trunk is the chain of dominators of the output: a point of it carries everything that the rest of the
    model needs, so the model can be cut there.

    Args:
        model: A module with one tensor input and one tensor output, in the mode in which it is to run.

    Returns:
        The graph, the module calls and the trunk.

    Raises:
        ResprobeError: If torch.fx can't follow the model's forward pass, or its output is not one tensor.
    """
    tracer = _CallRecorder()
    # Symbolic tracing runs the user's own forward with stand-ins for tensors: anything can go wrong in there.
    try:
        graph = tracer.trace(model)
    except Exception as error:
        raise ResprobeError(
            f"model {type(model).__name__}: expected a forward pass that torch.fx can trace, got "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}; "
            "avoid control flow that depends on tensor values"
        ) from error
    _read_after_write(model, graph)
    return TracedModel(model, graph, tuple(tracer.calls), _trunk(graph, type(model).__name__))


def piece(traced: TracedModel, start: fx.Node, end: fx.Node) -> fx.GraphModule:
    """Cut out the function that leads from one node to another.

    Args:
        traced: The traced model.
        start: The node whose value is the function's one input.
        end: The node whose value is its output; every input of it must come from `start` or be a constant.

    Returns:
        A module that shares its parameters with the traced model and never writes into its input.
    """
    needed = _needed(start, end)
    graph = fx.Graph()
    values = {start: graph.placeholder("x")}
    if any(_works_in_place(traced.root, node) for node in needed):
        values[start] = graph.call_method("clone", (values[start],))
    for node in traced.graph.nodes:
        if node in needed:
            if node.op == "placeholder":
                values[node] = node.args[0]
            else:
                values[node] = graph.node_copy(node, values.__getitem__)
    graph.output(values[end])
    return fx.GraphModule(traced.root, graph)


def descendants(node: fx.Node) -> set[fx.Node]:
    """Give every node that depends on a node."""
    found: set[fx.Node] = set()
    pending = [node]
    while pending:
        for user in pending.pop().users:
            if user not in found:
                found.add(user)
                pending.append(user)
    return found


def between(start: fx.Node, end: fx.Node) -> list[fx.Node]:
    """List the nodes on paths from one node to another, without the first, with the last, in graph order."""
    after = descendants(start)
    wanted = _needed(start, end) & (after | {end})
    return [node for node in start.graph.nodes if node in wanted]


def called_module(traced: TracedModel, node: fx.Node) -> nn.Module | None:
    """Give the module that a node calls, or None for any other operation."""
    return traced.root.get_submodule(str(node.target)) if node.op == "call_module" else None


def scope(node: fx.Node) -> str:
    """Name the module in whose forward a node was recorded; the empty string is the model itself."""
    return str(node.meta["scope"])


class _CallRecorder(fx.Tracer):
    """A tracer that also notes in which module each node was made and what every module call returned."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[ModuleCall] = []
        self._scopes = [""]

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["scope"] = self._scopes[-1]
        return node

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = self.path_of_module(m)
        with self._inside(m, name):
            output = super().call_module(m, forward, args, kwargs)
        if isinstance(output, fx.Proxy):
            inputs = tuple(arg.node for arg in (*args, *kwargs.values()) if isinstance(arg, fx.Proxy))
            self.calls.append(ModuleCall(name, inputs, output.node))
        return output

    @contextmanager
    def _inside(self, module: nn.Module, name: str) -> Iterator[None]:
        # A leaf becomes one node, which belongs to the module that calls it.
        self._scopes.append(self._scopes[-1] if self.is_leaf_module(module, name) else name)
        try:
            yield
        finally:
            self._scopes.pop()


def _read_after_write(root: nn.Module, graph: fx.Graph) -> None:
    """Let every node that reads a tensor after an in-place operation on it read that operation's result."""
    position = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if _works_in_place(root, node) and node.args and isinstance(node.args[0], fx.Node):
            written = node.args[0]
            for user in list(written.users):
                if position[user] > position[node]:
                    user.replace_input_with(written, node)


def _trunk(graph: fx.Graph, model_name: str) -> tuple[fx.Node, ...]:
    source = next(node for node in graph.nodes if node.op == "placeholder")
    output = next(node for node in graph.nodes if node.op == "output").args[0]
    if not isinstance(output, fx.Node) or output not in descendants(source):
        raise ResprobeError(
            f"model {model_name}: expected one tensor of logits as output, got {output}; "
            "wrap the model in a module that returns the logits alone"
        )
    structure = nx.DiGraph((parent, node) for node in graph.nodes for parent in node.all_input_nodes)
    dominator = nx.immediate_dominators(structure, source)
    trunk = [output]
    while trunk[-1] is not source:
        trunk.append(dominator[trunk[-1]])
    return tuple(reversed(trunk))


def _needed(start: fx.Node, end: fx.Node) -> set[fx.Node]:
    needed: set[fx.Node] = set()
    pending = [end]
    while pending:
        node = pending.pop()
        if node is not start and node not in needed:
            needed.add(node)
            pending.extend(node.all_input_nodes)
    return needed


def _works_in_place(root: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    name = getattr(node.target, "__name__", str(node.target))
    is_method = name.endswith("_") and not name.endswith("__")
    # functional activations take `inplace` by keyword or by position
    says_so = node.op == "call_function" and (
        bool(node.kwargs.get("inplace", False)) or any(arg is True for arg in node.args)
    )
    return is_method or name in _IN_PLACE_OPERATORS or says_so


_IN_PLACE_OPERATORS = frozenset({"iadd", "isub", "imul", "itruediv"})
