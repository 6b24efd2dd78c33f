"""Batch normalisation in evaluation mode, absorbed into the convolution or linear map before it."""

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from resprobe.structure.operations import computes_as


def fold(module: nn.Module) -> nn.Module:
    """Absorb every batch normalisation that directly follows a convolution or linear map.

    With the stored statistics, `bn(conv(x))` is a convolution with weight `w * gamma / sqrt(var + eps)` and bias
    `(b - mean) * gamma / sqrt(var + eps) + beta`. A normalisation is kept where anything else reads the
    convolution's output, where it has no stored statistics, or where the convolution's weight is computed from
    others (parametrised).

    Args:
        module: A graph module in evaluation mode; it is not changed. Other modules are returned as they are.

    Returns:
        A graph module with the same function up to rounding, which shares the modules that were not folded.
    """
    if not isinstance(module, fx.GraphModule):
        return module
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, values))
    folded = fx.GraphModule(module, graph)
    for node in list(values.values()):
        pair = _foldable_pair(folded, node)
        if pair is not None:
            weight_node, fused = pair
            name = f"folded_{node.name}"
            folded.add_submodule(name, fused)
            with graph.inserting_before(node):
                replacement = graph.call_module(name, weight_node.args)
            node.replace_all_uses_with(replacement)
            graph.erase_node(node)
            graph.erase_node(weight_node)
    folded.delete_all_unused_submodules()
    folded.recompile()
    return folded


def _foldable_pair(owner: fx.GraphModule, node: fx.Node) -> tuple[fx.Node, nn.Module] | None:
    """Give the node before a batch normalisation and the two of them as one module, where that can be done."""
    norm = _module(owner, node)
    # a subclass, or what somebody assigned to `forward`, may compute something else
    if not isinstance(norm, _BatchNorm) or not computes_as(norm, _BatchNorm, nn.SyncBatchNorm):
        return None
    if norm.running_mean is None or norm.training:
        return None
    weight_node = node.args[0]
    if not isinstance(weight_node, fx.Node) or len(weight_node.users) != 1 or weight_node.kwargs:
        return None
    weighted = _module(owner, weight_node)
    if weighted is None or parametrize.is_parametrized(weighted):
        return None
    if isinstance(weighted, nn.Linear) and computes_as(weighted, nn.Linear):
        return weight_node, fuse_linear_bn_eval(weighted, norm)
    if isinstance(weighted, _ConvNd) and computes_as(weighted, nn.Conv1d, nn.Conv2d, nn.Conv3d):
        return weight_node, fuse_conv_bn_eval(weighted, norm)
    return None


def _module(owner: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return owner.get_submodule(str(node.target)) if node.op == "call_module" else None
