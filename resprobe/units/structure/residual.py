"""Recognises residual units in the graph of a model.

A residual unit is a fork and a join: an addition whose summands all come from one point, where nothing on the branch
is read elsewhere. Nothing depends on the names of modules; they only serve to name what was found.
"""

from collections.abc import Iterable
from dataclasses import replace

from torch import fx

from resprobe.units.structure.graphs import TracedModel, between, flow, is_inside, piece_graph, required, scope
from resprobe.units.structure.naming import named
from resprobe.units.structure.operations import (
    CONCATENATIONS,
    addends,
    adds_up,
    is_activation,
    is_data,
    keeps_zero,
    operands,
    operation,
    terms,
)
from resprobe.units.structure.sides import is_learned, tell_apart
from resprobe.units.structure.spans import HookedDeletion, Span


def residual_spans(traced: TracedModel) -> list[Span]:
    """List the residual units of a traced model, in order.

    Of units inside units the outermost counts, unless it can't be told which of its sides is the shortcut.

    Args:
        traced: The model's graph.

    Returns:
        One span for each addition that joins a branch with parameters and a shortcut.
    """
    found = [span for node in traced.graph.nodes if (span := _unit_at(traced, node)) is not None]
    insides = {span.join: set(between(span.fork, span.join)) for span in found}
    clear = {span.join for span in found if span.status == "ok"}
    unclear = {span.join for span in found if span.join not in clear and not clear & insides[span.join]}
    wanted = clear | unclear
    outer = [
        span
        for span in found
        if span.join in wanted and not any(span.join in insides[other] for other in wanted if other is not span.join)
    ]
    spans = named(traced, outer)
    if spans and is_chain(traced, spans):
        starts = [_first_start(traced, spans[0]), *(span.end for span in spans[:-1])]
        spans = [replace(span, start=start) for span, start in zip(spans, starts, strict=True)]
    return [replace(span, hooks=_hooks(traced, span, spans)) for span in spans]


def is_chain(traced: TracedModel, spans: list[Span]) -> bool:
    """Tell whether every unit begins and ends where one tensor carries everything that the rest of the model needs."""
    return all(node in traced.cuts for span in spans for node in (span.fork, span.join))


def joins(traced: TracedModel) -> list[str]:
    """Say of what kinds the operations are that join several tensors, in words."""
    kinds = {"concatenations": False, "additions": False, "products": False}
    for node in traced.graph.nodes:
        if len([read for read in node.all_input_nodes if is_data(read)]) > 1:
            kinds["concatenations"] |= operation(node) in CONCATENATIONS
            kinds["additions"] |= addends(node) is not None
            kinds["products"] |= operation(node) in ("mul", "imul")
    return [kind for kind, there in kinds.items() if there]


def _unit_at(traced: TracedModel, join: fx.Node) -> Span | None:
    """Give the unit that an addition closes, if it closes one; its start and name are not known yet."""
    if join not in traced.dominators or addends(join) is None or _is_summand(join):
        return None
    fork = traced.dominators[join]
    summands = terms(join)
    if len(summands) < 2 or all(term.node is fork for term in summands):
        return None
    sides = tell_apart(traced, fork, summands)
    if _is_read_elsewhere(fork, join, flow(fork, *(term.node for term in sides.skip))):
        return None
    if not any(is_learned(traced, node) for node in between(fork, *(term.node for term in sides.branch))):
        return None
    return Span(
        name="",
        start=fork,
        fork=fork,
        branch=sides.branch,
        skip=sides.skip,
        remains=sides.remains,
        join=join,
        end=_after_activation(traced, join),
        is_gated=sides.is_gated,
        gate=sides.gate,
        status=sides.status,
    )


def _is_read_elsewhere(fork: fx.Node, join: fx.Node, shortcut: set[fx.Node]) -> bool:
    """Tell whether the branch has a way past the join; what the shortcut computes may be read by others too."""
    inside = set(between(fork, join))
    return any(is_data(user) and user not in inside for node in inside - shortcut - {join} for user in node.users)


def _is_summand(node: fx.Node) -> bool:
    """Tell whether an addition is only a part of a longer sum."""
    users = list(node.users)
    return (
        len(users) == 1
        and addends(users[0]) is not None
        and len(terms(users[0])) > 1
        and (node not in [term.node for term in terms(users[0])])
    )


def _after_activation(traced: TracedModel, join: fx.Node) -> fx.Node:
    """Follow the addition through the activation of the same block, if there is one."""
    following = list(join.users)
    if len(following) == 1 and is_activation(traced.root, following[0]) and scope(following[0]) == scope(join):
        return following[0]
    return join


def _first_start(traced: TracedModel, span: Span) -> fx.Node:
    """Give the first unit the operations of its own module that come before its fork; the rest is the stem."""
    start, position = span.fork, traced.trunk.index(span.fork)
    while position > 0 and span.name and is_inside(scope(traced.trunk[position]), span.name):
        position -= 1
        start = traced.trunk[position] if traced.trunk[position] in traced.cuts else start
    return start


def _hooks(traced: TracedModel, span: Span, spans: list[Span]) -> HookedDeletion:
    """Find out how hooks can delete a unit: by silencing its branch, else by rerouting the module that holds it."""
    kept = flow(span.fork, *(term.node for term in span.remains))
    ends = [span.gate] if span.gate is not None else [term.node for term in span.branch]
    silenced = _all_silenced(traced, ends, dict.fromkeys([*kept, span.fork]))
    if silenced is not None:
        return HookedDeletion(silenced=silenced)
    rerouted = _rerouted(traced, span, spans)
    if rerouted is not None:
        return HookedDeletion(rerouted=(rerouted,))
    return HookedDeletion(problem=_problem(traced, span, ends))


_Known = dict[fx.Node, tuple[str, ...] | None]
"""For nodes looked at so far, the modules whose zeros make them zero; None where there are none or others read them."""


def _all_silenced(traced: TracedModel, ends: Iterable[object], known: _Known) -> tuple[str, ...] | None:
    """Name modules of the branch alone whose zeros become zeros at all of some nodes; None where there are none."""
    found = [_silenced(traced, end, known) for end in ends]
    if not all(found):
        return None
    return tuple(dict.fromkeys(name for names in found if names for name in names))


def _silenced(traced: TracedModel, end: object, known: _Known) -> tuple[str, ...] | None:
    if not isinstance(end, fx.Node) or not is_data(end):
        return None
    if end not in known:
        own = [name for name in _modules_giving(traced, end) if _num_calls(traced, name) == 1]
        known[end] = None
        if own:
            known[end] = (own[0],)
        elif adds_up(end):
            known[end] = _all_silenced(traced, operands(end), known)
        elif keeps_zero(traced.root, end):
            candidates = [_silenced(traced, read, known) for read in end.all_input_nodes]
            known[end] = next((names for names in candidates if names is not None), None)
    return known[end]


def _rerouted(traced: TracedModel, span: Span, spans: list[Span]) -> tuple[str, fx.Graph] | None:
    """Find the innermost module that holds this unit and no other, and what is left of its forward pass."""
    for call in traced.calls:
        holds = [other for other in spans if is_inside(scope(other.join), call.name)]
        sources = [node for node in call.inputs if is_data(node)]
        if holds != [span] or len(sources) != 1 or _num_calls(traced, call.name) > 1:
            continue
        nodes = required(sources[0], call.output)
        if span.join in nodes and not any(_is_beyond(node) for node in nodes):
            return call.name, piece_graph(traced, sources[0], call.output, replaced={span.join: span.remains})
    return None


def _is_beyond(node: fx.Node) -> bool:
    """Tell whether a node's value is out of reach for what a module computes from its one input."""
    is_input = node.op == "placeholder" and is_data(node)
    # torch.fx puts constants that a forward makes into attributes of the traced copy alone
    return is_input or (node.op == "get_attr" and str(node.target).startswith("_tensor_constant"))


def _problem(traced: TracedModel, span: Span, ends: list[fx.Node]) -> str:
    shared = [name for end in ends for name in _modules_giving(traced, end) if _num_calls(traced, name) > 1]
    if shared:
        return f"its branch ends in module {shared[0]}, which is called {_num_calls(traced, shared[0])} times"
    what = "its gate comes from" if span.gate is not None else "its branch ends in"
    return f"{what} no module of its own, and no module holds this unit alone"


def _modules_giving(traced: TracedModel, node: fx.Node) -> list[str]:
    return [call.name for call in traced.calls if call.output is node]


def _num_calls(traced: TracedModel, name: str) -> int:
    return sum(call.name == name for call in traced.calls)
