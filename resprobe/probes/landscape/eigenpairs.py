"""Extreme eigenvalues and eigenvectors of a Hessian."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import nn

from resprobe.engine.repeated_batches import RepeatedBatches
from resprobe.errors import ResprobeError
from resprobe.probes.landscape.hessians import Advance, Floats, Hessian, NonFiniteError, whole_matrix
from resprobe.probes.landscape.loss_lines import Loss

# Up to this size the whole matrix costs no more products than a Lanczos run, which needs a larger one.
MAX_WHOLE = 64
_MAX_RESTARTS = 15
_COARSE_TOLERANCE = 1.0


class Eigenpairs(NamedTuple):
    """Some eigenvalues of a symmetric operator of n rows.

    Attributes:
        values: `(k,)`.
        residuals: `||H v - value v||` of the unit vectors v, `(k,)`.
        converged: Whether the residual is at most `tol` times the eigenvalue's size, up to rounding, `(k,)`.
        vectors: `(n, k)`, of norm 1, the largest number of each positive.
    """

    values: Floats
    residuals: Floats
    converged: npt.NDArray[np.bool_]
    vectors: Floats


def largest(operator: Hessian, num: int, *, seed: int, tol: float) -> Eigenpairs:
    """Find the algebraically largest eigenvalues, the largest first.

    Args:
        operator: The Hessian, or a block of it.
        num: How many; at most as many as it has rows.
        seed: Seed of the vector at which the Lanczos run begins.
        tol: Residual, relative to the eigenvalue, at which one counts as converged.

    Returns:
        The eigenpairs. Those that have not converged after 15 restarts are the best of a coarser run.
    """
    return _extreme(operator, num, which="LA", seed=seed, tol=tol)


def lowest(operator: Hessian, highest: float, *, seed: int, tol: float) -> Eigenpairs:
    """Find the algebraically smallest eigenvalue.

    Args:
        operator: The Hessian, or a block of it.
        highest: Its largest eigenvalue.
        seed: Seed of the vector at which the Lanczos run begins.
        tol: Residual, relative to the distance of both eigenvalues, at which it counts as converged. The smallest may
            be 0, which nothing comes close to in relation to itself.

    Returns:
        One eigenpair.
    """
    return _extreme(operator, 1, which="SA", seed=seed, tol=tol, shift=highest)


def top_eigenvectors(
    model: nn.Module,
    batches: RepeatedBatches,
    num: int,
    *,
    seed: int = 0,
    tol: float = 1e-2,
    loss: Loss | None = None,
    advance: Advance | None = None,
) -> tuple[Floats, list[dict[str, torch.Tensor]]]:
    """Find the directions in which the loss curves most.

    Args:
        model: A private copy in evaluation mode, such as `resprobe.normalisation.bn_modes.in_mode` gives.
        batches: The data, in the number format of the model.
        num: Number of directions.
        seed: Seed of the vector at which the Lanczos run begins.
        tol: Residual, relative to the eigenvalue, that is good enough.
        loss: As in `resprobe.curvature`.
        advance: Called with the number of images after each product with a batch.

    Returns:
        The largest eigenvalues of the Hessian, the largest first, and their eigenvectors as a tensor for each
        trainable parameter, by name; together of norm 1.

    Raises:
        ResprobeError: If the Hessian is not finite.
    """
    operator = Hessian(model, batches, loss=loss, advance=advance)
    try:
        found = largest(operator, num, seed=seed, tol=tol)
    except NonFiniteError:
        raise ResprobeError(
            "curvature: expected a finite Hessian, got numbers that are not; check the loss of the network"
        ) from None
    return found.values, [operator.as_tensors(vector) for vector in found.vectors.T]


def _extreme(operator: Hessian, num: int, *, which: str, seed: int, tol: float, shift: float = 0.0) -> Eigenpairs:
    size = operator.shape[0]
    if size <= max(MAX_WHOLE, 2 * num + 1):
        return whole_eigenpairs(whole_matrix(operator), operator.dtype, num, which=which, tol=tol, shift=shift)
    product = _checked_product(operator, shift)
    start = np.random.default_rng(seed).standard_normal(size)
    # the residual that ARPACK estimates is only nearly the one that is measured afterwards
    options = {"k": num, "which": which, "v0": start, "maxiter": _MAX_RESTARTS}
    try:
        values, vectors = eigsh(product, tol=tol / 2, **options)
    except ArpackNoConvergence:
        values, vectors = eigsh(product, tol=_COARSE_TOLERANCE, **options)
    except ArpackError as error:
        if product.matvec(start).any():
            raise ResprobeError(
                f"curvature: expected eigenvalues from ARPACK, got {' '.join(str(error).split())}; try another seed"
            ) from error
        # it can't begin where all eigenvalues are one: those of a linear loss are 0
        values, vectors = np.zeros(num), np.eye(size, num)
    order = np.argsort(values)[:: -1 if which == "LA" else 1]
    values, vectors = values[order], _signed(vectors[:, order])
    residuals = np.linalg.norm(product.matmat(vectors) - values * vectors, axis=0)
    return Eigenpairs(values + shift, residuals, _has_converged(values, residuals, tol, operator.dtype, shift), vectors)


def whole_eigenpairs(
    matrix: Floats, dtype: torch.dtype, num: int, *, which: str, tol: float, shift: float = 0.0
) -> Eigenpairs:
    """Take the extreme eigenpairs of a matrix that is known as a whole.

    Args:
        matrix: `(n, n)`, symmetric up to rounding.
        dtype: Number format in which it was computed.
        num: How many.
        which: `LA` for the largest, the largest first; `SA` for the smallest.
        tol: Residual at which one counts as converged, relative to its distance from `shift`.
        shift: As in `tol`.

    Returns:
        The eigenpairs.
    """
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if which == "LA":
        values, vectors = values[::-1], vectors[:, ::-1]
    size = float(np.abs(values).max())
    values, vectors = values[:num].copy(), _signed(vectors[:, :num])
    residuals = np.linalg.norm(matrix @ vectors - values * vectors, axis=0)
    return Eigenpairs(values, residuals, _has_converged(values - shift, residuals, tol, dtype, size), vectors)


def _checked_product(operator: Hessian, shift: float) -> LinearOperator:
    """Make `H - shift` an operator of scipy, whose algorithms would run on with what is not finite."""
    inner = operator.to_scipy()

    def multiply(vectors: Floats) -> Floats:
        product: Floats = inner @ vectors - shift * vectors
        if not np.isfinite(product).all():
            raise NonFiniteError
        return product

    return LinearOperator(inner.shape, matvec=multiply, matmat=multiply, dtype=np.float64)


def _signed(vectors: Floats) -> Floats:
    """Give each column the sign with which its number of largest size is positive."""
    places = np.abs(vectors).argmax(0)
    signed: Floats = vectors * np.sign(vectors[places, np.arange(vectors.shape[1])])
    return signed


def _has_converged(
    values: Floats, residuals: Floats, tol: float, dtype: torch.dtype, size: float
) -> npt.NDArray[np.bool_]:
    """Judge residuals against eigenvalues, and against what rounding leaves of a matrix of at least this size."""
    rounding = 10 * torch.finfo(dtype).eps * np.abs(values).max(initial=abs(size))
    converged: npt.NDArray[np.bool_] = residuals <= tol * np.abs(values) + rounding
    return converged
