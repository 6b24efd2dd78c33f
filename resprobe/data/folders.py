"""A folder of class folders, as torchvision's ImageFolder reads it."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from resprobe.data.sources import ImageSource, Labels, Pixels
from resprobe.errors import ResprobeError

_SPLIT_FOLDERS = ("train", "test", "val", "valid")
# Where test images have no labels, as in ImageNet, networks are tested on the validation images.
_TEST_FOLDERS = ("test", "val", "valid")
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


@dataclass(frozen=True, kw_only=True)
class FolderSource(ImageSource):
    """Image files with the index of their class folder, decoded when they are read."""

    directory: Path
    samples: tuple[tuple[Path, int], ...]
    image_size: int | None

    def read(self, num_images: int, batch_size: int) -> Iterator[tuple[Pixels, Labels]]:
        """Decode the images of one batch at a time."""
        for first in range(0, num_images, batch_size):
            batch = self.samples[first : min(first + batch_size, num_images)]
            yield np.stack([self._decode(path) for path, _ in batch]), np.array([label for _, label in batch])

    def sha256(self, num_images: int) -> str:
        """Hash the files as they are, their paths in the split, their labels, and the image size."""
        content = hashlib.sha256(f"files at image size {self.image_size}".encode())
        for path, label in self.samples[:num_images]:
            try:
                with path.open("rb") as file:
                    file_digest = hashlib.file_digest(file, "sha256").digest()
            except OSError as error:
                raise _unreadable(path, error) from error
            # A path can't contain the zero byte, so that no two lists of files run into the same text.
            content.update(os.fsencode(path.relative_to(self.directory).as_posix()) + f"\0{label}\0".encode())
            content.update(file_digest)
        return content.hexdigest()

    def _decode(self, path: Path) -> Pixels:
        """Read one image as (H, W, 3), of the size that all images share."""
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except _UNREADABLE as error:
            raise _unreadable(path, error) from error
        if self.image_size is not None:
            image = _resized(image, self.image_size)
        _, height, width = self.image_shape
        if (image.width, image.height) != (width, height):
            raise ResprobeError(
                f"image '{path}': expected {width} x {height} pixels as in the first image, "
                f"got {image.width} x {image.height}; pass --image-size to resize and crop all images"
            )
        return np.asarray(image)


def open_folder(directory: Path, *, split: str | None, image_size: int | None) -> FolderSource:
    """List the images of a folder: `DIR/SPLIT/CLASS/*`, or `DIR/CLASS/*`, which is the single split `all`.

    Args:
        directory: the folder.
        split: `train`, `test`, `val`, `valid` or `all`; `test` is `val` or `valid` where there is no folder
            `test`. None is `test`, or `all` where `directory` holds class folders.
        image_size: side of the square that images are brought to, in pixels: shorter side to 256/224 of it
            (bilinear), then the centre. None leaves images as they are, which takes images of one size.

    Returns:
        The split's images in the order of ImageFolder, labelled by the position of their folder when sorted.

    Raises:
        ResprobeError: there is no such folder or split, it holds no images, splits differ in their class
            folders, or the first image can't be read.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    if not directory.is_dir():
        raise ResprobeError(f"folder '{directory}': expected a folder, got none there; check the path after folder:")
    split_folders = _split_folders(directory)
    chosen = _choose_split(directory, split, split_folders)
    classes = _class_names(split_folders[chosen])
    _check_same_classes(directory, chosen, split_folders)
    class_indices = {name: index for index, name in enumerate(classes)}
    files = make_dataset(split_folders[chosen], class_indices, IMG_EXTENSIONS, allow_empty=True) if classes else []
    if not files:
        raise ResprobeError(
            f"folder '{split_folders[chosen]}': expected images in class folders, got none; "
            f"put them in CLASS/FILE, with a name in {' '.join(IMG_EXTENSIONS)}"
        )
    samples = tuple((Path(path), label) for path, label in files)
    width, height = (image_size, image_size) if image_size is not None else _size(samples[0][0])
    return FolderSource(
        split=chosen,
        num_images=len(samples),
        num_classes=len(classes),
        image_shape=(3, height, width),
        directory=split_folders[chosen],
        samples=samples,
        image_size=image_size,
    )


def _class_names(directory: Path) -> list[str]:
    """List the visible folders in a folder, sorted: a tool's hidden folder must not shift the labels."""
    return sorted(entry.name for entry in directory.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _split_folders(directory: Path) -> dict[str, Path]:
    """Find the splits; a folder that holds no folders is no split but a class: trains among vehicles."""
    found = {name: directory / name for name in _SPLIT_FOLDERS}
    splits = {name: path for name, path in found.items() if path.is_dir() and _class_names(path)}
    return splits or {"all": directory}


def _choose_split(directory: Path, split: str | None, split_folders: dict[str, Path]) -> str:
    """Return the name of the folder that stands for the requested split."""
    if split is None:
        split = "all" if "all" in split_folders else "test"
    for name in _TEST_FOLDERS if split == "test" else (split,):
        if name in split_folders:
            return name
    raise ResprobeError(
        f"folder '{directory}': expected split {' or '.join(split_folders)}, got {split!r}; "
        f"pass --split {next(iter(split_folders))}"
    )


def _check_same_classes(directory: Path, chosen: str, split_folders: dict[str, Path]) -> None:
    """Refuse splits with other class folders: the same label would mean another class in each."""
    classes = set(_class_names(split_folders[chosen]))
    for name, path in split_folders.items():
        different = sorted(classes ^ set(_class_names(path)))
        if different:
            raise ResprobeError(
                f"folder '{directory}': expected the same class folders in {chosen} and {name}, "
                f"got {different[0]!r} in only one of them; labels are positions in the sorted list, "
                "so add the missing folders, if need be empty"
            )


def _size(path: Path) -> tuple[int, int]:
    """Return an image's width and height."""
    try:
        with Image.open(path) as image:
            return image.size
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def _resized(image: Image.Image, image_size: int) -> Image.Image:
    """Bring the shorter side to 256/224 of the image size, cut out the centre: ImageNet's evaluation."""
    from torchvision.transforms import functional

    resized = functional.resize(image, [round(image_size * 256 / 224)])
    cropped: Image.Image = functional.center_crop(resized, [image_size])
    return cropped


def _unreadable(path: Path, error: Exception) -> ResprobeError:
    """Say that a file can't be read as an image."""
    return ResprobeError(f"image '{path}': expected a readable image, got: {error}; replace or remove the file")
