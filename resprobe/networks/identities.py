"""Layers that change nothing: a convolution and a batch normalisation as the identity, to the bit."""

import torch
from torch import Tensor, nn

_NEIGHBOURS = 9  # floating-point numbers that are tried for each of scale, variance and mean


@torch.no_grad()
def make_identity_convolution(convolution: nn.Conv2d) -> None:
    """Set the weights of a convolution so that it passes its input on: 1 in the middle, 0 elsewhere (Dirac).

    In exact arithmetic and in floating point alike: x + 0 + ... + 0 = x. An algorithm that transforms its input first
    (Winograd, FFT), as on a GPU, rounds.

    Args:
        convolution: As many channels in as out, stride 1, padded to keep the size; changed in place.
    """
    nn.init.dirac_(convolution.weight)
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)


@torch.no_grad()
def make_identity_norm(norm: nn.BatchNorm2d, mean: Tensor | None = None, variance: Tensor | None = None) -> None:
    """Set a batch normalisation so that with its stored statistics it passes its input on.

    y = (x - running_mean) / sqrt(running_var + eps) * weight + bias is x where bias = running_mean and weight =
    sqrt(running_var + eps). PyTorch computes y = x * scale + (bias - running_mean * scale), on a CPU, with
    scale = weight / sqrt(running_var + eps); y is x to the bit where the scale rounds to exactly 1. Of the neighbouring
    floating-point numbers those are taken that have this property, also when the normalisation is folded into the
    convolution before it.

    Args:
        norm: Changed in place.
        mean: Stored mean of each channel, `(C,)`; 0 by default.
        variance: Stored variance of each channel, `(C,)`; by default the number next to 1 - eps, whose sum with eps is
            1, so that scale and weight are 1.
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    stored = norm.running_var
    if variance is None:
        variance = torch.full_like(stored, 1 - norm.eps)
    if mean is None:
        mean = torch.zeros_like(stored)
    running_mean, running_var, weight = _exact(mean.to(stored), variance.to(stored), norm.eps)
    norm.running_mean.copy_(running_mean)
    stored.copy_(running_var)
    norm.weight.copy_(weight)
    norm.bias.copy_(running_mean)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.zero_()


def _exact(mean: Tensor, variance: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Choose neighbours of mean, variance and weight with which the rounded map is the identity.

    Args:
        mean: `(C,)`.
        variance: `(C,)`.
        eps: Of the normalisation.

    Returns:
        Mean, variance and weight, each `(C,)`; the nearest ones where no neighbours are exact.
    """
    means, near = _neighbours(mean), _neighbours(variance).clamp(min=0)
    means = torch.where(mean == 0, mean, means)
    # beside a small variance eps swallows its last digits: then neighbours of the sum
    sums = (_neighbours(variance + eps).double() - eps).clamp(min=0).to(variance)
    found, *first = _search(means, near, eps)
    _, *second = _search(means, sums, eps)
    chosen = [torch.where(found, *pair) for pair in zip(first, second, strict=True)]
    return chosen[0], chosen[1], chosen[2]


def _search(means: Tensor, variances: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Find mean, variance and weight, among candidates `(candidate, C)`, with which the rounded map is the identity.

    Args:
        means: Candidates, the best first.
        variances: Likewise.
        eps: Of the normalisation.

    Returns:
        Whether there are such, for each channel; then mean, variance and weight, the first candidates if there are not.
    """
    # dims: weight, variance, mean, channel
    inverse = [1 / torch.sqrt(variances + eps), torch.rsqrt(variances + eps)]
    weights = _neighbours(torch.sqrt(variances + eps))
    exact = ((weights * inverse[0] == 1) & (weights * inverse[1] == 1))[:, :, None]
    # torch.nn.utils.fusion subtracts the mean before it multiplies by the weight
    exact = exact & ((-means) * inverse[1][:, None] * weights[:, :, None] == -means)
    first = exact.flatten(0, 2).int().argmax(0)  # 0, the nearest, where there is none
    rest, mean_index = first // len(means), first % len(means)
    weight_index, variance_index = rest // len(variances), rest % len(variances)
    channel = torch.arange(means.shape[1], device=means.device)
    return (
        exact.flatten(0, 2).any(0),
        means[mean_index, channel],
        variances[variance_index, channel],
        weights[weight_index, variance_index, channel],
    )


def _neighbours(values: Tensor) -> Tensor:
    """Stack numbers and their floating-point neighbours along a new first dim, the nearest first."""
    above = below = values
    found = [values]
    while len(found) < _NEIGHBOURS:
        above = torch.nextafter(above, torch.full_like(above, torch.inf))
        below = torch.nextafter(below, torch.full_like(below, -torch.inf))
        found += [above, below]
    return torch.stack(found)
