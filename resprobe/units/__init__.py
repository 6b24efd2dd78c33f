"""The units of any model: found in its computation graph, cut into segments, deleted and observed by hooks."""

from resprobe.units.finding import find, run_example
from resprobe.units.segments import Segment, Segments, Unit, WholeModel
from resprobe.units.unravelled import count_paths, graph

__all__ = [
    # what a model consists of
    "Segment",
    "Segments",
    "Unit",
    "WholeModel",
    # finding it
    "find",
    "run_example",
    # its paths
    "count_paths",
    "graph",
]
