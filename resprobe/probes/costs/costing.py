"""What a network costs: parameters, multiply-adds, activation memory, time."""

import time
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from resprobe.engine.devices import device_of
from resprobe.units.random_state import kept_random_state
from resprobe.units.structure.tracing import private_copy, without_hooks


def count_params(network: nn.Module) -> int:
    """Count the parameters; a tensor that two modules share counts once.

    Args:
        network: Any module.

    Returns:
        The count; buffers, such as the statistics of batch normalisations, are left out.
    """
    return sum(parameter.numel() for parameter in network.parameters())


def multiply_adds(network: nn.Module, shape: tuple[int, int, int]) -> int:
    """Count the multiply-adds of convolutions, linear maps and attention for one image.

    Args:
        network: A network in evaluation mode.
        shape: The image, `(C, H, W)`.

    Returns:
        The count; biases, normalisations and activations are left out.
    """
    # it takes seconds to import
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        network(torch.zeros(1, *shape, device=device_of(network)))
    return int(counter.get_total_flops()) // 2


def activation_bytes(network: nn.Module, shape: tuple[int, int, int]) -> int:
    """Measure the memory that one image more in a training step takes until the backward pass.

    All that autograd keeps for the backward pass by all parameters is counted, storages that several operations share
    once; the difference between batches of three and of two images leaves out weights and whatever doesn't grow with
    the batch.

    Args:
        network: Any network; a private copy of it runs in training mode.
        shape: The image, `(C, H, W)`.

    Returns:
        Bytes per image, in the network's number type; the image itself is included.
    """
    device = device_of(network)
    duplicate = without_hooks(private_copy(network)).train().requires_grad_(True)
    with kept_random_state(device), torch.inference_mode(False), torch.enable_grad():
        kept = [_kept_bytes(duplicate, torch.ones(number, *shape, device=device)) for number in (2, 3)]
    return kept[1] - kept[0]


def _kept_bytes(network: nn.Module, images: torch.Tensor) -> int:
    # tensors are held until all are seen: a storage that is freed would give its address to another one
    seen: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    def unpack(tensor: Any) -> Any:
        return tensor

    with saved_tensors_hooks(pack, unpack):
        network(images)
    storages = [tensor.untyped_storage() for tensor in seen]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def seconds_per_pass(network: nn.Module, images: torch.Tensor, repeats: int) -> list[float]:
    """Take the time of forward passes in evaluation mode, as the network is: nothing is folded or laid out anew.

    Args:
        network: Any network; a private copy of it runs.
        images: One batch, `(B, C, H, W)`, on the network's device.
        repeats: Passes that are timed, after one that is not.

    Returns:
        Seconds of each pass.
    """
    duplicate = without_hooks(private_copy(network))
    times = []
    with kept_random_state(images.device), torch.inference_mode():
        for _ in range(repeats + 1):
            start = time.perf_counter()
            duplicate(images)
            if images.device.type == "cuda":
                torch.cuda.synchronize(images.device)
            times.append(time.perf_counter() - start)
    return times[1:]
