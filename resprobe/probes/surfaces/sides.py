"""The directions of a surface's lines and planes."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from resprobe.engine.batches import content_of
from resprobe.engine.repeated_batches import RepeatedBatches
from resprobe.errors import ResprobeError
from resprobe.probes.landscape.directions import Direction, random_direction
from resprobe.probes.landscape.loss_lines import Loss
from resprobe.probes.surfaces.grid import NUM_EIGENVECTORS, Grid


@dataclass(frozen=True)
class Sides:
    """The directions, made when they are needed.

    Attributes:
        of: Gives the directions of a line or plane, one or two.
        eigenvalues: Of the eigenvectors, largest first; None for random directions.
        sha256: Hash of the network and the first directions: nothing else may be gone on with.
    """

    of: Callable[[int], Sequence[Direction]]
    eigenvalues: Sequence[float] | None
    sha256: str


def choose_sides(
    network: nn.Module, data: RepeatedBatches, grid: Grid, *, loss: Loss | None, advance: Callable[[int], None]
) -> Sides:
    """Make the directions of a surface.

    Args:
        network: A private copy, in the mode of its batch normalisation, at the trained weights.
        data: The images, of whose mean loss the eigenvectors are.
        grid: What is to be measured.
        loss: As in `resprobe.surface`.
        advance: Called with the number of images after each product of a batch with the Hessian.

    Returns:
        The directions.

    Raises:
        ResprobeError: If nothing would move.
    """
    if grid.directions == "hessian":
        eigenvalues, eigenvectors = _eigenvectors(network, data, grid, loss, advance)
        lines = [eigenvectors] if grid.dims == 2 else [[vector] for vector in eigenvectors]
        return Sides(lines.__getitem__, eigenvalues, _hash(network, eigenvectors))
    theta = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    if not any(weight.ndim > 1 for weight in theta.values()):
        raise ResprobeError(
            f"model {type(network).__name__}: expected weights of two or more dimensions, got none; only such have "
            "filters"
        )

    def of(line: int) -> Sequence[Direction]:
        return [random_direction(theta, seed=grid.seed, draw=line, axis=axis) for axis in range(grid.dims)]

    return Sides(of, None, _hash(network, of(0)))


def _eigenvectors(
    network: nn.Module, data: RepeatedBatches, grid: Grid, loss: Loss | None, advance: Callable[[int], None]
) -> tuple[list[float], list[Direction]]:
    num_trainable = sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
    if num_trainable < NUM_EIGENVECTORS:
        raise ResprobeError(
            f"model {type(network).__name__}: expected {NUM_EIGENVECTORS} trainable parameters or more for as many "
            f"eigenvectors, got {num_trainable}; call requires_grad_() on it"
        )
    # curvlinops is imported where it is needed alone: it takes seconds
    from resprobe.probes.landscape.eigenpairs import top_eigenvectors

    values, vectors = top_eigenvectors(network, data, NUM_EIGENVECTORS, seed=grid.seed, loss=loss, advance=advance)
    return [float(value) for value in values], vectors


def _hash(network: nn.Module, directions: Sequence[Direction]) -> str:
    digest = hashlib.sha256()
    for tensors in (network.state_dict(), *directions):
        for name, tensor in tensors.items():
            digest.update(name.encode())
            digest.update(content_of(tensor))
    return digest.hexdigest()
