"""A network without batch normalisation that computes the same function."""

from collections.abc import Mapping

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from resprobe.errors import ResprobeError
from resprobe.normalisation.folding import called, fold, node_to_fold_into, replace_module, trainable
from resprobe.units.structure.operations import computes_as, operation
from resprobe.units.structure.tracing import trace, trainable_copy, without_hooks

# Of the logits' size; the order of the operations is another, so that they differ by rounding.
_TOLERANCES = {torch.float64: 1e-10}
_COARSE_TOLERANCE = 1e-3


class ChannelAffine(nn.Module):
    """One factor and one summand for each channel: `y = scale * x + shift`.

    Args:
        norm: A batch normalisation with stored statistics, whose affine map this becomes.
    """

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None
        assert variance is not None
        with torch.no_grad():
            scale = (variance + norm.eps).rsqrt()
            if norm.weight is not None:
                scale = scale * norm.weight
            shift = -mean * scale
            if norm.bias is not None:
                shift = shift + norm.bias
        self.scale = nn.Parameter(scale, requires_grad=trainable(norm.parameters()))
        self.shift = nn.Parameter(shift, requires_grad=trainable(norm.parameters()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `(N, C, ...)` to the same shape."""
        # channels last and back, whatever the number of dimensions; the memory layout stays
        return (x.transpose(1, -1) * self.scale + self.shift).transpose(1, -1)


class FoldedNetwork(nn.Module):
    """A network without batch normalisation.

    Attributes:
        network: What runs.
        folded: Each normalisation that was absorbed, with the convolution or linear map that absorbed it.
        affine: The normalisations that nothing could absorb; each is a `ChannelAffine` now.
    """

    def __init__(self, network: nn.Module, folded: Mapping[str, str], affine: tuple[str, ...]) -> None:
        super().__init__()
        self.network = network
        self.folded = dict(folded)
        self.affine = affine

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Give the logits `(N, classes)`."""
        return self.network(images)  # type: ignore[no-any-return]


def fold_norm(model: nn.Module, example: torch.Tensor | None = None) -> FoldedNetwork:
    """Build a network of the same function in which batch normalisation is absorbed by the weights.

    With its stored statistics a batch normalisation is an affine map of each channel. One that directly follows a
    convolution or linear map is absorbed by its weight and bias. One that doesn't (the first of a pre-activation block,
    after an addition and before a ReLU), or whose convolution something else reads too, becomes a layer of its own,
    `ChannelAffine`; `affine` of the result names those, `folded` the others.

    Args:
        model: A network that torch.fx can trace; it is not touched, and taken as in evaluation mode.
        example: A few images `(N, C, H, W)`; both networks run on them and are compared.

    Returns:
        The new network, in evaluation mode, with parameters of its own, trainable where those of the model are. It
        computes the same function up to rounding: logits agree to about 1e-5 of their size in float32, 1e-12 in
        float64.

    Raises:
        ResprobeError: If a normalisation has no stored statistics or can't be seen (it is a function, or in a module
            that torch.fx can't follow), two of them read one convolution, or the example shows a difference.

    Example:
        >>> import resprobe
        >>> folded = resprobe.fold_norm(resprobe.build(resprobe.parse_architecture("preresnet8")))
        >>> folded.folded
        {'layer1.0.bn2': 'layer1.0.conv1', 'layer2.0.bn2': 'layer2.0.conv1', 'layer3.0.bn2': 'layer3.0.conv1'}
        >>> folded.affine
        ('layer1.0.bn1', 'layer2.0.bn1', 'layer3.0.bn1', 'bn')
    """
    private = trainable_copy(model)
    expected = _run(private, example)
    whole = _as_graph(without_hooks(private))
    _refuse_hidden_norms(whole, type(model).__name__)
    kept = _to_keep(whole)
    pairs = {
        str(node.target): str(weight_node.target)
        for node in whole.graph.nodes
        if (weight_node := node_to_fold_into(whole, node)) is not None and str(node.target) not in kept
    }
    network = fold(whole, kept=kept)
    affine = tuple(name for name, module in network.named_modules() if isinstance(module, _BatchNorm))
    for name in affine:
        norm = network.get_submodule(name)
        assert isinstance(norm, _BatchNorm)
        replace_module(network, norm, ChannelAffine(norm))
    result = FoldedNetwork(network, pairs, affine).eval()
    _compare(expected, _run(result, example), type(model).__name__)
    return result


def _as_graph(private: nn.Module) -> fx.GraphModule:
    try:
        traced = trace(private)
    except ResprobeError as error:
        reason = str(error).partition("; avoid")[0]
        raise ResprobeError(f"{reason}; its normalisation can't be folded, leave folding out") from error
    return fx.GraphModule(traced.root, traced.graph)


def _refuse_hidden_norms(whole: fx.GraphModule, model_name: str) -> None:
    """Refuse normalisations without statistics, and those that the graph doesn't show."""
    names = {str(node.target) for node in whole.graph.nodes if node.op == "call_module"}
    for name, module in whole.named_modules():
        if not isinstance(module, _BatchNorm):
            continue
        if name not in names:
            raise ResprobeError(
                f"normalisation {name}: expected one that torch.fx reaches, got one inside a module of {model_name} "
                "that it can't follow; leave folding out"
            )
        if not computes_as(module, _BatchNorm, nn.SyncBatchNorm):
            raise ResprobeError(
                f"normalisation {name}: expected the forward pass of nn.BatchNorm, got another one; leave folding out"
            )
        if module.running_mean is None:
            raise ResprobeError(
                f"normalisation {name}: expected stored statistics, got track_running_stats=False; "
                "only batch statistics can be used with it"
            )
    for node in whole.graph.nodes:
        if node.op == "call_function" and operation(node) == "batch_norm":
            raise ResprobeError(
                f"normalisation {node.name}: expected a module such as nn.BatchNorm2d, got the function batch_norm; "
                "use the module instead"
            )


def _to_keep(whole: fx.GraphModule) -> set[str]:
    """Name the normalisations that can't be folded because their convolution is used elsewhere too.

    Args:
        whole: The network.

    Returns:
        Names of normalisations.

    Raises:
        ResprobeError: If two normalisations read one convolution.
    """
    readers: dict[str, set[str]] = {}
    for node in whole.graph.nodes:
        if node.op == "call_module":
            readers.setdefault(str(node.target), set()).update(_reader(whole, user) for user in node.users)
    norms_by_layer = {name: sorted(read - {""}) for name, read in readers.items()}
    for name, norms in norms_by_layer.items():
        module = whole.get_submodule(name)
        if len(norms) > 1 and any(parameter.ndim > 1 for parameter in module.parameters()):
            raise ResprobeError(
                f"layer {name}: expected one batch normalisation that reads it, got {' and '.join(norms)}; "
                "its weights can't absorb both"
            )
    shared = {norm for name, norms in norms_by_layer.items() if "" in readers[name] for norm in norms}
    # a normalisation of two convolutions would have to become two others
    inputs: dict[str, list[str]] = {}
    for name, norms in norms_by_layer.items():
        for norm in norms:
            inputs.setdefault(norm, []).append(name)
    return shared | {norm for norm, layers in inputs.items() if len(layers) > 1}


def _reader(whole: fx.GraphModule, user: fx.Node) -> str:
    """Name the normalisation that a node is; the empty string for anything else."""
    return str(user.target) if isinstance(called(whole, user), _BatchNorm) else ""


def _run(model: nn.Module, example: torch.Tensor | None) -> torch.Tensor | None:
    if example is None:
        return None
    with torch.no_grad():
        return model(example)  # type: ignore[no-any-return]


def _compare(expected: torch.Tensor | None, got: torch.Tensor | None, model_name: str) -> None:
    if expected is None or got is None:
        return
    scale, difference = float(expected.abs().max()), float((got - expected).abs().max())
    if not difference <= _TOLERANCES.get(expected.dtype, _COARSE_TOLERANCE) * max(scale, 1e-12):
        raise ResprobeError(
            f"model {model_name}: expected the same logits after folding, got a difference of {difference:.3g} on "
            f"logits up to {scale:.3g}; hooks that change its output must be removed first"
        )
