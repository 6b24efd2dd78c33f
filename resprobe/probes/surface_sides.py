"""The directions of a surface's lines and planes."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from resprobe.errors import ResprobeError
from resprobe.probes.batches import content_of
from resprobe.probes.directions import Direction, random_direction
from resprobe.probes.loss_lines import Loss
from resprobe.probes.repeated import RepeatedBatches
from resprobe.probes.surface_grid import Grid


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
    network: nn.Module, data: RepeatedBatches, grid: Grid, *, mode: str, dtype: torch.dtype, loss: Loss | None
) -> Sides:
    """Make the directions of a surface.

    Args:
        network: A private copy, in the mode of its batch normalisation.
        data: The images, of whose mean loss the eigenvectors are.
        grid: What is to be measured.
        mode: That mode.
        dtype: Of the network's parameters.
        loss: As in `resprobe.surface`.

    Returns:
        The directions.

    Raises:
        ResprobeError: If nothing would move.
    """
    theta = dict(network.named_parameters())
    eigenvalues: Sequence[float] | None = None
    if grid.directions == "hessian":
        raise NotImplementedError
    else:
        if not any(weight.ndim > 1 for weight in theta.values()):
            raise ResprobeError(
                f"model {type(network).__name__}: expected weights of two or more dimensions, got none; "
                "only such have filters"
            )

        def of(line: int) -> Sequence[Direction]:
            return [random_direction(theta_now, seed=grid.seed, draw=line, axis=axis) for axis in range(grid.dims)]

        theta_now = {name: weight.detach().clone() for name, weight in theta.items()}
    return Sides(of, eigenvalues, _hash(network, of(0)))


def _hash(network: nn.Module, directions: Sequence[Direction]) -> str:
    digest = hashlib.sha256()
    for tensors in (network.state_dict(), *directions):
        for name, tensor in tensors.items():
            digest.update(name.encode())
            digest.update(content_of(tensor))
    return digest.hexdigest()
