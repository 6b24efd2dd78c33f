"""Datasets with a name: scikit-learn's digits, and those that torchvision fetches."""

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from resprobe.data.sources import ArraySource, Labels, Pixels, check_labels
from resprobe.errors import ResprobeError

SPLITS = ("train", "test")

_DIGITS_TEST_IMAGES = 500
_DIGITS_MAX = 16


@dataclass(frozen=True)
class _TorchvisionDataset:
    """What torchvision calls a dataset, and the folder under the data directory that it's kept in."""

    class_name: str
    folder: str
    num_classes: int


_TORCHVISION = {
    "cifar10": _TorchvisionDataset("CIFAR10", "cifar-10-batches-py", 10),
    "cifar100": _TorchvisionDataset("CIFAR100", "cifar-100-python", 100),
    "mnist": _TorchvisionDataset("MNIST", "MNIST/raw", 10),
    "fashion-mnist": _TorchvisionDataset("FashionMNIST", "FashionMNIST/raw", 10),
}

NAMES = ("digits", *_TORCHVISION)


def open_named(name: str, *, split: str | None, data_dir: Path, download: bool) -> ArraySource:
    """Read a named dataset into memory.

    Args:
        name: one of `NAMES`.
        split: `train`, `test`, or None for `test`.
        data_dir: folder of the downloaded datasets, not used for `digits`.
        download: whether to fetch a dataset that is missing from `data_dir`.

    Returns:
        The split's images, normalised by default with the constants of the same name.

    Raises:
        ResprobeError: there is no such split, or the dataset is missing, damaged or can't be fetched.
    """
    split = split or "test"
    if split not in SPLITS:
        raise ResprobeError(f"{name}: expected split {' or '.join(SPLITS)}, got {split!r}; pass --split test")
    if name == "digits":
        images, labels = _read_digits(split)
        num_classes, pixel_max = 10, _DIGITS_MAX
    else:
        images, labels = _read_torchvision(name, split=split, data_dir=data_dir, download=download)
        num_classes, pixel_max = _TORCHVISION[name].num_classes, 255
    check_labels(labels, where=f"{name} {split}", num_classes=num_classes)
    num_images, height, width, channels = images.shape
    return ArraySource(
        split=split,
        num_images=num_images,
        num_classes=num_classes,
        image_shape=(channels, height, width),
        pixel_max=pixel_max,
        default_normalisation=name,
        images=images,
        labels=labels,
    )


def _read_digits(split: str) -> tuple[Pixels, Labels]:
    """Read one side of the fixed stratified split of the 1,797 digits, in the order of `train_test_split`."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    rows = train_test_split(
        np.arange(len(digits.target)), test_size=_DIGITS_TEST_IMAGES, random_state=0, stratify=digits.target
    )[SPLITS.index(split)]
    # The values are whole numbers from 0 to 16, stored as floats.
    return digits.images[rows, :, :, np.newaxis].astype(np.uint8), digits.target[rows]


def _read_torchvision(name: str, *, split: str, data_dir: Path, download: bool) -> tuple[Pixels, Labels]:
    """Read a split's arrays, past torchvision's per-image PIL conversion."""
    dataset = _load_torchvision(name, split=split, data_dir=data_dir, download=download)
    images, labels = np.asarray(dataset.data), np.asarray(dataset.targets)
    return (images[..., np.newaxis] if images.ndim == 3 else images), labels


def _load_torchvision(name: str, *, split: str, data_dir: Path, download: bool) -> Any:
    """Construct torchvision's dataset, with its messages on stderr and its failures in one line."""
    import torchvision.datasets

    described = _TORCHVISION[name]
    folder = data_dir.expanduser() / described.folder
    try:
        # torchvision prints while it downloads, and stdout is for results.
        with contextlib.redirect_stdout(sys.stderr):
            return getattr(torchvision.datasets, described.class_name)(
                data_dir.expanduser(), train=split == "train", download=download
            )
    # AssertionError and ValueError are torchvision's answers to an IDX file that is cut short.
    except (RuntimeError, OSError, EOFError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())
        if download:
            message = f"expected to download it to '{folder}', got: {reason}; try again, or put its files there"
        elif not folder.is_dir():
            message = f"expected its files in '{folder}', got no such folder; pass --download, or --data-dir DIR"
        else:
            message = f"expected its files in '{folder}', got: {reason}; delete that folder and pass --download"
        raise ResprobeError(f"{name}: {message}") from error
