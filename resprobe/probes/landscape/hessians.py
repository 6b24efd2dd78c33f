"""The Hessian of the mean loss as a linear operator, and its extreme eigenvalues and eigenvectors."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import nn

from resprobe.engine.batches import check_labels
from resprobe.engine.repeated_batches import RepeatedBatches
from resprobe.errors import ResprobeError
from resprobe.probes.landscape.loss_lines import Loss
from resprobe.probes.landscape.operators import HessianLinearOperator

Floats = npt.NDArray[np.float64]
Advance = Callable[[int], None]

# Up to this size the whole matrix costs no more products than a Lanczos run, which needs a larger one.
MAX_WHOLE = 64
_COLUMNS_AT_ONCE = 16
_MAX_RESTARTS = 15
_COARSE_TOLERANCE = 1.0


class NonFiniteError(Exception):
    """A product with the Hessian is not finite."""


class Hessian(HessianLinearOperator):  # type: ignore[misc]
    """Hessian of the mean loss over all images, block of some parameters, as an operator of curvlinops.

    `H = sum_b n_b / N H_b` with the Hessian `H_b` of the mean loss of batch b of `n_b` images: batches count by their
    size. With the statistics of the batch in batch normalisations, each batch has its own.

    curvlinops differentiates the gradient in forward mode. There PyTorch's batch normalisation with batch statistics
    is wrong in second order (https://github.com/pytorch/pytorch/issues/196699): for a ResNet-20 the product is off by
    2.5 % against finite differences, in float64. So the product of a batch is taken here by differentiating the
    gradient backwards, which agrees with them to 1e-9; it is also faster. All else is theirs.

    Args:
        model: A private copy in evaluation mode; nothing of it changes.
        batches: The data.
        names: The parameters of the block; None for all that need a gradient.
        loss: Gives the mean loss of a batch, one number, from `(outputs, labels)`. Default: cross-entropy in nats.
        advance: Called with the number of images after each product with a batch.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: RepeatedBatches,
        *,
        names: Collection[str] | None = None,
        loss: Loss | None = None,
        advance: Advance | None = None,
    ) -> None:
        chosen = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and (names is None or name in names)
        }
        self.names = list(chosen)
        self._advance = advance
        super().__init__(
            model,
            _MeanLoss(loss, batches),
            list(chosen.values()),
            batches,
            check_deterministic=False,
            num_data=batches.num_images,
        )

    def gradient_and_loss(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Give gradient and value of the mean loss; a parameter that it does not depend on has a gradient of 0."""
        parameters = list(self._params)
        gradient = [torch.zeros_like(parameter) for parameter in parameters]
        value = torch.zeros((), dtype=self.dtype, device=self.device)
        for images, labels in self._data:
            share = len(labels) / self._N_data
            loss = self._loss_func(self._model_func(images), labels)
            for total, one in zip(gradient, torch.autograd.grad(loss, parameters, materialize_grads=True), strict=True):
                total.add_(one, alpha=share)
            value += share * loss.detach()
        return gradient, value

    def _matmat_batch(self, X: torch.Tensor, y: torch.Tensor, M: list[torch.Tensor]) -> list[torch.Tensor]:
        """Multiply the Hessian of one batch with columns; `M` holds a tensor `(*shape, K)` for each parameter."""
        parameters = list(self._params)
        value = self._loss_func(self._model_func(X), y)
        gradient = torch.autograd.grad(value, parameters, create_graph=True, materialize_grads=True)
        # what the loss is linear in has a gradient that depends on nothing
        curved = [index for index, one in enumerate(gradient) if one.requires_grad]
        products = [torch.zeros_like(columns) for columns in M]
        for column in range(M[0].shape[-1]):
            if curved:
                found = torch.autograd.grad(
                    [gradient[index] for index in curved],
                    parameters,
                    [M[index][..., column] for index in curved],
                    retain_graph=True,
                    materialize_grads=True,
                )
                for product, one in zip(products, found, strict=True):
                    product[..., column] = one
            if self._advance is not None:
                self._advance(len(y))
        return products

    def as_tensors(self, vector: Floats) -> dict[str, torch.Tensor]:
        """Cut a vector `(num_params,)` into a tensor for each parameter, by name."""
        flat = torch.as_tensor(vector, dtype=self.dtype, device=self.device)
        parts = torch.split(flat, [parameter.numel() for parameter in self._params])
        return {
            name: part.view_as(parameter) for name, part, parameter in zip(self.names, parts, self._params, strict=True)
        }


class _MeanLoss(nn.Module):
    """The loss as curvlinops wants it: a module that says that it is a mean.

    Args:
        loss: The caller's loss, or None for the cross-entropy.
        batches: The batches that are being read, which know their row for messages.
    """

    reduction = "mean"

    def __init__(self, loss: Loss | None, batches: RepeatedBatches) -> None:
        super().__init__()
        self._loss = loss
        self._batches = batches

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Give the mean loss of a batch."""
        if self._loss is None:
            check_labels(labels, outputs.shape[1], self._batches.row)
            return F.cross_entropy(outputs, labels)
        value = self._loss(outputs, labels)
        if not isinstance(value, torch.Tensor) or value.ndim or not value.requires_grad:
            raise ResprobeError(
                "loss: expected one number that depends on the outputs, got "
                f"{getattr(value, 'shape', type(value).__name__)}; return the mean over the batch"
            )
        return value


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


def whole_matrix(operator: Hessian) -> Floats:
    """Give all numbers of a small Hessian, `(n, n)`, by its products with the unit vectors."""
    size = operator.shape[0]
    identity = torch.eye(size, dtype=operator.dtype, device=operator.device)
    parts = [operator @ columns for columns in torch.split(identity, _COLUMNS_AT_ONCE, dim=1)]
    matrix: Floats = torch.cat(parts, 1).double().cpu().numpy()
    if not np.isfinite(matrix).all():
        raise NonFiniteError
    return matrix


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
