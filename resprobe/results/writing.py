"""Files that appear whole: written beside their place under another name, then renamed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from resprobe.errors import ResprobeError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a path to write to; when the block ends without an exception, the file appears at `path`.

    After an exception, a keyboard interrupt too, what was at `path` is as before and nothing else is left.
    Parent folders are made. The temporary file lies in a temporary folder beside `path`: on the same file
    system, so that the rename is atomic, and with the permissions of an ordinary new file.

    Args:
        path: The place of the finished file.

    Yields:
        A path that does not exist yet, with the name of `path`.

    Raises:
        ResprobeError: The folder can't be made or written, or `path` is a folder.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=path.parent, prefix=".resprobe-")
    except OSError as error:
        raise ResprobeError(_cannot_write(path, error)) from error
    with folder as name:
        temporary = Path(name) / path.name
        try:
            yield temporary
            os.replace(temporary, path)
        except OSError as error:
            raise ResprobeError(_cannot_write(path, error)) from error


def _cannot_write(path: Path, error: OSError) -> str:
    """Return what to say of the system's error."""
    reason = error.strerror or error
    return f"{path}: expected to write a file there, got {reason}; choose another place with --out"


def check_writable(path: Path) -> None:
    """Find out whether a file can be written, before the work whose result it is to hold.

    Nothing is left behind: missing folders are made only when the file is written.

    Args:
        path: The place of the file.

    Raises:
        ResprobeError: If it is a folder, or its nearest existing folder can't be written.
    """
    if path.is_dir():
        raise ResprobeError(f"{path}: expected a file to write, got a folder; name a file in it with --out")
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        # asking for permission is not enough: a read-only file system gives it
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ResprobeError(_cannot_write(path, error)) from error
