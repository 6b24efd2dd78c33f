"""A network of a blueprint with the tensors of its checkpoint in it."""

from collections.abc import Mapping

import torch

from resprobe.networks.blueprint import Blueprint
from resprobe.networks.flexible import FlexibleNetwork, MakeNorm


def filled(
    blueprint: Blueprint, tensors: Mapping[str, torch.Tensor], *, make_norm: MakeNorm | None = None
) -> FlexibleNetwork:
    """Build the network of a blueprint around a checkpoint's tensors, which it shares.

    Args:
        blueprint: What the checkpoint was recognised as.
        tensors: Its tensors; counters of batches may be missing, dead tensors are left out.
        make_norm: Makes the normalisations; by default plain batch normalisation.

    Returns:
        The network on the CPU, in evaluation mode.
    """
    with torch.device("meta"):
        network = FlexibleNetwork(blueprint, make_norm).eval()
    counter = torch.zeros((), dtype=torch.int64)
    values = {
        key: tensors.get(key, counter.clone()) if key.endswith("num_batches_tracked") else tensors[key]
        for key in network.state_dict()
    }
    network.load_state_dict(values, assign=True)
    return network
