"""The unravelled view of a model: all its paths as one graph, and how many there are of each length."""

from collections.abc import Sequence

import networkx as nx

from resprobe.errors import ResprobeError
from resprobe.units.segments import Segments, Unit, WholeModel

LENGTHS = ("branches", "layers")


def graph(model: Segments | WholeModel | Sequence[Unit]) -> "nx.DiGraph[str]":
    """Draw up the graph in which every way from the images to the logits is one path of the network.

    Each residual unit contributes two ways, its branch and its shortcut, each plain layer or block one. The graph is
    the compact form of the unravelled view of Veit et al. 2016: its tree of 2^n paths is the 2^n ways from `input`
    to `output` here.

    Args:
        model: From `resprobe.units.find`, a chain of units.

    Returns:
        Nodes `input`, `output`, each unit's output by its name, and for each unit `NAME/branch` and, if it is
        residual, `NAME/shortcut`. Branches have the attributes `branches` 1, `layers` (weight layers), `unit`,
        `stage`; other nodes `branches` 0 and `layers` 0.

    Raises:
        ResprobeError: If the model is no chain, or its units were named by the caller: their order is not known.

    References:
        Veit, Wilber, Belongie 2016 (arXiv 1605.06431), section 3.
    """
    if isinstance(model, WholeModel):
        raise ResprobeError(
            f"model: expected a chain of residual units, got one where {model.reason}; its paths can't be listed"
        )
    units: Sequence[Unit] = model.units if isinstance(model, Segments) else model
    unravelled: nx.DiGraph[str] = nx.DiGraph()
    unravelled.add_node("input", branches=0, layers=0)
    before = "input"
    for unit in units:
        branch = f"{unit.name}/branch"
        unravelled.add_node(branch, branches=1, layers=unit.branch_layers, unit=unit.name, stage=unit.stage)
        unravelled.add_node(unit.name, branches=0, layers=0, unit=unit.name, stage=unit.stage)
        sides = [branch]
        if unit.kind == "residual":
            shortcut = f"{unit.name}/shortcut"
            unravelled.add_node(shortcut, branches=0, layers=0, unit=unit.name, stage=unit.stage)
            sides.append(shortcut)
        for side in sides:
            unravelled.add_edge(before, side)
            unravelled.add_edge(side, unit.name)
        before = unit.name
    unravelled.add_node("output", branches=0, layers=0)
    unravelled.add_edge(before, "output")
    return unravelled


def count_paths(unravelled: "nx.DiGraph[str]", length: str = "branches", *, stage: int | None = None) -> dict[int, int]:
    """Count the paths of each length, exactly.

    Args:
        unravelled: From `graph`.
        length: What a path's length counts: `branches`, or the weight `layers` on them.
        stage: Count on this stage's branches only, and only the ways through this stage; all stages by default.

    Returns:
        Number of paths for each length that occurs, in order of length. It is binomial only where every unit has a
        shortcut.

    Raises:
        ResprobeError: If there is no such length or stage.

    Example:
        >>> import resprobe, torch
        >>> net = resprobe.build(resprobe.parse_architecture("resnet8"))
        >>> count_paths(graph(resprobe.units.find(net, torch.zeros(1, 3, 32, 32))))
        {0: 1, 1: 3, 2: 3, 3: 1}
    """
    if length not in LENGTHS:
        raise ResprobeError(f"length: expected {' or '.join(LENGTHS)}, got {length!r}; choose one of them")
    if stage is not None:
        unravelled = _stage_alone(unravelled, stage)
    counts: dict[str, dict[int, int]] = {}
    node = ""
    for node in nx.topological_sort(unravelled):
        own = unravelled.nodes[node][length]
        arriving = [counts[before] for before in unravelled.predecessors(node)] or [{0: 1}]
        total: dict[int, int] = {}
        for ways in arriving:
            for so_far, number in ways.items():
                total[so_far + own] = total.get(so_far + own, 0) + number
        counts[node] = total
    return dict(sorted(counts[node].items()))


def _stage_alone(unravelled: "nx.DiGraph[str]", stage: int) -> "nx.DiGraph[str]":
    """Give the part of the graph that one stage is: a chain of its units."""
    stages = sorted({facts["stage"] for _, facts in unravelled.nodes(data=True) if "stage" in facts})
    if stage not in stages:
        raise ResprobeError(f"stage: expected one of {', '.join(map(str, stages))}, got {stage}; choose another")
    inside = [node for node, facts in unravelled.nodes(data=True) if facts.get("stage") == stage]
    alone: nx.DiGraph[str] = unravelled.subgraph(inside).copy()
    starts = [node for node in inside if not list(alone.predecessors(node))]
    alone.add_node("input", branches=0, layers=0)
    alone.add_edges_from(("input", node) for node in starts)
    return alone
