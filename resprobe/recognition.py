"""Recognises residual units and plain layers in the graph of a model.

A residual unit is a fork and a join: an addition on the trunk whose two sides come from the trunk point before it.
Nothing depends on the names of modules; they only serve to name what was found.
"""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from resprobe.bypass import Bypass
from resprobe.tracing import TracedModel, between, called_module, scope

_ADDITIONS = frozenset({"add", "iadd"})
_ACTIVATIONS = frozenset(
    {"relu", "relu6", "gelu", "silu", "elu", "selu", "celu", "leaky_relu", "hardtanh", "hardswish"}
    | {"mish", "softplus", "tanh", "sigmoid"}
)
_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)


@dataclass(frozen=True)
class Span:
    """Where a unit lies in the graph: `start -> fork -> (branch_end + skip_end = join) -> end`.

    A plain layer has no join: its branch leads from the fork to the end, and `skip_end` is None.

    Attributes:
        name: The module that holds the unit.
        start: The unit's input.
        fork: Where branch and shortcut part; the start of a plain layer's own operations.
        branch_end: The last node of the branch.
        skip_end: The last node of the shortcut; the fork itself for an identity.
        join: The addition.
        end: The unit's output.
        status: `ok`, or why the unit can't be deleted.
        silenced: Modules to silence when the unit is deleted by hooks.
        bypassed: Modules to bypass when a plain layer is deleted by hooks, and by what.
        hook_problem: Why hooks can't delete the unit; empty where they can.
    """

    name: str
    start: fx.Node
    fork: fx.Node
    branch_end: fx.Node
    skip_end: fx.Node | None
    join: fx.Node
    end: fx.Node
    status: str = "ok"
    silenced: tuple[str, ...] = ()
    bypassed: tuple[tuple[str, Bypass], ...] = ()
    hook_problem: str = ""


def residual_spans(traced: TracedModel) -> list[Span]:
    """List the residual units of a traced model, in order.

    Args:
        traced: The model's graph.

    Returns:
        One span for each addition on the trunk that joins a branch and a shortcut.
    """
    spans: list[Span] = []
    for fork, join in pairwise(traced.trunk):
        sides = _sides(fork, join)
        if sides is None:
            continue
        status, (branch_end, skip_end) = _tell_apart(traced, fork, sides)
        end = _after_activation(traced, join)
        start = spans[-1].end if spans else fork
        spans.append(Span("", start, fork, branch_end, skip_end, join, end, status))
    spans = _named(traced, spans)
    if spans:
        spans[0] = replace(spans[0], start=_first_start(traced, spans[0]))
    return [_with_silenced_module(traced, span) for span in spans]


def plain_spans(traced: TracedModel) -> list[Span]:
    """List the plain layers of a model without shortcuts, in order.

    A layer is a convolution or linear map with the normalisation and activation that belong to it: those that
    follow, or in a pre-activation block those that come before. The first weight layer is the stem and the last
    one the classifier; neither is a unit.

    Args:
        traced: The model's graph.

    Returns:
        One span for each layer between stem and classifier.
    """
    members = _layer_members(traced)[1:-1]
    spans: list[Span] = []
    for nodes in members:
        before = traced.trunk[traced.trunk.index(nodes[0]) - 1]
        weight_node = next(node for node in nodes if _is_weight_layer(traced, node))
        spans.append(
            Span(
                name=str(weight_node.target),
                start=spans[-1].end if spans else before,
                fork=before,
                branch_end=nodes[-1],
                skip_end=None,
                join=nodes[-1],
                end=nodes[-1],
                bypassed=_bypasses(traced, nodes),
                hook_problem=_plain_hook_problem(traced, nodes, before),
            )
        )
    return [_with_known_bypass(traced, span) for span in spans]


def blocks(spans: list[Span]) -> list[list[Span]]:
    """Group consecutive plain layers that one module holds, where it holds more than one.

    Args:
        spans: Plain layers, in order.

    Returns:
        The groups of two or more layers with the same parent module.
    """
    parent_of = [span.name.rpartition(".")[0] for span in spans]
    grouped = groupby(zip(parent_of, spans, strict=True), key=lambda pair: pair[0])
    groups = [[span for _, span in pairs] for parent, pairs in grouped if parent]
    return [group for group in groups if len(group) > 1]


def weight_layers(traced: TracedModel, nodes: list[fx.Node]) -> int:
    """Count the calls of modules with a weight matrix or kernel among some nodes."""
    return sum(_is_weight_layer(traced, node) for node in nodes)


def _sides(fork: fx.Node, join: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    if _operation(join) not in _ADDITIONS or join.kwargs or len(join.all_input_nodes) != 2:
        return None
    left, right = join.args[:2]
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    # an addition of something that doesn't come from the fork (a position embedding, say) joins nothing
    comes_from_fork = all(side is fork or fork in _ancestors(side) for side in (left, right))
    return (left, right) if comes_from_fork else None


def _tell_apart(
    traced: TracedModel, fork: fx.Node, sides: tuple[fx.Node, fx.Node]
) -> tuple[str, tuple[fx.Node, fx.Node]]:
    """Order the two sides as branch, shortcut: the shortcut is the fork itself, else the side with less weight."""
    left, right = sides
    weight = {side: _weight(traced, fork, side) for side in sides}
    if right is fork or (left is not fork and weight[left] > weight[right]):
        return "ok", (left, right)
    if left is fork or weight[right] > weight[left]:
        return "ok", (right, left)
    return "both sides of the addition have the same layers, so neither is the shortcut", (left, right)


def _weight(traced: TracedModel, fork: fx.Node, end: fx.Node) -> tuple[int, int]:
    if end is fork:
        return (0, 0)
    nodes = between(fork, end)
    modules = {module for node in nodes if (module := called_module(traced, node)) is not None}
    return weight_layers(traced, nodes), sum(p.numel() for module in modules for p in module.parameters())


def _after_activation(traced: TracedModel, join: fx.Node) -> fx.Node:
    """Follow the addition through the activation of the same block, if there is one."""
    position = traced.trunk.index(join)
    following = traced.trunk[position + 1] if position + 1 < len(traced.trunk) else None
    if (
        following is not None
        and list(join.users) == [following]
        and _is_activation(traced, following)
        and scope(following) == scope(join)
    ):
        return following
    return join


def _named(traced: TracedModel, spans: list[Span]) -> list[Span]:
    """Name each unit by the module that holds all of it, or, where that is taken, by its heaviest part."""
    scopes = [_common_scope([*between(span.fork, span.join), span.end]) for span in spans]
    taken = Counter(scopes)
    names = []
    for span, name in zip(spans, scopes, strict=True):
        holds_others = any(other != name and _is_inside(other, name) for other in scopes)
        alone = name and taken[name] == 1 and not holds_others
        names.append(name if alone else _heaviest_part(traced, span, name))
    return [replace(span, name=name) for span, name in zip(spans, names, strict=True)]


def _heaviest_part(traced: TracedModel, span: Span, parent: str) -> str:
    weights: Counter[str] = Counter()
    for node in between(span.fork, span.branch_end):
        module = called_module(traced, node)
        if module is not None:
            depth = len(parent.split(".")) + 1 if parent else 1
            part = ".".join(str(node.target).split(".")[:depth])
            weights[part] += 1 + sum(p.numel() for p in module.parameters())
    return weights.most_common(1)[0][0] if weights else str(span.branch_end.name)


def _first_start(traced: TracedModel, span: Span) -> fx.Node:
    """Give the first unit the operations of its own module that come before its fork; the rest is the stem."""
    position = traced.trunk.index(span.fork)
    while position > 0 and _is_inside(scope(traced.trunk[position]), span.name):
        position -= 1
    return traced.trunk[position]


def _with_silenced_module(traced: TracedModel, span: Span) -> Span:
    calls = Counter(call.name for call in traced.calls)
    endings = [call.name for call in traced.calls if call.output is span.branch_end]
    own = [name for name in endings if calls[name] == 1]
    if own:
        return replace(span, silenced=(own[0],))
    return replace(span, hook_problem="its branch ends in no module of its own")


def _layer_members(traced: TracedModel) -> list[list[fx.Node]]:
    """Group trunk nodes into layers, each with one weight layer and its normalisation and activation."""
    trunk = list(traced.trunk)
    layers: list[list[fx.Node]] = []
    for position, node in enumerate(trunk):
        if not _is_weight_layer(traced, node):
            continue
        home = scope(node)
        before: list[fx.Node] = []
        after: list[fx.Node] = []
        while _belongs(traced, trunk[position - 1 - len(before)], home):
            before.append(trunk[position - 1 - len(before)])
        while position + 1 + len(after) < len(trunk) and _belongs(traced, trunk[position + 1 + len(after)], home):
            after.append(trunk[position + 1 + len(after)])
        comes_first = _comes_before_weights(traced, home)
        layers.append([*reversed(before), node] if comes_first else [node, *after])
    return layers


def _comes_before_weights(traced: TracedModel, home: str) -> bool:
    """Tell whether a block starts with a normalisation or activation (pre-activation) rather than a weight."""
    for node in traced.trunk:
        if scope(node) == home and (_is_weight_layer(traced, node) or _belongs(traced, node, home)):
            return not _is_weight_layer(traced, node)
    return False


def _belongs(traced: TracedModel, node: fx.Node, home: str) -> bool:
    is_norm = isinstance(called_module(traced, node), _NORMS)
    return scope(node) == home and (is_norm or _is_activation(traced, node))


def _bypasses(traced: TracedModel, nodes: list[fx.Node]) -> tuple[tuple[str, Bypass], ...]:
    bypasses = []
    for node in nodes:
        module = called_module(traced, node)
        if isinstance(module, _ConvNd):
            stride = module.stride[:2] if len(module.stride) > 1 else module.stride[0]
            new_channels = module.out_channels - module.in_channels
            bypasses.append((str(node.target), Bypass(stride, max(new_channels, 0))))
        elif module is not None:
            bypasses.append((str(node.target), Bypass(1, 0)))
    return tuple(bypasses)


def _with_known_bypass(traced: TracedModel, span: Span) -> Span:
    module = traced.root.get_submodule(span.name)
    if isinstance(module, nn.Linear) and module.in_features != module.out_features:
        return replace(span, status=f"no bypass leads from {module.in_features} to {module.out_features} features")
    if isinstance(module, _ConvNd) and module.out_channels < module.in_channels:
        return replace(span, status=f"no bypass leads from {module.in_channels} to {module.out_channels} channels")
    return span


def _plain_hook_problem(traced: TracedModel, nodes: list[fx.Node], before: fx.Node) -> str:
    """Say why hooks on modules can't delete a plain layer; functional activations are in their blind spot."""
    calls = Counter(call.name for call in traced.calls)
    shared = [str(node.target) for node in nodes if node.op == "call_module" and calls[str(node.target)] > 1]
    if shared:
        return f"module {shared[0]} is called more than once"
    functional = [node for node in nodes if node.op != "call_module"]
    if any(_operation(node) != "relu" for node in functional):
        return "its activation is a function, not a module"
    # relu(relu(x)) = relu(x): a functional ReLU is harmless where the layer's input has passed one
    if functional and not _has_passed_relu(traced, before):
        return "its ReLU is a function, not a module, and its input can be negative"
    return ""


def _has_passed_relu(traced: TracedModel, node: fx.Node) -> bool:
    position = traced.trunk.index(node)
    while isinstance(called_module(traced, traced.trunk[position]), _KEEPS_SIGN):
        position -= 1
    return _operation(traced.trunk[position]) == "relu" or isinstance(
        called_module(traced, traced.trunk[position]), nn.ReLU
    )


_KEEPS_SIGN = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Dropout, nn.Dropout2d, nn.Identity)


def _is_weight_layer(traced: TracedModel, node: fx.Node) -> bool:
    module = called_module(traced, node)
    return module is not None and any(p.ndim > 1 for p in module.parameters())


def _is_activation(traced: TracedModel, node: fx.Node) -> bool:
    module = called_module(traced, node)
    if module is not None:
        is_attention = isinstance(module, nn.MultiheadAttention)
        return type(module).__module__ == "torch.nn.modules.activation" and not is_attention
    return _operation(node) in _ACTIVATIONS


def _operation(node: fx.Node) -> str:
    """Name an operation: `add` for torch.add, the operator and the method alike."""
    if node.op == "call_module":
        return ""
    name = str(getattr(node.target, "__name__", node.target))
    return name.rstrip("_") if node.op == "call_method" or name.endswith("_") else name


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    pending = [node]
    while pending:
        for parent in pending.pop().all_input_nodes:
            if parent not in found:
                found.add(parent)
                pending.append(parent)
    return found


def _common_scope(nodes: list[fx.Node]) -> str:
    parts = [scope(node).split(".") for node in nodes]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def _is_inside(name: str, parent: str) -> bool:
    return name == parent or name.startswith(f"{parent}.")
