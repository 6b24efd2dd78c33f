"""Networks that torchvision and timm build by name, filled with a checkpoint's tensors."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from resprobe.errors import ResprobeError, unknown_name
from resprobe.loading.rebuilding import check_tensors

LIBRARIES = ("torchvision", "timm")


@dataclass(frozen=True)
class LibraryArchitecture:
    """A network of a library.

    Attributes:
        name: Library and name, such as `torchvision:resnet50`.
        in_channels: Channels of the images.
        num_classes: Number of logits.
    """

    name: str
    in_channels: int
    num_classes: int


def is_library_name(arch: str) -> bool:
    """Tell whether a name is one of a library's, such as `timm:resnet50d`."""
    return arch.partition(":")[0] in LIBRARIES and ":" in arch


def load_library_network(
    arch: str, tensors: Mapping[str, torch.Tensor], *, path: Path
) -> tuple[nn.Module, LibraryArchitecture]:
    """Build a network by its library, without any download, and fill it.

    Args:
        arch: `torchvision:NAME` or `timm:NAME`.
        tensors: Its parameters and buffers.
        path: Their file, for messages.

    Returns:
        The network on the CPU in evaluation mode, and its description. The number of classes is that of the tensors.

    Raises:
        ResprobeError: If the library is missing, doesn't know the name, or the tensors don't fit.
    """
    network = _build(arch, {})
    expected = network.state_dict()
    last = [key for key, value in expected.items() if key.endswith("weight") and value.ndim >= 2][-1]
    num_classes = expected[last].shape[0]
    got = tensors.get(last)
    if got is not None and got.ndim == expected[last].ndim and got.shape[0] != num_classes:
        num_classes = got.shape[0]
        network = _build(arch, {"num_classes": num_classes})
    check_tensors(network.state_dict(), tensors, arch, path=path)
    network.load_state_dict({**network.state_dict(), **tensors})
    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    return network.eval(), LibraryArchitecture(arch, first.in_channels, num_classes)


def _build(arch: str, options: dict[str, Any]) -> nn.Module:
    library, _, name = arch.partition(":")
    try:
        models = import_module("torchvision.models" if library == "torchvision" else "timm")
    except ImportError as error:
        raise ResprobeError(f"arch {arch}: expected the package {library}, got none; pip install {library}") from error
    known = models.list_models()
    if name not in known:
        raise ResprobeError(unknown_name(f"arch {library}", name, known))
    # initial weights are drawn and thrown away; the warnings are about those
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if library == "timm":
            return models.create_model(name, pretrained=False, **options)  # type: ignore[no-any-return]
        return models.get_model(name, weights=None, **options)  # type: ignore[no-any-return]
