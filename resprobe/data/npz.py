"""An npz file with arrays x and y, read row by row: memory doesn't grow with the number of images.

`numpy.load` decompresses a whole array at once. Here the .npy members are read from the archive as streams,
after the header that says what they hold. Nothing is ever unpickled. Format: numpy.lib.format.
"""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from resprobe.data.sources import ImageSource, Labels, Pixels, check_labels, hash_content
from resprobe.errors import ResprobeError

_HEADER_READERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
_LABELS_PER_CHECK = 2**16


@dataclass(frozen=True)
class _Header:
    """What a .npy member says about itself, and the size of its data in bytes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran_order: bool
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class NpzSource(ImageSource):
    """Images and labels in the members x and y of an npz file."""

    path: Path

    def read(self, num_images: int, batch_size: int) -> Iterator[tuple[Pixels, Labels]]:
        """Yield batches from the file, which stays open meanwhile; other readers have their own."""
        channels, height, width = self.image_shape
        with (
            _archive(self.path) as archive,
            _member(archive, "x") as (x_stream, x_header),
            _member(archive, "y") as (y_stream, y_header),
        ):
            for first in range(0, num_images, batch_size):
                count = min(batch_size, num_images - first)
                pixels = _next_rows(x_stream, x_header, count)
                yield pixels.reshape(count, height, width, channels), _next_rows(y_stream, y_header, count)

    def sha256(self, num_images: int) -> str:
        """Hash pixel values and labels, so that compression makes no difference."""
        return hash_content(self, num_images)


def open_npz(path: Path, *, split: str | None) -> NpzSource:
    """Open an npz file that holds `x` (N, H, W) or (N, H, W, C) uint8 and `y` (N,) int.

    Args:
        path: the file.
        split: `all` or None: the file is one split.

    Returns:
        The file's images; its headers and labels have been checked, its pixels have not been read.

    Raises:
        ResprobeError: the file is missing, damaged, or doesn't hold these arrays.
    """
    if split not in (None, "all"):
        raise ResprobeError(
            f"npz file '{path}': expected split all, got {split!r}; leave it out; resprobe train takes --test-data"
        )
    with (
        _archive(path) as archive,
        _member(archive, "x") as (_, x_header),
        _member(archive, "y") as (y_stream, y_header),
    ):
        problem = _problem_with_images(x_header) or _problem_with_labels(y_header, len_x=x_header.shape[0])
        if problem:
            raise ResprobeError(f"npz file '{path}': {problem}")
        num_images, height, width, *channels = x_header.shape
        for first in range(0, num_images, _LABELS_PER_CHECK):
            labels = _next_rows(y_stream, y_header, min(_LABELS_PER_CHECK, num_images - first))
            check_labels(labels, where=f"npz file '{path}'", num_classes=None, first_row=first)
    return NpzSource(
        split="all",
        num_images=num_images,
        num_classes=None,
        image_shape=(channels[0] if channels else 1, height, width),
        path=path,
    )


@contextmanager
def _archive(path: Path) -> Iterator[ZipFile]:
    """Open the file; whatever turns out to be wrong with it becomes one line that names it."""
    if not path.is_file():
        raise ResprobeError(f"npz file '{path}': expected a file, got none there; check the path after npz:")
    try:
        with ZipFile(path) as archive:
            yield archive
    # KeyError: a missing member. RuntimeError: an encrypted one, or one with an unknown compression.
    except (BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, KeyError) as error:
        # str() of a KeyError is in quotes; numpy's messages may have several lines.
        reason = " ".join(str(error.args[0] if isinstance(error, KeyError) else error).split())
        raise ResprobeError(
            f"npz file '{path}': expected arrays x and y in an intact npz archive, got: {reason}; "
            "write it with numpy.savez(FILE, x=images, y=labels)"
        ) from error


@contextmanager
def _member(archive: ZipFile, name: str) -> Iterator[tuple[IO[bytes], _Header]]:
    """Open an array's stream and read its header, up to the first row."""
    with archive.open(f"{name}.npy") as stream:
        version = npy_format.read_magic(stream)
        if version not in _HEADER_READERS:
            raise ValueError(f"{name} in version {version} of the npy format")
        shape, is_fortran_order, dtype = _HEADER_READERS[version](stream)
        num_bytes = archive.getinfo(f"{name}.npy").file_size - stream.tell()
        yield stream, _Header(shape, dtype, is_fortran_order, num_bytes)


def _next_rows(stream: IO[bytes], header: _Header, count: int) -> NDArray[Any]:
    """Read the next `count` rows."""
    shape = (count, *header.shape[1:])
    num_bytes = math.prod(shape) * header.dtype.itemsize
    content = stream.read(num_bytes)
    if len(content) < num_bytes:
        raise EOFError("an array that ends before its last row")
    return np.frombuffer(content, header.dtype).reshape(shape)


def _problem_with_images(header: _Header) -> str | None:
    """Say why the array x can't be used, if so."""
    if header.dtype != np.uint8:
        return f"expected x of uint8, got {header.dtype}; store pixels as whole numbers from 0 to 255"
    if len(header.shape) not in (3, 4):
        return f"expected x of shape (N, H, W) or (N, H, W, C), got {header.shape}; reshape the images"
    if len(header.shape) == 4 and header.shape[1] in (1, 3) and header.shape[3] > 4:
        return f"expected x with channels last, got {header.shape}; store x.transpose(0, 2, 3, 1)"
    if 0 in header.shape:
        return f"expected at least one image, got x of shape {header.shape}; store some"
    return _problem_with_layout("x", header)


def _problem_with_labels(header: _Header, *, len_x: int) -> str | None:
    """Say why the array y can't be used, if so."""
    if header.dtype.kind not in "iu":
        return f"expected y of integers, got {header.dtype}; store class indices from 0"
    if header.shape != (len_x,):
        return f"expected y of shape {(len_x,)}, one label per image of x, got {header.shape}; match the two"
    return _problem_with_layout("y", header)


def _problem_with_layout(name: str, header: _Header) -> str | None:
    """Say why the rows can't be read one after the other, if so."""
    if header.is_fortran_order:
        return f"expected {name} in C order, got Fortran order; store numpy.ascontiguousarray({name})"
    expected = math.prod(header.shape) * header.dtype.itemsize
    if header.num_bytes != expected:
        return f"expected {expected} bytes in {name}, got {header.num_bytes}; write the damaged file again"
    return None
