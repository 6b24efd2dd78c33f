"""Describes the units found in a model's graph, and cuts the model into segments where it is a chain of them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx, nn

from resprobe.units.bypass import Bypass
from resprobe.units.segments import Segment, Segments, Shape, Unit
from resprobe.units.structure.graphs import TracedModel, between, piece
from resprobe.units.structure.operations import parameters_read, weight_layers
from resprobe.units.structure.spans import HookedDeletion, Span


def segments(traced: TracedModel, groups: list[list[Span]]) -> Segments:
    """Cut a model that is a chain of units.

    Args:
        traced: The model's graph, with the shape of each node's value.
        groups: The units, in order: single spans, except for blocks of plain layers.

    Returns:
        The chain.
    """
    chain: list[Segment] = []
    for group in groups:
        start = groups[len(chain) - 1][-1].end if chain else group[0].start
        make = _residual_segment if group[0].skip else _plain_segment
        chain.append(make(traced, group, start, _place(chain, group[-1])))
    stem = piece(traced, traced.trunk[0], groups[0][0].start)
    head = piece(traced, groups[-1][-1].end, traced.trunk[-1])
    return Segments(stem, tuple(chain), head)


def whole_units(traced: TracedModel, groups: list[list[Span]]) -> tuple[Unit, ...]:
    """Describe the units of a model that can't be cut.

    Args:
        traced: The model's graph, with the shape of each node's value.
        groups: The units, in order: single spans, except for blocks of plain layers.

    Returns:
        The units; what hooks can't delete has the reason in `status`.
    """
    units: list[Unit] = []
    for group in groups:
        fork, end = group[0].fork, group[-1].end
        facts = _residual_facts(traced, group[0], fork) if group[0].skip else _plain_facts(group, fork)
        hooks: HookedDeletion = facts["hooks"]
        if facts["status"] == "ok" and hooks.problem:
            facts["status"] = f"hooks can't delete it: {hooks.problem}"
        parameters = parameters_read(traced.root, between(fork, end))
        num_params = sum(parameter.numel() for parameter in parameters)
        units.append(Unit(**facts, **_place(units, group[-1]), num_params=num_params))
    return tuple(units)


def _place(before: list[Any], span: Span) -> dict[str, Any]:
    """Count the unit's depth and stage among those that come before it."""
    if not before:
        return {"depth": 1, "stage": 1}
    is_new_stage = _shape(span.end) != before[-1].output_shape
    return {"depth": before[-1].depth + 1, "stage": before[-1].stage + is_new_stage}


def _residual_facts(traced: TracedModel, span: Span, start: fx.Node) -> dict[str, Any]:
    return {
        "name": span.name,
        "kind": "residual",
        "shortcut": _shortcut_kind(traced, span),
        "bypass": "shortcut",
        "branch_layers": weight_layers(traced.root, between(span.fork, *(term.node for term in span.branch))),
        "input_shape": _shape(start),
        "output_shape": _shape(span.end),
        "status": span.status,
        "hooks": span.hooks,
    }


def _residual_segment(traced: TracedModel, group: list[Span], start: fx.Node, place: dict[str, Any]) -> Segment:
    (span,) = group
    skip = piece(traced, span.fork, span.skip)
    pieces: dict[str, Any] = {
        "pre": piece(traced, start, span.fork),
        "branch": piece(traced, span.fork, span.branch),
        "skip": skip,
        "remains": skip if span.remains == span.skip else piece(traced, span.fork, span.remains),
        "post": piece(traced, span.join, span.end),
    }
    return Segment(**_residual_facts(traced, span, start), **place, num_params=_num_params(pieces.values()), **pieces)


def _plain_facts(group: list[Span], start: fx.Node) -> dict[str, Any]:
    first, last = group[0], group[-1]
    bypassed = tuple(pair for span in group for pair in span.hooks.bypassed)
    bypass = _bypass(bypassed)
    input_shape, output_shape = _shape(first.fork), _shape(last.end)
    status = next((span.status for span in group if span.status != "ok"), "ok")
    if status == "ok" and _skip_shape(bypass, input_shape) != output_shape:
        status = f"no bypass leads from shape {input_shape} to {output_shape}"
    problem = next((span.hooks.problem for span in group if span.hooks.problem), "")
    return {
        "name": first.name if len(group) == 1 else first.name.rpartition(".")[0],
        "kind": "plain",
        "shortcut": "none",
        "bypass": "pad" if len(bypass) else "identity",
        "branch_layers": len(group),
        "input_shape": _shape(start),
        "output_shape": output_shape,
        "status": status,
        "hooks": HookedDeletion(bypassed=bypassed, problem=problem),
    }


def _plain_segment(traced: TracedModel, group: list[Span], start: fx.Node, place: dict[str, Any]) -> Segment:
    facts = _plain_facts(group, start)
    skip = _bypass(facts["hooks"].bypassed)
    pieces: dict[str, Any] = {
        "pre": piece(traced, start, group[0].fork),
        "branch": piece(traced, group[0].fork, group[-1].end),
    }
    num_params = _num_params(pieces.values())
    return Segment(**facts, **place, num_params=num_params, skip=skip, remains=skip, post=nn.Identity(), **pieces)


def _bypass(bypassed: tuple[tuple[str, Bypass | None], ...]) -> nn.Sequential:
    return nn.Sequential(*(bypass for _, bypass in bypassed if bypass is not None and not bypass.is_identity))


def _skip_shape(skip: nn.Sequential, shape: Shape) -> Shape:
    """Give the shape of one image's activations behind a chain of bypasses."""
    if len(skip) == 0:
        return shape
    if len(shape) != 3:
        return ()
    return tuple(skip(torch.empty(1, *shape, device="meta")).shape[1:])


def _shortcut_kind(traced: TracedModel, span: Span) -> str:
    if span.is_gated:
        return "gated"
    ends = [term.node for term in span.skip]
    if weight_layers(traced.root, between(span.fork, *ends)):
        return "projection"
    return "identity" if _shape(span.fork) == _shape(ends[0]) else "pad"


def _num_params(pieces: Iterable[nn.Module]) -> int:
    parameters = {parameter for part in pieces for parameter in part.parameters()}
    return sum(parameter.numel() for parameter in parameters)


def _shape(node: fx.Node) -> Shape:
    return tuple(node.meta["tensor_meta"].shape[1:])
