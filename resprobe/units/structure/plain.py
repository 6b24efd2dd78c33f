"""Recognises the layers of a plain net, a chain of weight layers without shortcuts."""

from collections import Counter
from dataclasses import replace
from itertools import groupby

from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from resprobe.units.bypass import Bypass
from resprobe.units.structure.graphs import TracedModel, scope
from resprobe.units.structure.naming import numbered
from resprobe.units.structure.operations import Term, called_module, is_activation, is_norm, is_weight_layer, operation
from resprobe.units.structure.spans import HookedDeletion, Span

_KEEPS_SIGN = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Dropout, nn.Dropout2d, nn.Identity)


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
    spans: list[Span] = []
    for nodes in _layer_members(traced)[1:-1]:
        before = traced.trunk[traced.trunk.index(nodes[0]) - 1]
        weight_node = next(node for node in nodes if is_weight_layer(traced.root, node))
        spans.append(
            Span(
                name=str(weight_node.target) if weight_node.op == "call_module" else scope(weight_node),
                start=spans[-1].end if spans else before,
                fork=before,
                branch=(Term(nodes[-1]),),
                skip=(),
                remains=(),
                join=nodes[-1],
                end=nodes[-1],
                status=_status(called_module(traced.root, weight_node)),
                hooks=HookedDeletion(bypassed=_bypasses(traced, nodes), problem=_hook_problem(traced, nodes, before)),
            )
        )
    names = numbered([span.name for span in spans])
    return [replace(span, name=name) for span, name in zip(spans, names, strict=True)]


def is_plain(traced: TracedModel) -> bool:
    """Tell whether all weight layers of a model stand in one row, so that each can be bypassed on its own."""
    weighted = [node for node in traced.graph.nodes if is_weight_layer(traced.root, node)]
    return all(node in traced.trunk for node in weighted)


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


def _layer_members(traced: TracedModel) -> list[list[fx.Node]]:
    """Group trunk nodes into layers, each with one weight layer and its normalisation and activation."""
    trunk = list(traced.trunk)
    layers: list[list[fx.Node]] = []
    for position, node in enumerate(trunk):
        if not is_weight_layer(traced.root, node):
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
        if scope(node) == home and (is_weight_layer(traced.root, node) or _belongs(traced, node, home)):
            return not is_weight_layer(traced.root, node)
    return False


def _belongs(traced: TracedModel, node: fx.Node, home: str) -> bool:
    return scope(node) == home and (is_norm(traced.root, node) or is_activation(traced.root, node))


def _bypasses(traced: TracedModel, nodes: list[fx.Node]) -> tuple[tuple[str, Bypass | None], ...]:
    bypasses: list[tuple[str, Bypass | None]] = []
    for node in nodes:
        module = called_module(traced.root, node)
        if isinstance(module, _ConvNd):
            stride = module.stride[:2] if len(module.stride) > 1 else module.stride[0]
            new_channels = module.out_channels - module.in_channels
            bypasses.append((str(node.target), Bypass(stride, max(new_channels, 0))))
        elif module is not None:
            bypasses.append((str(node.target), Bypass(1, 0)))
    return tuple(bypasses)


def _status(module: nn.Module | None) -> str:
    if isinstance(module, nn.Linear) and module.in_features != module.out_features:
        return f"no bypass leads from {module.in_features} to {module.out_features} features"
    if isinstance(module, _ConvNd) and module.out_channels < module.in_channels:
        return f"no bypass leads from {module.in_channels} to {module.out_channels} channels"
    return "ok"


def _hook_problem(traced: TracedModel, nodes: list[fx.Node], before: fx.Node) -> str:
    """Say why hooks on modules can't delete a plain layer; functional activations are in their blind spot."""
    calls = Counter(call.name for call in traced.calls)
    shared = [str(node.target) for node in nodes if node.op == "call_module" and calls[str(node.target)] > 1]
    if shared:
        return f"module {shared[0]} is called more than once"
    functional = [node for node in nodes if node.op != "call_module"]
    if any(is_weight_layer(traced.root, node) for node in functional):
        return "its weights are applied by a function, not a module"
    if any(operation(node) != "relu" for node in functional):
        return "its activation is a function, not a module"
    # relu(relu(x)) = relu(x): a functional ReLU is harmless where the layer's input has passed one
    if functional and not _has_passed_relu(traced, before):
        return "its ReLU is a function, not a module, and its input can be negative"
    return ""


def _has_passed_relu(traced: TracedModel, node: fx.Node) -> bool:
    position = traced.trunk.index(node)
    while isinstance(called_module(traced.root, traced.trunk[position]), _KEEPS_SIGN):
        position -= 1
    return operation(traced.trunk[position]) == "relu" or isinstance(
        called_module(traced.root, traced.trunk[position]), nn.ReLU
    )
