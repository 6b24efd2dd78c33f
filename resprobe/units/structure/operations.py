"""What single operations of a computation graph do: weights, activations, additions, gates, writes in place."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase

ADDITIONS = frozenset({"add", "iadd"})
CONCATENATIONS = frozenset({"cat", "concat", "concatenate"})
_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)

_SUBTRACTIONS = frozenset({"sub", "isub", "subtract"})
_PRODUCTS = frozenset({"mul", "imul", "multiply"})
_ACTIVATIONS = frozenset(
    {"relu", "relu6", "gelu", "silu", "elu", "selu", "celu", "leaky_relu", "hardtanh", "hardswish"}
    | {"mish", "softplus", "tanh", "sigmoid"}
)
_IN_PLACE_OPERATORS = frozenset(
    {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor"}
    | {"ilshift", "irshift"}
)
# operations that can read a parameter of several dimensions without being a linear map of their input
_NO_LINEAR_MAPS = (
    ADDITIONS
    | _SUBTRACTIONS
    | _PRODUCTS
    | CONCATENATIONS
    | {"truediv", "div", "itruediv", "pow", "stack", "where", "lerp", "maximum", "minimum", "prelu", "getitem"}
    | {"expand", "expand_as", "view_as", "reshape_as", "type_as", "to"}
)
# f(0) = 0, whatever the other arguments are
_KEEP_ZERO = (
    _PRODUCTS
    | {"truediv", "div", "itruediv", "neg", "getitem", "chunk", "split", "clone", "contiguous", "to", "type_as"}
    | {"permute", "transpose", "swapaxes", "reshape", "view", "flatten", "unflatten", "unsqueeze", "squeeze", "roll"}
    | {"relu", "relu6", "gelu", "silu", "tanh", "dropout", "dropout2d", "drop_path", "stochastic_depth"}
    | {"interpolate", "avg_pool2d", "adaptive_avg_pool2d", "mean", "sum"}
)
_KEEP_ZERO_MODULES = (
    *(nn.Identity, nn.Dropout, nn.Dropout2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Unflatten),
    *(nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.PixelShuffle, nn.Upsample, nn.ZeroPad2d),
)


@dataclass(frozen=True)
class Term:
    """One summand: a node's value times a number."""

    node: fx.Node
    scale: float = 1.0


def operation(node: fx.Node) -> str:
    """Name an operation: `add` for torch.add, the operator and the method alike; the empty string for a module."""
    if node.op == "call_module":
        return ""
    name = str(getattr(node.target, "__name__", node.target))
    return name.rstrip("_") if node.op == "call_method" or name.endswith("_") else name


def called_module(root: nn.Module, node: fx.Node) -> nn.Module | None:
    """Give the module that a node calls, or None for any other operation."""
    return root.get_submodule(str(node.target)) if node.op == "call_module" else None


def computes_as(module: object, *classes: type[nn.Module]) -> bool:
    """Tell whether a module runs the forward of one of PyTorch's classes, not that of a subclass or an assigned one."""
    methods = ("forward", "_conv_forward")
    return any(
        isinstance(module, known)
        and all(getattr(type(module), name, None) is getattr(known, name, None) for name in methods)
        and not any(name in vars(module) for name in methods)
        for known in classes
    )


def is_data(node: object) -> bool:
    """Tell whether something is a node whose value depends on the values of the model's input, not only on its size."""
    return isinstance(node, fx.Node) and bool(node.meta["is_data"])


def is_size(node: fx.Node) -> bool:
    """Tell whether a node asks for a tensor's size or type rather than its values."""
    asks_attribute = node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device")
    return asks_attribute or (node.op == "call_method" and node.target in ("size", "dim", "numel", "type"))


def overwritten(root: nn.Module, node: fx.Node) -> fx.Node | None:
    """Give the argument that a node writes its result into, or None where its result is another tensor."""
    into = node.kwargs.get("out")
    if into is None and node.args and _works_in_place(root, node):
        into = node.args[0]
    return into if isinstance(into, fx.Node) else None


def _works_in_place(root: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    name = getattr(node.target, "__name__", str(node.target))
    is_method = name.endswith("_") and not name.endswith("__")
    # functional activations take `inplace` by keyword or by position
    says_so = node.op == "call_function" and (
        bool(node.kwargs.get("inplace", False)) or any(arg is True for arg in node.args)
    )
    return is_method or name.strip("_") in _IN_PLACE_OPERATORS or says_so


def is_known_kind(module: nn.Module) -> bool:
    """Tell whether PyTorch or this package wrote a module's forward pass, which keeps nothing between calls."""
    return isinstance(module, fx.GraphModule) or type(module).__module__.startswith(("torch.nn.modules.", "resprobe."))


def is_weight_layer(root: nn.Module, node: fx.Node) -> bool:
    """Tell whether a node applies a weight matrix or kernel, through a module or through a function."""
    module = called_module(root, node)
    if module is not None:
        return any(parameter.ndim > 1 for parameter in module.parameters())
    if node.op not in ("call_function", "call_method") or not is_data(node):
        return False
    name = operation(node)
    weights = [source for source in node.all_input_nodes if source.meta["matrix"] and not is_data(source)]
    return bool(weights) and name not in _NO_LINEAR_MAPS and "norm" not in name


def weight_layers(root: nn.Module, nodes: Iterable[fx.Node]) -> int:
    """Count the operations with a weight matrix or kernel among some nodes."""
    return sum(is_weight_layer(root, node) for node in nodes)


def weight_depth(root: nn.Module, nodes: Iterable[fx.Node]) -> int:
    """Count the weight layers on the path that has most of them.

    Args:
        root: The module that holds the parameters.
        nodes: A part of a graph, in graph order.

    Returns:
        The largest number of weight layers that follow one another.
    """
    depth: dict[fx.Node, int] = {}
    for node in nodes:
        before = max((depth.get(source, 0) for source in node.all_input_nodes), default=0)
        depth[node] = before + is_weight_layer(root, node)
    return max(depth.values(), default=0)


def attributes_read(node: fx.Node) -> list[fx.Node]:
    """List the nodes that fetch the parameters and buffers that an operation reads, directly or computed from."""
    found: dict[fx.Node, None] = {}
    pending = [read for read in node.all_input_nodes if not is_data(read)]
    while pending:
        read = pending.pop()
        if read not in found:
            found[read] = None
            pending.extend(before for before in read.all_input_nodes if not is_data(before))
    return [read for read in found if read.op == "get_attr"]


def parameters_read(root: nn.Module, nodes: Iterable[fx.Node]) -> set[nn.Parameter]:
    """Collect the parameters that some operations use, through modules or by name."""
    found: set[nn.Parameter] = set()
    for node in nodes:
        module = called_module(root, node)
        found.update(module.parameters() if module is not None else ())
        for read in attributes_read(node):
            parent, _, attribute = str(read.target).rpartition(".")
            if read.meta["learned"]:
                found.add(getattr(root.get_submodule(parent), attribute))
    return found


def is_activation(root: nn.Module, node: fx.Node) -> bool:
    """Tell whether a node is a nonlinearity that works element by element."""
    module = called_module(root, node)
    if module is not None:
        is_attention = isinstance(module, nn.MultiheadAttention)
        return type(module).__module__ == "torch.nn.modules.activation" and not is_attention
    return operation(node) in _ACTIVATIONS


def is_norm_module(module: nn.Module | None) -> bool:
    """Tell whether a module is a normalisation."""
    return isinstance(module, _NORMS)


def is_norm(root: nn.Module, node: fx.Node) -> bool:
    """Tell whether a node is a normalisation."""
    return is_norm_module(called_module(root, node)) or "norm" in operation(node)


def keeps_zero(root: nn.Module, node: fx.Node) -> bool:
    """Tell whether a node gives zeros for zeros, in evaluation mode."""
    module = called_module(root, node)
    if module is not None:
        return isinstance(module, _KEEP_ZERO_MODULES)
    return operation(node) in _KEEP_ZERO


def adds_up(node: fx.Node) -> bool:
    """Tell whether a node gives zeros where all its operands are zeros, and not otherwise."""
    return operation(node) in ADDITIONS | _SUBTRACTIONS | CONCATENATIONS | {"stack"}


def operands(node: fx.Node) -> list[Any]:
    """List what an operation adds up or joins: nodes, numbers, or the members of its list of tensors."""
    first = node.args[0] if node.args else None
    if isinstance(first, (list, tuple)):
        return list(first)
    return [*node.args, *(node.kwargs[key] for key in ("input", "other") if key in node.kwargs)]


def addends(node: fx.Node) -> tuple[tuple[Any, float], tuple[Any, float]] | None:
    """Take an addition or subtraction apart.

    Args:
        node: Any node.

    Returns:
        The two operands (nodes or numbers) and their factors, or None for any other operation.
    """
    name = operation(node)
    alpha = node.kwargs.get("alpha", 1)
    if name not in ADDITIONS | _SUBTRACTIONS or not isinstance(alpha, (int, float)) or len(operands(node)) != 2:
        return None
    left, right = operands(node)
    return (left, 1.0), (right, -alpha if name in _SUBTRACTIONS else alpha)


def terms(node: fx.Node) -> list[Term]:
    """Write a node as a sum: `x + f(x) + g(x)` has three terms.

    Additions are taken apart where the inner one is read by nobody else, and where both operands depend on the
    model's input: `a * x + b` with constants is one term.

    Args:
        node: Any node.

    Returns:
        The terms in order; the node itself where it is no such addition.
    """
    pair = addends(node)
    if pair is None:
        return [Term(node)]
    # the built-in sum starts with 0
    summands = [(operand, scale) for operand, scale in pair if is_data(operand) or operand != 0]
    if not all(is_data(operand) for operand, _ in summands):
        return [Term(node)]
    found = []
    for operand, scale in summands:
        inner = terms(operand) if list(operand.users) == [node] else [Term(operand)]
        found += [Term(term.node, scale * term.scale) for term in inner]
    return found


def factors(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Give the two tensors that a node multiplies, or None for any other operation."""
    if operation(node) not in _PRODUCTS or len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    return (left, right) if isinstance(left, fx.Node) and isinstance(right, fx.Node) else None


def is_complement(node: fx.Node, gate: fx.Node) -> bool:
    """Tell whether a node is `1 - gate`."""
    pair = addends(node)
    if operation(node) == "rsub":
        return list(node.args[:2]) == [gate, 1]
    if pair is None:
        return False
    (left, _), (right, sign) = pair
    if sign < 0:
        return left == 1 and right is gate
    negative = next((side for side in (left, right) if isinstance(side, fx.Node) and operation(side) == "neg"), None)
    return 1 in (left, right) and negative is not None and negative.args[0] is gate
