"""Names for units: the module that holds a unit, as its user would write it."""

from collections import Counter
from dataclasses import replace

from torch import fx

from resprobe.structure.graphs import TracedModel, between, common_scope, is_inside, scope
from resprobe.structure.operations import called_module, is_data
from resprobe.structure.spans import Span


def named(traced: TracedModel, spans: list[Span]) -> list[Span]:
    """Name each unit by the module that holds all of it and no other unit, else by the heaviest part of its branch.

    Args:
        traced: The model's graph.
        spans: Units, in order.

    Returns:
        The units with their names. Where units have one name, as those of a module that is called twice, `@1`,
        `@2` and so on tell them apart.
    """
    scopes = [common_scope([*between(span.fork, span.join), span.end]) for span in spans]
    taken = Counter(scopes)
    calls = Counter(call.name for call in traced.calls)
    names = []
    for span, name in zip(spans, scopes, strict=True):
        holds_others = any(other != name and is_inside(other, name) for other in scopes)
        # a module that is called twice holds one unit for each call
        alone = name and taken[name] in (1, calls[name]) and not holds_others
        names.append(name if alone else _heaviest_part(traced, span, name))
    return [replace(span, name=name) for span, name in zip(spans, numbered(names), strict=True)]


def numbered(names: list[str]) -> list[str]:
    """Add `@1`, `@2` and so on to names that come more than once, in order."""
    total, seen = Counter(names), Counter[str]()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if total[name] == 1 else f"{name}@{seen[name]}")
    return result


def _heaviest_part(traced: TracedModel, span: Span, parent: str) -> str:
    """Name the part of a module, one level below it, that holds most weights of the branch."""
    level = len(parent.split(".")) + 1 if parent else 1
    weights: Counter[str] = Counter()
    for node in between(span.fork, *(term.node for term in span.branch)):
        for owner, size in _owners(traced, node):
            part = ".".join(owner.split(".")[:level])
            if part != parent:
                weights[part] += 1 + size
    return weights.most_common(1)[0][0] if weights else parent or str(span.join.name)


def _owners(traced: TracedModel, node: fx.Node) -> list[tuple[str, int]]:
    """List the modules whose parameters a node reads, with the size of their weight matrices and kernels."""
    module = called_module(traced.root, node)
    if module is not None:
        return [(str(node.target), sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1))]
    constants = [read for read in node.all_input_nodes if not is_data(read)]
    return [(scope(node), 0), *(owner for constant in constants for owner in _constant_owners(traced, constant))]


def _constant_owners(traced: TracedModel, node: fx.Node) -> list[tuple[str, int]]:
    if node.op == "get_attr":
        parent, _, attribute = str(node.target).rpartition(".")
        size = getattr(traced.root.get_submodule(parent), attribute).numel() if node.meta["matrix"] else 0
        return [(parent, size)]
    return [owner for read in node.all_input_nodes for owner in _constant_owners(traced, read)]
