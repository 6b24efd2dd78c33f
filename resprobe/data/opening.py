"""From the name of a dataset to its batches."""

import difflib
from numbers import Integral
from pathlib import Path

from resprobe.data.folders import open_folder
from resprobe.data.images import ImageData
from resprobe.data.named import NAMES, open_named
from resprobe.data.normalisation import NORMALISATIONS, Normalisation
from resprobe.data.npz import open_npz
from resprobe.data.parsing import parse_normalisation
from resprobe.data.sources import ImageSource
from resprobe.errors import ResprobeError

_FOLDER, _NPZ = "folder:", "npz:"


def open_data(
    name: str,
    *,
    split: str | None = None,
    num_images: int | None = None,
    normalisation: str | Normalisation | None = None,
    batch_size: int = 100,
    data_dir: str | Path = "data",
    download: bool = False,
    image_size: int | None = None,
) -> ImageData:
    """Open one split of a dataset.

    Args:
        name: `digits`, `cifar10`, `cifar100`, `mnist`, `fashion-mnist`; `folder:DIR`, class folders of
            images; or `npz:FILE`, with arrays `x` (N, H, W[, C]) uint8 and `y` (N,) int.
        split: `train` or `test`; a folder may also have `val` or `valid`. A folder without splits and an npz
            file have only `all`. None is `test` where there are splits, else `all`.
        num_images: use the first so many, in dataset order; None uses all.
        normalisation: a name or `MEAN,../STD,..` as in `parse_normalisation`. None is the dataset's own;
            folders and npz files have none.
        batch_size: images per batch; the last batch may be smaller.
        data_dir: where the datasets that torchvision fetches are kept.
        download: fetch a dataset that is missing from `data_dir`; no effect on those that aren't fetched.
        image_size: folders only: bring images to squares of this side, in pixels.

    Returns:
        The data, in dataset order, with constant memory for folders and npz files.

    Raises:
        ResprobeError: an argument is out of range, or the data is missing, damaged or not as described.

    Examples:
        >>> data = open_data("digits", num_images=32, batch_size=20)
        >>> [tuple(images.shape) for images, labels in data]
        [(20, 1, 8, 8), (12, 1, 8, 8)]
    """
    for option, value in (("batch-size", batch_size), ("num-images", num_images), ("image-size", image_size)):
        if value is not None and (not isinstance(value, Integral) or value < 1):
            raise ResprobeError(
                f"{option.replace('-', ' ')}: expected 1 or more, got {value}; pass a positive --{option}"
            )
    if isinstance(normalisation, str):
        normalisation = parse_normalisation(normalisation)
    source = _open_source(name, split=split, data_dir=Path(data_dir), download=download, image_size=image_size)
    return ImageData(
        source,
        name=name,
        num_images=_checked_num_images(name, source, num_images),
        normalisation=normalisation or _default_normalisation(name, source),
        batch_size=batch_size,
    )


def _open_source(
    name: str, *, split: str | None, data_dir: Path, download: bool, image_size: int | None
) -> ImageSource:
    """Tell the kinds of datasets apart."""
    if name.startswith(_FOLDER):
        return open_folder(Path(name.removeprefix(_FOLDER)).expanduser(), split=split, image_size=image_size)
    if image_size is not None:
        raise ResprobeError(
            f"image size: expected none for {name}, got {image_size}; only images of {_FOLDER}DIR are resized"
        )
    if name.startswith(_NPZ):
        return open_npz(Path(name.removeprefix(_NPZ)).expanduser(), split=split)
    if name in NAMES:
        return open_named(name, split=split, data_dir=data_dir, download=download)
    raise ResprobeError(
        f"data: expected one of {', '.join(NAMES)}, {_FOLDER}DIR, {_NPZ}FILE, got {name!r}; {_suggestion(name)}"
    )


def _suggestion(name: str) -> str:
    """Say what an unknown name was probably meant to be."""
    if Path(name).is_dir():
        return f"did you mean {_FOLDER}{name}?"
    if Path(name).suffix == ".npz":
        return f"did you mean {_NPZ}{name}?"
    close = difflib.get_close_matches(name, NAMES, n=1)
    return f"did you mean {close[0]}?" if close else "pass one of these with --data"


def _checked_num_images(name: str, source: ImageSource, num_images: int | None) -> int:
    """Return how many images to use."""
    if num_images is None:
        return source.num_images
    if num_images > source.num_images:
        raise ResprobeError(
            f"{name}: expected at most the {source.num_images} images of split {source.split}, "
            f"got {num_images}; pass a smaller --num-images, or leave it out to use all"
        )
    return num_images


def _default_normalisation(name: str, source: ImageSource) -> Normalisation:
    """Return the normalisation of a named dataset."""
    if source.default_normalisation is None:
        raise ResprobeError(
            f"{name}: expected a normalisation, got none; pass --normalise with the one that the network was "
            f"trained with: one of {', '.join(NORMALISATIONS)} or MEAN,../STD,.."
        )
    return NORMALISATIONS[source.default_normalisation]
