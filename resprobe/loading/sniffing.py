"""Tells from its first bytes what kind of file a checkpoint is, before anything reads it."""

import string
import zipfile
import zlib
from pathlib import Path

from resprobe.errors import ResprobeError

SAVE_AGAIN = "save the network again with torch.save(model.state_dict(), FILE)"
_HEAD_BYTES = 512
_PIECE_BYTES = 2**20
_LARGEST_INFLATION = 100
_OTHER_KINDS = (
    (b"\x1f\x8b", "a gzip archive", "unpack it"),
    (b"BZh", "a bzip2 archive", "unpack it"),
    (b"\xfd7zXZ", "an xz archive", "unpack it"),
    (b"7z\xbc\xaf", "a 7z archive", "unpack it"),
    (b"\x89HDF", "an HDF5 file (Keras?)", SAVE_AGAIN),
    (b"\x93NUMPY", "a NumPy array", SAVE_AGAIN),
    (b"GGUF", "a GGUF file", SAVE_AGAIN),
    (b"\x89PNG", "an image", "choose the checkpoint"),
    (b"\xff\xd8\xff", "an image", "choose the checkpoint"),
)


def sniff(path: Path) -> str:
    """Tell the formats apart that can be read.

    Args:
        path: A file.

    Returns:
        `zip`, `pickle` (files of PyTorch before 1.6) or `safetensors`.

    Raises:
        ResprobeError: If it is something else, empty or incomplete: what it is, and what to do.
    """
    try:
        return _sniff(path)
    except _Refused as refused:
        raise ResprobeError(f"{path}: expected a checkpoint, got {refused.args[0]}; {refused.args[1]}") from refused


class _Refused(Exception):
    """What the file is, and what to do."""


def _sniff(path: Path) -> str:
    with path.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    if not head:
        raise _Refused("an empty file", "download or copy it again")
    if _is_safetensors(head):
        return "safetensors"
    if head.startswith(b"PK"):
        return _sniff_zip(path)
    if head.startswith(b"\x80"):
        return "pickle"
    text = head.lstrip()[:_HEAD_BYTES].lower()
    if text.startswith(b"version https://git-lfs"):
        raise _Refused("a Git LFS pointer", "fetch the file itself with git lfs pull")
    if text.startswith(b"<"):
        raise _Refused("a web page or XML", "download the file itself, not the page that shows it")
    for start, what, action in _OTHER_KINDS:
        if head.startswith(start):
            raise _Refused(what, action)
    if head[257:262] == b"ustar":
        raise _Refused("a tar archive", "unpack it, or open it with the PyTorch that wrote it and save it again")
    if all(chr(byte) in string.printable for byte in head):
        raise _Refused("a text file", "check that it is the checkpoint and not a message about it")
    raise _Refused("a file of an unknown kind", "check that it is one and that it is complete")


def _sniff_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _Refused("an incomplete or damaged zip archive", "download or copy it again") from error
    inner = {name.partition("/")[2] or name for name in names}
    if "constants.pkl" in inner or any(name.startswith("code/") for name in inner):
        raise _Refused("a TorchScript archive, which holds a program", f"load it with torch.jit.load and {SAVE_AGAIN}")
    if "data.pkl" in inner:
        _check_sums(path)
        return "zip"
    if any(name.endswith(".npy") for name in names):
        raise _Refused("a NumPy archive", "give it as --data npz:FILE if it holds images")
    raise _Refused("a zip archive without a checkpoint in it", "unpack it")


def _check_sums(path: Path) -> None:
    """Compare every member with its checksum, which torch.load doesn't do; files may be saved without any."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.CRC != 0]
            if sum(member.file_size for member in members) > _LARGEST_INFLATION * path.stat().st_size:
                raise _Refused("a zip archive that inflates to many times its size", "check where it comes from")
            for member in members:
                with archive.open(member) as stream:
                    while stream.read(_PIECE_BYTES):
                        pass
    # A damaged archive can fail anywhere in the reader.
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise _Refused("a damaged zip archive", "download or copy it again") from error


def _is_safetensors(head: bytes) -> bool:
    """Tell by the length of the header, 8 bytes of a number below 100 MB, and the brace that opens it."""
    return head[4:8] == b"\0\0\0\0" and head[8:9] == b"{"
