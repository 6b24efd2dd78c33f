"""Runs an analysis on a checkpoint, unless its result is there already."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr
from studies import ROOT

from resprobe import results
from resprobe.data import ImageData
from resprobe.loading import Checkpoint
from resprobe.opening import open_images, open_settled
from resprobe.options import Common


class Subject(NamedTuple):
    """A checkpoint with its name in the names of files, and how to open its images."""

    name: str
    checkpoint: Checkpoint
    images: Callable[[int | None], ImageData]


def open_subject(file: str, *, data: str | None = None, normalise: str | None = None) -> Subject:
    """Open a checkpoint, and let its images settle what its keys don't show.

    Args:
        file: The checkpoint, or its name under `checkpoints/`.
        data: The images; None for those that it was trained on.
        normalise: Their normalisation; None for the one that the checkpoint says.

    Returns:
        The checkpoint; its images are opened by their number.
    """
    stored = ROOT / "checkpoints" / file
    file = str(stored) if not Path(file).exists() and stored.exists() else file
    common = Common(ckpt=[file], data=data, normalise=normalise)
    checkpoint, opened = open_settled(file, common, lambda line: print(line, file=sys.stderr))

    def images(number: int | None) -> ImageData:
        known = None if number is None else min(number, opened.num_images)
        return open_images(file, checkpoint, replace(common, num_images=known))

    return Subject(Path(checkpoint.path.name).stem, checkpoint, images)


def measure(
    analysis: str,
    function: Callable[..., xr.Dataset],
    subject: Subject,
    folder: Path,
    *,
    num_images: int | None = None,
    overwrite: bool = False,
    **given: Any,
) -> xr.Dataset:
    """Run one analysis on one network, or read its result if it is there already.

    Args:
        analysis: Name of the analysis in the schema.
        function: The analysis.
        subject: The network.
        folder: Where the result is, as `ANALYSIS-NAME.nc`.
        num_images: The first so many images; None for all.
        overwrite: Compute again what is there.
        **given: Options of the analysis.

    Returns:
        The result.
    """
    data = subject.images(num_images)
    options = results.complete_options(function, given)
    provenance = subject.checkpoint.provenance
    start = time.perf_counter()
    dataset, found = results.find_or_compute(
        folder / f"{analysis}-{subject.name}.nc",
        analysis,
        lambda: function(subject.checkpoint.model, data, provenance=provenance, **options),
        options=options,
        model=provenance,
        data=data.provenance,
        overwrite=overwrite,
    )
    took = "there already" if found else f"{time.perf_counter() - start:.0f} s"
    print(f"{analysis} of {subject.name}: {took}", flush=True)
    return dataset
