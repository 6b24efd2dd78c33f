"""The figure of all paths of a small network."""

from itertools import pairwise

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from resprobe.errors import ResprobeError
from resprobe.showing.theme import colour_of, empty_figure, settle, themed

MAX_PATHS = 64


def unravelled(graph: "nx.DiGraph[str]") -> Figure:
    """Draw every path of a small network on a line of its own, sorted by length, with the branches that it takes.

    After Veit, Wilber and Belongie (2016), section 3.

    Args:
        graph: From `resprobe.units.graph`.

    Returns:
        A figure with one Axes.

    Raises:
        ResprobeError: If there are more than 64 paths.
    """
    number = nx.dag_longest_path_length(graph) // 2
    ways = _ways(graph)
    if len(ways) > MAX_PATHS:
        raise ResprobeError(
            f"plot: expected a network of at most {MAX_PATHS} paths, got {len(ways)} or more; draw one of fewer units"
        )
    with themed():
        figure = empty_figure(width=max(5.0, 1.5 + 1.1 * number), height=1.2 + 0.32 * len(ways))
        axes = figure.subplots()
        lengths = [sum(graph.nodes[node]["branches"] for node in way) for way in ways]
        for row, way in enumerate(ways):
            _draw(axes, graph, way, row)
        for length in sorted(set(lengths)):
            rows = [row for row, one in enumerate(lengths) if one == length]
            noun = "branch" if length == 1 else "branches"
            count = f"{len(rows)} path" if len(rows) == 1 else f"{len(rows)} paths"
            axes.text(number + 0.75, sum(rows) / len(rows), f"{count} of {length} {noun}", va="center", fontsize=9)
        for above, (one, following) in enumerate(pairwise(lengths)):
            if one != following:
                axes.axhline(above + 0.5, color="0.8", linewidth=0.8)
        units = [node for node in nx.topological_sort(graph) if "/" not in node and node not in ("input", "output")]
        axes.set_xticks(range(1, number + 1), units, rotation=90 if number > 4 else 0)
        axes.set_yticks([])
        axes.set_xlim(0.3, number + 2.6)
        axes.set_ylim(len(ways) - 0.4, -0.6)
        axes.grid(visible=False)
        for side in ("left", "right", "top"):
            axes.spines[side].set_visible(False)
        axes.set_title("All paths: boxes are branches, lines are shortcuts")
        return settle(figure)


def _ways(graph: "nx.DiGraph[str]") -> list[list[str]]:
    """List the paths from the input to the output, short ones first, but no more than one too many."""
    ways: list[list[str]] = []
    for way in nx.all_simple_paths(graph, "input", "output"):
        ways.append(way)
        if len(ways) > MAX_PATHS:
            break
    return sorted(ways, key=lambda way: sum(graph.nodes[node]["branches"] for node in way))


def _draw(axes: Axes, graph: "nx.DiGraph[str]", way: list[str], row: int) -> None:
    sides = [node for node in way if "/" in node]
    axes.plot([0.5, len(sides) + 0.5], [row, row], "-", color="0.6", linewidth=1.2, zorder=1)
    for place, node in enumerate(sides, start=1):
        if graph.nodes[node]["branches"]:
            colour = colour_of(graph.nodes[node]["stage"] - 1)
            axes.add_patch(Rectangle((place - 0.3, row - 0.25), 0.6, 0.5, facecolor=colour, zorder=2))
