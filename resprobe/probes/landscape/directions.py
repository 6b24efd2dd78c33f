"""Directions in the space of the weights: random ones in which each filter has the norm of the trained filter."""

from collections.abc import Mapping

import numpy as np
import torch

from resprobe.probes.landscape.step_rules import with_filter_norms

Direction = dict[str, torch.Tensor]
"""By the name of the parameter; one that is not named stays where it is."""


def random_direction(theta: Mapping[str, torch.Tensor], *, seed: int, draw: int, axis: int = 0) -> Direction:
    """Draw a filter-normalised direction.

    Each number is standard normal; then each filter `d` (a slice along the first dimension of a tensor of two or more:
    an output channel of a convolution, a row of a linear map) becomes `||w|| d / ||d||`, `w` being the same filter of
    the weights. Biases and the scales and offsets of normalisations stay where they are.

    Args:
        theta: The weights by name, in the model's order.
        seed: Seed of all directions.
        draw: Which repetition.
        axis: 0 for the first direction of a plane, 1 for the second.

    Returns:
        The direction, of the weights' types and on their device. It depends on the four arguments alone, so that more
        draws don't change the first ones.

    References:
        Li, Xu, Taylor, Studer, Goldstein 2018 (arXiv 1712.09913), section 4.
    """
    numbers = np.random.default_rng([seed, draw, axis])
    found: Direction = {}
    for name, weight in theta.items():
        if weight.ndim > 1:
            # on the CPU: not every device has float64
            exact = weight.detach().cpu().double()
            towards = torch.from_numpy(numbers.standard_normal(tuple(weight.shape)))
            found[name] = with_filter_norms(exact, towards).to(weight.device, weight.dtype)
    return found
