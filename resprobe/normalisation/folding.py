"""Batch normalisation in evaluation mode, absorbed into the convolution or linear map before it."""

from collections.abc import Collection, Iterable

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from resprobe.units.structure.operations import computes_as


def fold(module: nn.Module, *, kept: Collection[str] = ()) -> nn.Module:
    """Absorb every batch normalisation that directly follows a convolution or linear map.

    With the stored statistics, `bn(conv(x))` is a convolution with weight `w * gamma / sqrt(var + eps)` and bias
    `(b - mean) * gamma / sqrt(var + eps) + beta`. A normalisation is kept where anything else reads the
    convolution's output, where it has no stored statistics, or where the convolution's weight is computed from
    others (parametrised). A pair that is called repeatedly stays one module. What comes out of trainable parameters
    is trainable.

    Args:
        module: A graph module in evaluation mode; it is not changed. Other modules are returned as they are.
        kept: Names of normalisations that are to stay.

    Returns:
        A graph module with the same function up to rounding, which shares the modules that were not folded.
    """
    if not isinstance(module, fx.GraphModule):
        return module
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, values))
    folded = fx.GraphModule(module, graph)
    names: dict[tuple[nn.Module, nn.Module], str] = {}
    for node in list(values.values()):
        weight_node = node_to_fold_into(folded, node) if str(node.target) not in kept else None
        if weight_node is None:
            continue
        weighted, norm = called(folded, weight_node), called(folded, node)
        assert weighted is not None
        assert isinstance(norm, _BatchNorm)
        if (weighted, norm) not in names:
            names[weighted, norm] = f"folded_{node.name}"
            folded.add_submodule(names[weighted, norm], _fused(weighted, norm))
        with graph.inserting_before(node):
            replacement = graph.call_module(names[weighted, norm], weight_node.args)
        node.replace_all_uses_with(replacement)
        graph.erase_node(node)
        graph.erase_node(weight_node)
    folded.delete_all_unused_submodules()
    folded.recompile()
    return folded


def node_to_fold_into(owner: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Find the convolution or linear map that can absorb what a node does.

    Args:
        owner: The module that the node's graph belongs to.
        node: Any node.

    Returns:
        The node before, or None where this is no batch normalisation or can't be absorbed.
    """
    norm = called(owner, node)
    # a subclass, or what somebody assigned to `forward`, may compute something else
    if not isinstance(norm, _BatchNorm) or not computes_as(norm, _BatchNorm, nn.SyncBatchNorm):
        return None
    if norm.running_mean is None or norm.training:
        return None
    weight_node = node.args[0]
    if not isinstance(weight_node, fx.Node) or len(weight_node.users) != 1 or weight_node.kwargs:
        return None
    weighted = called(owner, weight_node)
    if weighted is None or parametrize.is_parametrized(weighted):
        return None
    is_known = computes_as(weighted, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return weight_node if is_known else None


def called(owner: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    """Give the module that a node calls, or None for any other operation."""
    return owner.get_submodule(str(node.target)) if node.op == "call_module" else None


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module of a private copy in the place of another, under every name that it has."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, new)


def trainable(parameters: Iterable[nn.Parameter]) -> bool:
    """Tell whether any of some parameters needs a gradient."""
    return any(parameter.requires_grad for parameter in parameters)


def _fused(weighted: nn.Module, norm: _BatchNorm) -> nn.Module:
    needs_gradient = trainable([*weighted.parameters(), *norm.parameters()])
    with torch.no_grad():
        fused: nn.Module
        if isinstance(weighted, nn.Linear):
            fused = fuse_linear_bn_eval(weighted, norm)
        else:
            assert isinstance(weighted, _ConvNd)
            fused = fuse_conv_bn_eval(weighted, norm)
    # torch leaves the new bias of a convolution that had none untrainable
    return fused.requires_grad_(needs_gradient)
