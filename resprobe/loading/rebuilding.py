"""From an architecture and tensors to a network that holds them."""

from collections.abc import Mapping
from pathlib import Path

import torch

from resprobe.errors import ResprobeError
from resprobe.networks.residual import Architecture, ResidualNetwork, build, parse_architecture


def architecture_from_shapes(
    name: str, tensors: Mapping[str, torch.Tensor], *, path: Path, shortcut: str | None
) -> Architecture:
    """Complete the name of an architecture by what the tensors show.

    Args:
        name: A name such as `resnet20`.
        tensors: The network's tensors.
        path: Their file, for messages.
        shortcut: `pad` or `projection`, where the caller knows it; otherwise read from the keys.

    Returns:
        The architecture with the width, channels, classes, shortcut and normalisation of the tensors.

    Raises:
        ResprobeError: If the name is unknown, or the first or last layer is missing.
    """
    parse_architecture(name)  # an unknown name is the better message
    stem, linear = (_tensor(tensors, key, path) for key in ("conv1.weight", "linear.weight"))
    has_projection = any(".shortcut." in key for key in tensors)
    has_norm = any(key.endswith("running_mean") for key in tensors)
    if shortcut is None and has_projection:
        shortcut = "projection"
    return parse_architecture(
        name,
        width=stem.shape[0],
        in_channels=stem.shape[1],
        num_classes=linear.shape[0],
        shortcut=shortcut,
        norm="batch" if has_norm else "none",
    )


def rebuild(architecture: Architecture, tensors: Mapping[str, torch.Tensor], *, path: Path) -> ResidualNetwork:
    """Build a network and fill it.

    Args:
        architecture: What to build.
        tensors: Its parameters and buffers, complete; only the batch counters of normalisations may be missing.
        path: Their file, for messages.

    Returns:
        The network on the CPU, in evaluation mode.

    Raises:
        ResprobeError: If a tensor is missing, has another shape or is unknown; the message names the first one.
    """
    network = build(architecture, seed=0)
    expected = network.state_dict()
    check_tensors(expected, tensors, architecture.name, path=path)
    network.load_state_dict({**expected, **tensors})
    return network.eval()


def check_tensors(
    expected: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor], name: str, *, path: Path
) -> None:
    """Refuse tensors that are not those of a network.

    Args:
        expected: The network's state_dict; counters of batches may be missing among the tensors.
        tensors: What a file holds.
        name: The network, for messages.
        path: The file, for messages.

    Raises:
        ResprobeError: If a tensor is missing, has another shape or is unknown; the message names the first one.
    """
    for key, value in expected.items():
        got = tensors.get(key)
        if got is None and key.endswith("num_batches_tracked"):
            continue
        if got is None or got.shape != value.shape:
            shape = "no such tensor" if got is None else f"shape {tuple(got.shape)}"
            raise ResprobeError(
                f"{path}: {key}: expected shape {tuple(value.shape)} in {name}, got {shape}; check --arch"
            )
    for key, value in tensors.items():
        if key not in expected:
            raise ResprobeError(
                f"{path}: {key}: expected no such tensor in {name}, got shape {tuple(value.shape)}; check --arch"
            )


def _tensor(tensors: Mapping[str, torch.Tensor], key: str, path: Path) -> torch.Tensor:
    if key not in tensors or tensors[key].ndim < 2:
        got = f"shape {tuple(tensors[key].shape)}" if key in tensors else "no such tensor"
        raise ResprobeError(
            f"{path}: {key}: expected a weight of at least two dimensions, got {got}; "
            "the file has other key names than resprobe's networks"
        )
    return tensors[key]
