"""Curvature of the loss: eigenvalues, trace and spectral density of its Hessian."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import nn

from resprobe.engine.devices import device_of, exact_dtype, exact_float32
from resprobe.engine.repeated_batches import RepeatedBatches, check_outputs
from resprobe.engine.reporting import report
from resprobe.engine.scoring import Progress
from resprobe.errors import ResprobeError
from resprobe.normalisation.bn_modes import in_mode, modes_of
from resprobe.probes.curvature.estimating import Counter, block_variables, planned, whole_variables
from resprobe.probes.curvature.options import Settings, check_options
from resprobe.probes.curvature.parameter_blocks import parameter_blocks
from resprobe.probes.landscape.hessians import Floats, Hessian
from resprobe.probes.landscape.loss_lines import Loss, norm
from resprobe.units.random_state import kept_random_state

REFERENCES = (
    "Hutchinson 1989 (trace); Papyan 2020, arXiv 2008.11865 (density); "
    "Ghorbani, Krishnan, Xiao 2019, arXiv 1901.10159; computed with curvlinops"
)
DEFINITIONS = (
    "Hessian of the mean loss over all images with respect to all trainable parameters. residual: ||H v - lambda v|| "
    "of the unit eigenvector v; converged: residual at most tol times |lambda|. density: share of the eigenvalues per "
    "unit of the axis, smoothed by Gaussians."
)


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
        Hutchinson 1989 (trace). Papyan 2020, Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra (arXiv
        2008.11865), for the density. Ghorbani, Krishnan, Xiao 2019 (arXiv 1901.10159), for spectra of residual
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
    settings = Settings(num_eigenvalues, num_probes, num_lanczos, seed, tol)
    check_options(settings, blocks)
    device = device_of(model)
    mode = _choose_mode(model, bn_mode)
    with torch.inference_mode(False), torch.enable_grad(), exact_float32(), kept_random_state(device):
        data = RepeatedBatches(batches, device, dtype)
        if mode == "batch":
            data.check_statistics()
        network = in_mode(model, mode, dtype, data.example)
        _check_parameters(network, num_eigenvalues)
        check_outputs(network, data, needs_logits=loss is None)
        names = {} if blocks is None else parameter_blocks(model, data.first.example, network, blocks)
        counter = Counter(progress, data.num_images)
        hessian_of = functools.partial(Hessian, network, data, loss=loss, advance=counter.advance)
        variables, points = _variables(hessian_of, list(names.values()), settings, counter)
    dataset = report(
        "curvature",
        variables,
        {"rank": np.arange(1, num_eigenvalues + 1), "eigenvalue_grid": points}
        | ({"block": list(names)} if names else {}),
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


def _variables(
    hessian_of: Callable[..., Hessian], blocks: list[list[str]], settings: Settings, counter: Counter
) -> tuple[dict[str, Any], Floats]:
    """Measure the whole Hessian, the loss and its gradient, then each block; give also the axis of the density."""
    counter.plan(planned(settings, len(blocks)))
    operator = hessian_of()
    gradient, value = operator.gradient_and_loss()
    variables, points = whole_variables(operator, settings, counter)
    variables |= {
        "loss": float(value),
        "grad_norm": float(norm({str(index): one for index, one in enumerate(gradient)})),
        "num_params": np.int64(operator.shape[0]),
    }
    if blocks:
        variables |= block_variables([hessian_of(names=names) for names in blocks], settings, counter)
    return variables, points


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


def _check_parameters(network: nn.Module, num_eigenvalues: int) -> None:
    """Refuse a network without a Hessian of its own, or with too small a one."""
    num_params = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
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
