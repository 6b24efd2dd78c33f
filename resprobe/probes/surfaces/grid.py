"""The points of a surface, and the order in which they are measured."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from numbers import Real

import numpy as np
import numpy.typing as npt

from resprobe.engine.reporting import check_seed, is_whole
from resprobe.errors import ResprobeError

DIRECTIONS = ("random", "hessian")
DEFAULT_DRAWS = {1: 5, 2: 1}
NUM_EIGENVECTORS = 2

Index = tuple[int, ...]
"""Position of a point: which line or plane, then along each direction."""


@dataclass(frozen=True)
class Grid:
    """What is to be measured.

    Attributes:
        dims: 1 or 2.
        points: Along each direction.
        radius: The largest distance from the trained weights.
        directions: `random` or `hessian`.
        draws: Random lines or planes; None for eigenvectors.
        seed: Of the random directions, or of the search for eigenvectors.
    """

    dims: int
    points: int
    radius: float
    directions: str
    draws: int | None
    seed: int

    @property
    def num_lines(self) -> int:
        """How many lines or planes there are."""
        if self.draws is None:
            return NUM_EIGENVECTORS if self.dims == 1 else 1
        return self.draws

    @property
    def shape(self) -> tuple[int, ...]:
        """`(lines or planes, points)` or `(lines or planes, points, points)`."""
        return (self.num_lines, *[self.points] * self.dims)

    @property
    def distances(self) -> npt.NDArray[np.float64]:
        """The distances along a direction: symmetric, and exactly 0 in the middle."""
        return self.radius * ((2 * np.arange(self.points) - (self.points - 1)) / (self.points - 1))

    def at(self, point: Index) -> tuple[float, ...]:
        """Give the distances along each direction at a point."""
        return tuple(float(self.distances[place]) for place in point[1:])

    def rows(self, done: npt.NDArray[np.bool_]) -> Iterator[tuple[int, list[Index]]]:
        """Yield the points that are not done: the line or plane, and the points that differ in the last index alone."""
        left = [tuple(map(int, point)) for point in np.argwhere(~done)]
        for key, row in groupby(left, key=lambda point: point[:-1]):
            yield key[0], list(row)


def check_grid(dims: int, points: int, radius: float, directions: str, draws: int | None, seed: int) -> Grid:
    """Complete and check the options that decide the points.

    Args:
        dims: As in `resprobe.surface`, like the others.
        points: Points along each direction.
        radius: The largest distance.
        directions: Their kind.
        draws: Random lines or planes; None for the default.
        seed: Seed of the directions.

    Returns:
        The grid.

    Raises:
        ResprobeError: If one is out of range, or draws are asked for where nothing is random.
    """
    if not is_whole(dims) or dims not in DEFAULT_DRAWS:
        raise ResprobeError(f"dims: expected 1 or 2, got {dims}; choose 1 for lines, 2 for a plane")
    if not is_whole(points) or points < 2:
        raise ResprobeError(f"points: expected 2 or more, got {points}; leave it out for 51")
    if not (isinstance(radius, Real) and math.isfinite(radius) and radius > 0):
        raise ResprobeError(f"radius: expected a number above 0, got {radius}; leave it out for 1")
    if directions not in DIRECTIONS:
        raise ResprobeError(f"directions: expected {', '.join(DIRECTIONS)}, got {directions!r}; choose one of them")
    check_seed(seed)
    if directions == "hessian":
        if draws is not None:
            raise ResprobeError(f"draws: expected none along eigenvectors, got {draws}; leave it out")
        return Grid(int(dims), int(points), float(radius), directions, None, int(seed))
    draws = DEFAULT_DRAWS[dims] if draws is None else draws
    if not is_whole(draws) or draws < 1:
        raise ResprobeError(f"draws: expected 1 or more, got {draws}; leave it out for {DEFAULT_DRAWS[dims]}")
    return Grid(int(dims), int(points), float(radius), directions, int(draws), int(seed))
