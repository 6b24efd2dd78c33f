"""Records a model's forward pass as a graph of operations."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import networkx as nx
import torch
from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from resprobe.errors import ResprobeError
from resprobe.units.structure.graphs import ModuleCall, TracedModel
from resprobe.units.structure.operations import is_data, is_size, overwritten


def private_copy(model: nn.Module) -> nn.Module:
    """Copy a model in evaluation mode, sharing nothing with it.

    Args:
        model: Any module; it is not touched.

    Returns:
        A deep copy with the user's hooks, in evaluation mode, whose parameters need no gradient.
    """
    return _copy(model, {}).eval().requires_grad_(False)


def trainable_copy(model: nn.Module) -> nn.Module:
    """Copy a model as `private_copy` does, with parameters that need a gradient where the model's do."""
    duplicate = private_copy(model)
    for own, given in zip(duplicate.parameters(), model.parameters(), strict=True):
        own.requires_grad_(given.requires_grad)
    return duplicate


def structural_copy(model: nn.Module) -> nn.Module:
    """Copy a model's modules in evaluation mode, sharing its tensors, to be traced and not to be run.

    Args:
        model: Any module; it is not touched.

    Returns:
        Modules without hooks that hold the model's own parameters and buffers.
    """
    tensors = [*model.parameters(), *model.buffers()]
    return without_hooks(_copy(model, {id(tensor): tensor for tensor in tensors}).eval())


def without_hooks(model: nn.Module) -> nn.Module:
    """Drop every forward hook of a private copy, so that tracing and replaying it call nobody else's code."""
    for module in model.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return model


def trace(model: nn.Module) -> TracedModel:
    """Record the operations of a model's forward pass and find its trunk.

    The trunk is the chain of dominators of the output: a point of it carries everything that the rest of the
    model needs, except for sizes that it may have read before. Arguments after the first keep their defaults.

    Args:
        model: A module with one tensor input and one tensor output, in the mode in which it is to run.

    Returns:
        The graph, the module calls and the trunk.

    Raises:
        ResprobeError: If torch.fx can't follow the model's forward pass, or its output is not one tensor.
    """
    opaque: dict[str, str] = {}
    tracer = _CallRecorder(opaque)
    # Symbolic tracing runs the user's own forward with stand-ins for tensors: anything can go wrong in there.
    try:
        with _of_one_argument(model):
            while (graph := _attempt(tracer, model)) is None:
                tracer = _CallRecorder(opaque)
    except Exception as error:
        raise ResprobeError(
            f"model {type(model).__name__}: expected a forward pass that torch.fx can trace, got "
            f"{_describe(error)}; avoid control flow that depends on tensor values, or name the units with units= "
            "and shortcut="
        ) from error
    source = next(node for node in graph.nodes if node.op == "placeholder")
    _mark(model, graph, source)
    _read_after_write(model, graph)
    _drop_unused(graph)
    kept = set(graph.nodes)
    calls = tuple(call for call in tracer.calls if call.output in kept)
    output = _output(graph, source, type(model).__name__)
    dominators = _dominators(graph, source, with_sizes=False)
    trunk = _trunk(source, output, dominators)
    cuts = frozenset(_trunk(source, output, _dominators(graph, source, with_sizes=True))) & set(trunk)
    return TracedModel(model, graph, calls, dominators, trunk, cuts, opaque)


def _copy(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    if isinstance(model, torch.jit.ScriptModule):
        raise ResprobeError(
            f"model {type(model).__name__}: expected a Python module, got TorchScript; give the module that it was "
            "made of"
        )
    try:
        return copy.deepcopy(model, memo)
    except (RuntimeError, TypeError) as error:
        raise ResprobeError(
            f"model {type(model).__name__}: expected a module that copy.deepcopy can copy, got {error}; "
            "remove what can't be copied (tensors that carry a gradient graph, open files)"
        ) from error


class _UntraceableModuleError(Exception):
    """A module inside the model whose forward torch.fx can't follow."""


class _CallRecorder(fx.Tracer):
    """A tracer that also notes in which module each node was made and what every module call returned.

    Args:
        opaque: Modules that become one operation each; the innermost module in which tracing fails is added.
    """

    def __init__(self, opaque: dict[str, str]) -> None:
        super().__init__()
        self.calls: list[ModuleCall] = []
        self.opaque = opaque
        self._scopes = [""]

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["scope"] = self._scopes[-1]
        return node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # a subclass that computes its weights anew (weight standardisation) is still one weight layer
        is_weighted = isinstance(m, (_ConvNd, nn.Linear, nn.MultiheadAttention))
        return is_weighted or module_qualified_name in self.opaque or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = self.path_of_module(m)
        try:
            with self._inside(m, name):
                output = super().call_module(m, forward, args, kwargs)
        except _UntraceableModuleError:
            raise
        except Exception as error:
            if self.is_leaf_module(m, name):
                raise
            self.opaque[name] = _describe(error)
            raise _UntraceableModuleError(name) from error
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


def _attempt(tracer: _CallRecorder, model: nn.Module) -> fx.Graph | None:
    """Trace a model; None asks for another attempt, since one more module is known to be untraceable."""
    try:
        return tracer.trace(model)
    except _UntraceableModuleError:
        return None


def _describe(error: Exception) -> str:
    message = str(error).strip().splitlines()
    return f"{type(error).__name__}: {message[0] if message else 'no message'}"


@contextmanager
def _of_one_argument(model: nn.Module) -> Iterator[None]:
    """Let a private copy's forward take the images alone, so that the other arguments have their defaults.

    torch.fx would put stand-ins in their place, which pass every `if mask is not None`, and it looks for the forward
    in the model's class.
    """
    own_class, own_forward = type(model), model.forward
    model.__class__ = type(own_class.__name__, (own_class,), {"forward": lambda self, x: own_forward(x)})
    try:
        yield
    finally:
        model.__class__ = own_class


def _mark(root: nn.Module, graph: fx.Graph, source: fx.Node) -> None:
    """Note at each node whether it depends on the input, and what it reads of the model's parameters."""
    for node in graph.nodes:
        reads_data = any(is_data(read) for read in node.all_input_nodes)
        node.meta["is_data"] = node is source or (reads_data and not is_size(node))
        parameters = [_parameter(root, str(node.target))] if node.op == "get_attr" else []
        found = [parameter for parameter in parameters if parameter is not None]
        constants = [read for read in node.all_input_nodes if not is_data(read)]
        node.meta["learned"] = bool(found) or any(read.meta["learned"] for read in constants)
        node.meta["matrix"] = any(p.ndim > 1 for p in found) or any(read.meta["matrix"] for read in constants)


def _parameter(root: nn.Module, name: str) -> nn.Parameter | None:
    parent, _, attribute = name.rpartition(".")
    value = getattr(root.get_submodule(parent), attribute, None)
    return value if isinstance(value, nn.Parameter) else None


def _read_after_write(root: nn.Module, graph: fx.Graph) -> None:
    """Let every node that reads a tensor after an in-place operation on it read that operation's result."""
    position = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        written = overwritten(root, node)
        if written is not None:
            for user in list(written.users):
                if position[user] > position[node]:
                    user.replace_input_with(written, node)


def _drop_unused(graph: fx.Graph) -> None:
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)


def _dominators(graph: fx.Graph, source: fx.Node, *, with_sizes: bool) -> dict[fx.Node, fx.Node]:
    structure = nx.DiGraph()
    structure.add_node(source)
    for node in graph.nodes:
        reads = [read for read in node.all_input_nodes if with_sizes or (is_data(read) and is_data(node))]
        structure.add_edges_from((read, node) for read in reads)
    return dict(nx.immediate_dominators(structure, source))


def _output(graph: fx.Graph, source: fx.Node, model_name: str) -> fx.Node:
    output = next(node for node in graph.nodes if node.op == "output").args[0]
    if not is_data(output) or output is source:
        raise ResprobeError(
            f"model {model_name}: expected one tensor of logits as output, got {output}; "
            "wrap the model in a module that returns the logits alone"
        )
    assert isinstance(output, fx.Node)
    return output


def _trunk(source: fx.Node, output: fx.Node, dominators: dict[fx.Node, fx.Node]) -> tuple[fx.Node, ...]:
    trunk = [output]
    while trunk[-1] is not source:
        trunk.append(dominators[trunk[-1]])
    return tuple(reversed(trunk))
