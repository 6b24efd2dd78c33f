"""Results as netCDF4 files: written whole or not at all, and read completely into memory."""

import os
from pathlib import Path

import numpy as np
import xarray as xr

from resprobe.errors import ResprobeError
from resprobe.results.provenance import fingerprint
from resprobe.results.schema import check
from resprobe.results.writing import whole_file


def save(dataset: xr.Dataset, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a result as netCDF4; missing folders are made, and the file appears only when it is complete.

    Args:
        dataset: A result that `check` accepts.
        path: Where to write. A result of the same fingerprint that is there is replaced.
        overwrite: Also replace anything else that is there.

    Returns:
        The path.

    Raises:
        ResprobeError: The dataset is no valid result, the folder can't be written, or something else is
            there.
    """
    path = Path(path)
    check(dataset)
    find_existing(path, fingerprint(dataset.attrs), overwrite=overwrite)
    # Encodings of an older file (chunks, fill values) would leak in, and xarray gives floats a fill value.
    dataset = dataset.drop_encoding()
    encoding = {
        name: {"_FillValue": None} for name, variable in dataset.variables.items() if variable.dtype.kind == "f"
    }
    with whole_file(path) as temporary:
        try:
            dataset.to_netcdf(temporary, engine="netcdf4", encoding=encoding)
        except RuntimeError as error:  # what netCDF4 raises when the disk is full, among others
            raise ResprobeError(
                f"{path}: expected to write a netCDF4 file, got {error}; see whether the disk is full"
            ) from error
    return path


def open(path: str | os.PathLike[str]) -> xr.Dataset:
    """Read a result into memory and close its file.

    Args:
        path: A file that `save` wrote.

    Returns:
        The Dataset, identical to the one that was saved.

    Raises:
        ResprobeError: There is no such file, it is not netCDF, or it is no valid result.
    """
    path = Path(path)
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing there"
        raise ResprobeError(f"{path}: expected a result file, got {found}; check the path")
    try:
        with xr.open_dataset(path, engine="netcdf4", decode_times=False, decode_timedelta=False) as stored:
            dataset = stored.load().drop_encoding()
    except (OSError, RuntimeError, ValueError) as error:
        raise ResprobeError(
            f"{path}: expected a netCDF4 file, got one that can't be read ({error}); compute the result again"
        ) from error
    # netCDF returns numpy scalars, which JSON and type checks don't take for numbers.
    dataset.attrs = {
        name: value.item() if isinstance(value, np.generic) else value for name, value in dataset.attrs.items()
    }
    try:
        check(dataset)
    except ResprobeError as error:
        raise ResprobeError(f"{path}: {error}") from error
    return dataset


def find_existing(
    path: str | os.PathLike[str], wanted_fingerprint: str, *, overwrite: bool = False
) -> xr.Dataset | None:
    """Find out whether a result is there already, before it is computed.

    A result whose checkpoint or data is not known by its hash (of a model that came from no file, say) is
    never taken for the same: two different models would share a fingerprint.

    Args:
        path: Where the result would be saved.
        wanted_fingerprint: `fingerprint` of its attributes.
        overwrite: Whatever is there may be replaced: don't look.

    Returns:
        The result that is there if it has this fingerprint; None if nothing is there, or with `overwrite`.

    Raises:
        ResprobeError: Something else is there; the message says what.
    """
    path = Path(path)
    if overwrite or not path.exists():
        return None
    try:
        existing = open(path)
    except ResprobeError as error:
        raise ResprobeError(f"{error}, or replace what is there with --overwrite (overwrite=True)") from error
    hashes_known = existing.attrs["checkpoint_sha256"] and existing.attrs["data_sha256"]
    if hashes_known and fingerprint(existing.attrs) == wanted_fingerprint:
        return existing
    raise ResprobeError(
        f"{path}: expected the same result or no file, got {_describe(existing)}; "
        "choose another --out, or replace it with --overwrite (overwrite=True)"
    )


def _describe(dataset: xr.Dataset) -> str:
    """Return in a few words which result this is."""
    attrs = dataset.attrs
    model = attrs["checkpoint"] or attrs["architecture"] or "an unnamed model"
    data = attrs["data"] or "unnamed data"
    return f"a {attrs['analysis']} result of {model} on {data} with settings {attrs['settings']}"
