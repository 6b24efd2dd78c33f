"""Devices by name, and the number formats in which models run on them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from resprobe.errors import ResprobeError

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def pick_device(name: str) -> torch.device:
    """Turn the name of a device into a device.

    Args:
        name: `auto` (CUDA or MPS where there is one, else the CPU), `cpu`, `cuda`, `cuda:1`, `mps`.

    Returns:
        A device that is there.

    Raises:
        ResprobeError: If the name is unknown or this machine has no such device.
    """
    kind, _, index = name.partition(":")
    if kind not in DEVICES or (index and not index.isdigit()):
        raise ResprobeError(f"device: expected one of {', '.join(DEVICES)}, got {name!r}; leave --device out for auto")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind == "auto":
        return torch.device(next((device for device, there in available.items() if there), "cpu"))
    missing_index = kind == "cuda" and index and int(index) >= torch.cuda.device_count()
    if not available.get(kind, True) or missing_index:
        raise ResprobeError(
            f"device: expected a device of this machine, got {name!r}; use --device cpu or --device auto"
        )
    return torch.device(name)


def precision_dtype(name: str) -> torch.dtype:
    """Turn the name of a precision into a dtype.

    Args:
        name: `float32`, `float64` or `bfloat16`.

    Returns:
        The dtype.

    Raises:
        ResprobeError: If the name is unknown.
    """
    if name not in PRECISIONS:
        raise ResprobeError(
            f"precision: expected one of {', '.join(PRECISIONS)}, got {name!r}; leave --precision out for float32"
        )
    return PRECISIONS[name]


def exact_dtype(name: str) -> torch.dtype:
    """Turn the name of a precision into a dtype, for analyses that bfloat16 is too coarse for.

    Args:
        name: `float32` or `float64`.

    Returns:
        The dtype.

    Raises:
        ResprobeError: If it is another name.
    """
    if name == "bfloat16":
        raise ResprobeError("precision: expected float32 or float64 for this analysis, got bfloat16; leave it out")
    return precision_dtype(name)


def device_of(model: nn.Module) -> torch.device:
    """Give the device that holds a model's parameters; the CPU for a model without any.

    Args:
        model: The model.

    Returns:
        The device.

    Raises:
        ResprobeError: If it is no module.
    """
    if not isinstance(model, nn.Module):
        hint = "give its .model" if hasattr(model, "model") else "give a network, such as resprobe.load(FILE).model"
        raise ResprobeError(f"model: expected a torch.nn.Module, got {type(model).__name__}; {hint}")
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))


@contextmanager
def exact_float32() -> Iterator[None]:
    """Keep CUDA from rounding float32 products to TF32, which changes counts; the caller's settings come back."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = False
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
