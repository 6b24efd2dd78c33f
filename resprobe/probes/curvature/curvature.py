"""Curvature of the loss: eigenvalues, trace and spectral density of its Hessian."""

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import nn

from resprobe.engine.devices import device_of, exact_dtype, exact_float32
from resprobe.engine.repeated_batches import RepeatedBatches, check_outputs
from resprobe.engine.reporting import check_seed, is_whole, report
from resprobe.engine.scoring import Progress
from resprobe.errors import ResprobeError
from resprobe.normalisation.bn_modes import in_mode, modes_of
from resprobe.probes.curvature.parameter_blocks import BLOCKS, parameter_blocks
from resprobe.probes.curvature.spectra import NUM_POINTS, estimate_density, estimate_trace, exact_density
from resprobe.probes.landscape.hessians import (
    MAX_WHOLE,
    Eigenpairs,
    Floats,
    Hessian,
    NonFiniteError,
    largest,
    lowest,
    whole_eigenpairs,
    whole_matrix,
)
from resprobe.probes.landscape.loss_lines import Loss, norm
from resprobe.units.random_state import kept_random_state

REFERENCES = (
    "Hutchinson 1989 (trace); Papyan 2020, JMLR 21(165) (density); Ghorbani, Krishnan, Xiao 2019, arXiv 1901.10159; "
    "computed with curvlinops"
)
DEFINITIONS = (
    "Hessian of the mean loss over all images with respect to all trainable parameters. residual: ||H v - lambda v|| "
    "of the unit eigenvector v; converged: residual at most tol times |lambda|. density: share of the eigenvalues per "
    "unit of the axis, smoothed by Gaussians."
)


class _Settings(NamedTuple):
    """The options that each block of the Hessian is measured with."""

    num_eigenvalues: int
    num_probes: int
    num_lanczos: int
    seed: int
    tol: float


class _Measured(NamedTuple):
    """Top of the spectrum and trace of a Hessian; the whole matrix where it is small."""

    top: Eigenpairs
    trace: float
    trace_sem: float
    matrix: Floats | None


def curvature(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    bn_mode: str | None = None,
    num_eigenvalues: int = 5,
    num_probes: int = 16,
    num_lanczos: int = 20,
    blocks: str | None = None,
    tol: float = 1e-2,
    seed: int = 0,
    loss: Loss | None = None,
    precision: str = "float32",
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure the Hessian of the mean loss over all images: its largest eigenvalues, trace and spectral density.

    `H = sum_i H_i / N` over the N images, whatever the sizes of the batches. With batch statistics a batch's loss
    belongs to all of its images together: `H = sum_b n_b / N H_b`, each of the n_b images of batch b seeing their own
    statistics.

    - Eigenvalues by the restarted Lanczos method (ARPACK), the algebraically largest ones and the smallest one: the
      Hessian of a network is indefinite. Each comes with its residual `||H v - lambda v||`, measured afterwards, and
      counts as converged where that is at most `tol |lambda|` (and what rounding leaves); the smallest one, which may
      be close to 0, where it is at most a tenth of `tol` times its distance from the largest. Some eigenvalue lies
      within the residual of each.
    - The trace is the mean of `v' H v` over random vectors of signs, with its standard error.
    - The density by one Lanczos run from a random vector, as Gaussians whose width is that of Papyan 2020.

    Where the parameters are at most 64, or not more than `num_probes`, the whole matrix is computed and all three are
    exact: the standard error is 0. Products with the Hessian are exact up to rounding, one batch at a time; the
    batches are read again for each, so they must be the same each time (an iterator is kept in memory).

    If loss or Hessian is not finite, `loss` and `grad_norm` say what they are and the rest is NaN, not converged.

    Args:
        model: Maps images `(B, C, H, W)` to logits `(B, classes)`; it is not touched.
        batches: Normalised images and class indices `(B,)`, such as an `ImageData`, of the same order in every pass.
        bn_mode: What batch normalisation does: `running` (stored statistics, the default), `batch` (those of the
            batch; none are stored), `folded` (that of `running`, absorbed by the weights: the same function, other
            parameters) or `none`, the only one for a model without.
        num_eigenvalues: Number of eigenvalues from the largest down.
        num_probes: Random vectors for the trace.
        num_lanczos: Steps of the Lanczos run for the density. More steps show it more sharply.
        blocks: `stage` or `unit`: also the top eigenvalues and the trace of the diagonal blocks of the Hessian that
            belong to the parameters of each stage or unit, of the stem and of the head.
        tol: Residual, relative to the eigenvalue, at which one counts as converged.
        seed: Seed of the random vectors.
        loss: Gives the mean loss of a batch, one number, from `(outputs, labels)`. Default: cross-entropy in nats.
        precision: `float32` or `float64`.
        provenance: As in `resprobe.lesion`.
        progress: Called with images times products done, and the total as far as it can be foreseen.

    Returns:
        `eigenvalue`, `residual`, `converged` (rank); `lowest_eigenvalue`, `lowest_residual`, `lowest_converged`,
        `trace`, `trace_sem`, `loss`, `grad_norm` and `num_params` (); `density` (eigenvalue_grid), which adds up to 1.
        With `blocks` also `block_eigenvalue`, `block_residual`, `block_converged` (block, rank), NaN for a block of
        fewer parameters, and `block_trace`, `block_trace_sem`, `block_num_params` (block). In nats, since weights have
        no unit.

    Raises:
        ResprobeError: If an option is out of range, no parameter is trainable, the model can't be folded, a batch has
            one image in the mode `batch`, the batches differ between passes, or the model draws random numbers.

    References:
        Hutchinson 1989 (trace). Papyan 2020, Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra, JMLR
        21(165), algorithm 2 (density). Ghorbani, Krishnan, Xiao 2019 (arXiv 1901.10159), for spectra of residual
        networks with and without batch normalisation.

    Example:
        >>> import resprobe
        >>> net = resprobe.build(resprobe.parse_architecture("resnet8", in_channels=1, width=2), seed=0)
        >>> digits = resprobe.open_data("digits", num_images=10)
        >>> result = resprobe.curvature(net, digits, num_eigenvalues=2, num_probes=4, num_lanczos=4)
        >>> dict(result.eigenvalue.sizes), bool(result.converged.all())
        ({'rank': 2}, True)
    """
    dtype = exact_dtype(precision)
    settings = _Settings(num_eigenvalues, num_probes, num_lanczos, seed, tol)
    _check(settings, blocks)
    device = device_of(model)
    mode = _choose_mode(model, bn_mode)
    with torch.inference_mode(False), torch.enable_grad(), exact_float32(), kept_random_state(device):
        data = RepeatedBatches(batches, device, dtype)
        if mode == "batch":
            data.check_statistics()
        network = in_mode(model, mode, dtype, data.example)
        num_params = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
        _check_parameters(network, num_params, num_eigenvalues)
        check_outputs(network, data, needs_logits=loss is None)
        names = {} if blocks is None else parameter_blocks(model, data.first.example, network, blocks)
        counter = _Counter(progress, data.num_images)
        counter.plan(_planned(settings, len(names)))
        operator = Hessian(network, data, loss=loss, advance=counter.advance)
        gradient, value = operator.gradient_and_loss()
        variables, points = _spectrum(operator, settings, counter)
        variables |= {
            "loss": float(value),
            "grad_norm": float(norm({str(index): one for index, one in enumerate(gradient)})),
            "num_params": np.int64(num_params),
        }
        if names:
            operators = [
                Hessian(network, data, names=own, loss=loss, advance=counter.advance) for own in names.values()
            ]
            variables |= _block_variables(operators, settings, counter)
    dataset = report(
        "curvature",
        variables,
        {
            "rank": np.arange(1, num_eigenvalues + 1),
            "eigenvalue_grid": points,
            **({"block": list(names)} if names else {}),
        },
        title="Curvature of the loss",
        references=REFERENCES,
        options={
            "bn_mode": mode,
            **{name: value if name == "tol" else int(value) for name, value in settings._asdict().items()},
            "blocks": blocks,
            "batch_size": data.first.batch_size,
            "loss": None if loss is None else getattr(loss, "__name__", type(loss).__name__),
            "precision": precision,
        },
        provenance=provenance,
        data=data.first,
        bn_mode=mode,
    )
    dataset.attrs |= {"num_images": data.num_images, "definitions": DEFINITIONS}
    return dataset


class _Counter:
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


def _planned(settings: _Settings, num_blocks: int) -> list[int]:
    """Guess the products of each part: top and trace, smallest eigenvalue, density, each block."""
    top = 25 + settings.num_eigenvalues + settings.num_probes
    return [top, 25, settings.num_lanczos, *[top] * num_blocks]


def _spectrum(operator: Hessian, settings: _Settings, counter: _Counter) -> tuple[dict[str, Any], Floats]:
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


def _measure(operator: Hessian, settings: _Settings) -> _Measured:
    """Give the top eigenvalues and the trace of the Hessian or of a block."""
    size = operator.shape[0]
    num = min(settings.num_eigenvalues, size)
    if size <= max(MAX_WHOLE, settings.num_probes):
        matrix = whole_matrix(operator)
        top = whole_eigenpairs(matrix, operator.dtype, num, which="LA", tol=settings.tol)
        return _Measured(top, float(np.trace(matrix)), 0.0, matrix)
    top = largest(operator, num, seed=settings.seed, tol=settings.tol)
    return _Measured(top, *estimate_trace(operator, settings.num_probes, seed=settings.seed), None)


def _lowest(operator: Hessian, found: _Measured, settings: _Settings) -> Eigenpairs:
    """Give the smallest eigenvalue, judged by its distance from the largest, ten times more strictly."""
    highest, tol = float(found.top.values[0]), settings.tol / 10
    if found.matrix is not None:
        return whole_eigenpairs(found.matrix, operator.dtype, 1, which="SA", tol=tol, shift=highest)
    return lowest(operator, highest, seed=settings.seed, tol=tol)


def _density(operator: Hessian, found: _Measured, bottom: Eigenpairs, settings: _Settings) -> tuple[Floats, Floats]:
    if found.matrix is not None:
        every = whole_eigenpairs(found.matrix, operator.dtype, operator.shape[0], which="LA", tol=settings.tol).values
        return exact_density(every, settings.num_lanczos)
    low, high = float(bottom.values[0]), float(found.top.values[0])
    steps = min(settings.num_lanczos, operator.shape[0])
    return estimate_density(operator, low, high, num_lanczos=steps, seed=settings.seed)


def _nothing(num: int) -> _Measured:
    """Give what is said of a Hessian that is not finite."""
    missing = np.full(num, np.nan)
    return _Measured(Eigenpairs(missing, missing, np.zeros(num, bool), np.empty((0, num))), np.nan, np.nan, None)


def _block_variables(operators: list[Hessian], settings: _Settings, counter: _Counter) -> dict[str, Any]:
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


def check_tolerance(tol: float) -> None:
    """Refuse a tolerance at which nothing converges, or anything does.

    Args:
        tol: As in `curvature`.

    Raises:
        ResprobeError: If it is no number between 0 and 1.
    """
    if not (isinstance(tol, Real) and 0 < tol < 1):
        raise ResprobeError(f"tol: expected a number between 0 and 1, got {tol}; leave it out for 0.01")


def _check(settings: _Settings, blocks: str | None) -> None:
    for name, least, advice in (
        ("num_eigenvalues", 1, "leave it out for 5"),
        ("num_probes", 2, "leave it out for 16"),
        ("num_lanczos", 2, "leave it out for 20"),
    ):
        value = getattr(settings, name)
        if not is_whole(value) or value < least:
            raise ResprobeError(f"{name}: expected a whole number from {least}, got {value}; {advice}")
    check_tolerance(settings.tol)
    check_seed(settings.seed)
    if blocks is not None and blocks not in BLOCKS:
        raise ResprobeError(f"blocks: expected {' or '.join(BLOCKS)}, got {blocks!r}; leave it out for none")


def _choose_mode(model: nn.Module, bn_mode: str | None) -> str:
    modes = modes_of(model)
    if bn_mode is None:
        return modes[0]
    if bn_mode not in modes:
        raise ResprobeError(
            f"bn_mode: expected {' or '.join(modes)} for {type(model).__name__}, got {bn_mode!r}; leave it out for "
            f"{modes[0]}"
        )
    return bn_mode


def _check_parameters(network: nn.Module, num_params: int, num_eigenvalues: int) -> None:
    """Refuse a network without a Hessian of its own, or with too small a one."""
    if not num_params:
        raise ResprobeError(
            f"model {type(network).__name__}: expected trainable parameters, got none that require a gradient; "
            "call requires_grad_() on it"
        )
    if num_eigenvalues > num_params:
        raise ResprobeError(
            f"num_eigenvalues: expected at most {num_params}, the number of parameters, got {num_eigenvalues}; "
            "choose fewer"
        )
