"""What is checked before a training starts, so that it doesn't fail after the first epoch."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from resprobe.data import ImageData
from resprobe.errors import ResprobeError
from resprobe.networks.residual import Architecture, build
from resprobe.training.loop import Split


def checked_device(device: str | torch.device) -> torch.device:
    """Make the device an object, and find out now whether it is there.

    Args:
        device: Name or object.

    Returns:
        The device, with its index where it has one.

    Raises:
        ResprobeError: If there is no such device.
    """
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ResprobeError(f"device: expected one that is there, got {str(device)!r} ({reason}); take cpu") from error


def check_data(architecture: Architecture, train_data: ImageData, test_data: ImageData) -> None:
    """Check that network, training and test images fit together.

    Args:
        architecture: The network's facts.
        train_data: Training images.
        test_data: Test images.

    Raises:
        ResprobeError: If channels, number of classes or normalisation differ.
    """
    for data in (train_data, test_data):
        channels = data.image_shape[0]
        if channels != architecture.in_channels:
            raise ResprobeError(
                f"{architecture.name} on {data.name}: expected {architecture.in_channels} channels, "
                f"got {channels}; build the network with in_channels={channels}"
            )
        if data.num_classes is not None and data.num_classes != architecture.num_classes:
            raise ResprobeError(
                f"{architecture.name} on {data.name}: expected {architecture.num_classes} classes, "
                f"got {data.num_classes}; build the network with num_classes={data.num_classes}"
            )
    if train_data.normalisation != test_data.normalisation:
        raise ResprobeError(
            f"test images: expected the normalisation {train_data.normalisation.as_text()} of the training "
            f"images, got {test_data.normalisation.as_text()}; open both with the same one"
        )


def check_labels(architecture: Architecture, *splits: Split) -> None:
    """Check that there is an output for each label; an npz file doesn't say its number of classes.

    Args:
        architecture: The network's facts.
        *splits: Images with their labels.

    Raises:
        ResprobeError: If a label is beyond the last output.
    """
    largest = max(int(split.labels.max()) for split in splits)
    if largest >= architecture.num_classes:
        raise ResprobeError(
            f"{architecture.name}: expected labels below its {architecture.num_classes} classes, "
            f"got {largest}; build the network with num_classes={largest + 1}"
        )


def check_start(architecture: Architecture, start: Mapping[str, Tensor] | None) -> None:
    """Check that tensors are those of a network.

    Args:
        architecture: The network's facts.
        start: The tensors, or None.

    Raises:
        ResprobeError: If one is missing, has another shape or is unknown.
    """
    if start is None:
        return
    expected = build(architecture, seed=0).state_dict()
    for name in (*expected, *start):
        wanted, got = (
            f"shape {tuple(tensors[name].shape)}" if name in tensors else "no such tensor"
            for tensors in (expected, start)
        )
        if wanted != got:
            raise ResprobeError(
                f"start of {architecture.name}: {name}: expected {wanted}, got {got}; "
                "give a network of the same architecture"
            )


def check_folder(path: Path) -> None:
    """Check that a file can be made at a path: better now than after an epoch.

    Args:
        path: The file; it need not exist.

    Raises:
        ResprobeError: If its folder isn't there or can't be written, or it is a folder itself.
    """
    if path.is_dir():
        raise ResprobeError(f"{path}: expected a file to write, got a folder; name a file in it with --out")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ResprobeError(
            f"{path}: expected a folder that can be written, got {error.strerror or error}; "
            "make the folder or choose another --out"
        ) from error
