"""Top of the spectrum, smallest eigenvalue, trace and density of a Hessian, and of its blocks."""

from typing import Any, NamedTuple

import numpy as np

from resprobe.engine.scoring import Progress
from resprobe.probes.curvature.options import Settings
from resprobe.probes.curvature.spectra import NUM_POINTS, estimate_density, estimate_trace, exact_density
from resprobe.probes.landscape.eigenpairs import MAX_WHOLE, Eigenpairs, largest, lowest, whole_eigenpairs
from resprobe.probes.landscape.hessians import Floats, Hessian, NonFiniteError, whole_matrix


class Measured(NamedTuple):
    """Top of the spectrum and trace of a Hessian; the whole matrix where it is small."""

    top: Eigenpairs
    trace: float
    trace_sem: float
    matrix: Floats | None


class Counter:
    """Tells how many images times products are done, of how many that can be foreseen.

    Args:
        progress: Called with both.
        num_images: Images in a product.
    """

    def __init__(self, progress: Progress | None, num_images: int) -> None:
        self._progress = progress
        self._num_images = num_images
        self._done = self._ended = 0
        self._open: list[int] = []

    def plan(self, products: list[int]) -> None:
        """Foresee so many products for each part of the work."""
        self._open = [number * self._num_images for number in products]

    def advance(self, images: int) -> None:
        """Count a product with a batch."""
        self._done += images
        if self._progress is not None:
            self._progress(self._done, max(self._ended + sum(self._open), self._done))

    def end_part(self) -> None:
        """Begin the next part, however many products this one took."""
        self._ended = self._done
        self._open = self._open[1:]


def planned(settings: Settings, num_blocks: int) -> list[int]:
    """Guess the products of each part: top and trace, smallest eigenvalue, density, each block."""
    top = 25 + settings.num_eigenvalues + settings.num_probes
    return [top, 25, settings.num_lanczos, *[top] * num_blocks]


def whole_variables(operator: Hessian, settings: Settings, counter: Counter) -> tuple[dict[str, Any], Floats]:
    """Measure the whole Hessian."""
    try:
        found = _measure(operator, settings)
        counter.end_part()
        bottom = _lowest(operator, found, settings)
        counter.end_part()
        points, density = _density(operator, found, bottom, settings)
        counter.end_part()
    except NonFiniteError:
        found, bottom = _nothing(settings.num_eigenvalues), _nothing(1).top
        points, density = np.linspace(-1, 1, NUM_POINTS), np.full(NUM_POINTS, np.nan)
        for _ in range(3):
            counter.end_part()
    variables = {
        "eigenvalue": ("rank", found.top.values),
        "residual": ("rank", found.top.residuals),
        "converged": ("rank", found.top.converged),
        "lowest_eigenvalue": bottom.values[0],
        "lowest_residual": bottom.residuals[0],
        "lowest_converged": bottom.converged[0],
        "trace": found.trace,
        "trace_sem": found.trace_sem,
        "density": ("eigenvalue_grid", density),
    }
    return variables, points


def _measure(operator: Hessian, settings: Settings) -> Measured:
    """Give the top eigenvalues and the trace of the Hessian or of a block."""
    size = operator.shape[0]
    num = min(settings.num_eigenvalues, size)
    if size <= max(MAX_WHOLE, settings.num_probes):
        matrix = whole_matrix(operator)
        top = whole_eigenpairs(matrix, operator.dtype, num, which="LA", tol=settings.tol)
        return Measured(top, float(np.trace(matrix)), 0.0, matrix)
    top = largest(operator, num, seed=settings.seed, tol=settings.tol)
    return Measured(top, *estimate_trace(operator, settings.num_probes, seed=settings.seed), None)


def _lowest(operator: Hessian, found: Measured, settings: Settings) -> Eigenpairs:
    """Give the smallest eigenvalue, judged by its distance from the largest, ten times more strictly."""
    highest, tol = float(found.top.values[0]), settings.tol / 10
    if found.matrix is not None:
        return whole_eigenpairs(found.matrix, operator.dtype, 1, which="SA", tol=tol, shift=highest)
    return lowest(operator, highest, seed=settings.seed, tol=tol)


def _density(operator: Hessian, found: Measured, bottom: Eigenpairs, settings: Settings) -> tuple[Floats, Floats]:
    if found.matrix is not None:
        every = whole_eigenpairs(found.matrix, operator.dtype, operator.shape[0], which="LA", tol=settings.tol).values
        return exact_density(every, settings.num_lanczos)
    low, high = float(bottom.values[0]), float(found.top.values[0])
    steps = min(settings.num_lanczos, operator.shape[0])
    return estimate_density(operator, low, high, num_lanczos=steps, seed=settings.seed)


def _nothing(num: int) -> Measured:
    """Give what is said of a Hessian that is not finite."""
    missing = np.full(num, np.nan)
    return Measured(Eigenpairs(missing, missing, np.zeros(num, bool), np.empty((0, num))), np.nan, np.nan, None)


def block_variables(operators: list[Hessian], settings: Settings, counter: Counter) -> dict[str, Any]:
    """Measure each block and arrange them along the dim `block`."""
    shape = len(operators), settings.num_eigenvalues
    values, residuals, converged = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape, bool)
    traces = np.full((2, len(operators)), np.nan)
    for index, operator in enumerate(operators):
        try:
            found = _measure(operator, settings)
        except NonFiniteError:
            found = _nothing(min(settings.num_eigenvalues, operator.shape[0]))
        num = len(found.top.values)
        values[index, :num], residuals[index, :num], converged[index, :num] = found.top[:3]
        traces[:, index] = found.trace, found.trace_sem
        counter.end_part()
    return {
        "block_eigenvalue": (("block", "rank"), values),
        "block_residual": (("block", "rank"), residuals),
        "block_converged": (("block", "rank"), converged),
        "block_trace": ("block", traces[0]),
        "block_trace_sem": ("block", traces[1]),
        "block_num_params": ("block", np.array([operator.shape[0] for operator in operators], np.int64)),
    }
