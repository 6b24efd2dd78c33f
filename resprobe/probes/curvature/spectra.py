"""Trace and spectral density of a Hessian, by random vectors or exactly."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from resprobe.probes.landscape.hessians import Floats, Hessian, NonFiniteError
from resprobe.probes.landscape.operators import (
    lanczos_approximate_spectrum,
    lanczos_approximate_spectrum_from_iter,
    rademacher,
)
from resprobe.units.random_state import kept_random_state

NUM_POINTS = 1024
_PROBES_AT_ONCE = 16
# width of the Gaussians and room beside the extreme eigenvalues: Papyan 2020, section D.2
_KAPPA = 3.0
_MARGIN = 0.05


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Let what draws from PyTorch's global random state draw from a seed; the caller's state comes back.

    Args:
        device: Where it draws.
        seed: The seed.

    Yields:
        Nothing.
    """
    with kept_random_state(device):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def estimate_trace(operator: Hessian, num_probes: int, *, seed: int) -> tuple[float, float]:
    """Estimate the trace as the mean of `v' H v` over random vectors of signs (Hutchinson 1989).

    The vectors are those of `curvlinops.hutchinson_trace`, which gives the mean alone.

    Args:
        operator: The Hessian, or a block of it.
        num_probes: Number of vectors.
        seed: Their seed.

    Returns:
        The trace and its standard error; NaN for a single vector.

    Raises:
        NonFiniteError: If the Hessian is not finite.
    """
    samples: list[float] = []
    with seeded(operator.device, seed):
        while len(samples) < num_probes:
            count = min(_PROBES_AT_ONCE, num_probes - len(samples))
            columns = [rademacher(operator.shape[0], operator.device, operator.dtype) for _ in range(count)]
            probes = torch.stack(columns, 1)
            samples += [float(one) for one in _column_sums(probes, operator @ probes)]
    if not np.isfinite(samples).all():
        raise NonFiniteError
    sem = float(np.std(samples, ddof=1) / np.sqrt(num_probes)) if num_probes > 1 else float("nan")
    return float(np.mean(samples)), sem


def estimate_density(
    operator: Hessian, low: float, high: float, *, num_lanczos: int, seed: int
) -> tuple[Floats, Floats]:
    """Estimate the density of the eigenvalues by one Lanczos run (Papyan 2020, arXiv 2008.11865).

    Args:
        operator: The Hessian.
        low: Its smallest eigenvalue.
        high: Its largest eigenvalue.
        num_lanczos: Steps of the run, at least 2; where the Hessian has too few different eigenvalues, half as many,
            or a quarter.
        seed: Seed of its first vector.

    Returns:
        Points on the axis of eigenvalues and the density at each, which adds up to 1 over the axis.

    Raises:
        NonFiniteError: If the run breaks down even after two steps.
    """
    if not high > low:
        return exact_density(np.array([high]), num_lanczos)
    with seeded(operator.device, seed):
        while True:
            try:
                points, density = lanczos_approximate_spectrum(
                    operator, num_lanczos, num_points=NUM_POINTS, kappa=_KAPPA, boundaries=(low, high), margin=_MARGIN
                )
                return _normalised(points, density)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                # a Hessian of few different eigenvalues leaves a long run nothing to go on with
                if num_lanczos == 2:
                    raise NonFiniteError from None
                num_lanczos = max(num_lanczos // 2, 2)


def exact_density(eigenvalues: Floats, num_lanczos: int) -> tuple[Floats, Floats]:
    """Give the density of known eigenvalues, smoothed as `estimate_density` does.

    Args:
        eigenvalues: All of them, `(n,)`.
        num_lanczos: Steps of a Lanczos run whose width of the Gaussians is used.

    Returns:
        Points and densities.
    """
    points, total = np.empty(0), np.zeros(NUM_POINTS)
    # the width of the Gaussians goes by the number of nodes in one call
    size = max(num_lanczos, 2)
    for first in range(0, len(eigenvalues), size):
        nodes = torch.as_tensor(np.resize(eigenvalues[first : first + size], size))
        weights = torch.zeros(1, size, dtype=nodes.dtype)
        weights[0, : len(eigenvalues[first : first + size])] = len(eigenvalues) ** -0.5
        grid, density = lanczos_approximate_spectrum_from_iter(
            (nodes, weights), _apart(eigenvalues.min(), eigenvalues.max()), NUM_POINTS, _KAPPA, _MARGIN
        )
        points, total = grid.numpy(), total + density.numpy()
    return _normalised(torch.as_tensor(points), torch.as_tensor(total))


def _column_sums(left: torch.Tensor, right: torch.Tensor) -> list[float]:
    """Give the scalar products of the columns of two matrices, in float64."""
    return [
        float(np.dot(one, two)) for one, two in zip(*(m.double().cpu().numpy().T for m in (left, right)), strict=True)
    ]


def _apart(low: float, high: float) -> tuple[float, float]:
    """Keep the ends of the axis apart where all eigenvalues are one."""
    if high > low:
        return low, high
    half = max(abs(high), 1.0) / 2
    return high - half, high + half


def _normalised(points: torch.Tensor, density: torch.Tensor) -> tuple[Floats, Floats]:
    grid, values = (part.double().cpu().numpy() for part in (points, density))
    return grid, values / np.trapezoid(values, grid)
