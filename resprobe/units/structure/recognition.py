"""What the units of a model are: residual units, or the layers of a plain net, or an error that says why none."""

from torch import nn

from resprobe.errors import ResprobeError
from resprobe.units.structure.graphs import TracedModel, between
from resprobe.units.structure.operations import called_module
from resprobe.units.structure.plain import is_plain, plain_spans
from resprobe.units.structure.residual import joins, residual_spans
from resprobe.units.structure.spans import Span


def recognise(traced: TracedModel, model_name: str) -> list[Span]:
    """List the residual units of a model, or its plain layers where it is a chain of those.

    Args:
        traced: The model's graph.
        model_name: For messages.

    Returns:
        The units, in order; all of one kind.

    Raises:
        ResprobeError: If the model is neither, or a part of it that may hold units can't be traced.
    """
    residual = residual_spans(traced)
    _check_opaque(traced, residual, model_name)
    if residual:
        return residual
    if not is_plain(traced):
        raise ResprobeError(
            f"model {model_name}: expected residual units or a chain of plain layers, got no residual units: its "
            f"joins are {' and '.join(joins(traced)) or 'of other kinds'}; to delete modules of it, name them with "
            "units= and shortcut="
        )
    layers = plain_spans(traced)
    if not layers:
        raise ResprobeError(
            f"model {model_name}: expected residual units or plain layers between stem and classifier, got none; "
            "give a deeper model"
        )
    return layers


def _check_opaque(traced: TracedModel, residual: list[Span], model_name: str) -> None:
    """Refuse a model with a module that can't be traced, unless all of it belongs to units."""
    inside = {node for span in residual for node in between(span.fork, span.join)}
    for node in traced.graph.nodes:
        module = called_module(traced.root, node)
        if node not in inside and str(node.target) in traced.opaque and _may_hold_units(module):
            raise ResprobeError(
                f"model {model_name}: expected modules that torch.fx can trace, got {node.target}, which gives "
                f"{traced.opaque[str(node.target)]}; avoid control flow that depends on tensor values, or name "
                "the units with units= and shortcut="
            )


def _may_hold_units(module: nn.Module | None) -> bool:
    return module is not None and any(True for _ in module.parameters())
