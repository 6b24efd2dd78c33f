"""Names for units: the module that holds a unit, as its user would write it."""

from collections import Counter
from dataclasses import replace

from torch import fx

from resprobe.units.structure.graphs import TracedModel, between, common_scope, is_inside, scope
from resprobe.units.structure.operations import attributes_read, called_module, is_norm
from resprobe.units.structure.spans import Span


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
    nodes = between(span.fork, *(term.node for term in span.branch))
    for node in (node for node in nodes if not is_norm(traced.root, node)):
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
    return [(scope(node), 0), *(_attribute_owner(traced, read) for read in attributes_read(node))]


def _attribute_owner(traced: TracedModel, node: fx.Node) -> tuple[str, int]:
    parent, _, attribute = str(node.target).rpartition(".")
    tensor = getattr(traced.root.get_submodule(parent), attribute)
    return parent, tensor.numel() if node.meta["matrix"] else 0
