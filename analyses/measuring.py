"""Runs analyses on checkpoints, unless their results are there already, and says how long they will take."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import xarray as xr
from studies import ROOT, with_time_left

import resprobe
from resprobe import results
from resprobe.cli.opening import open_images, open_settled
from resprobe.cli.options import Common
from resprobe.data import ImageData
from resprobe.engine.devices import device_of
from resprobe.loading import Checkpoint
from resprobe.units import find

FUNCTIONS: dict[str, Callable[..., xr.Dataset]] = {
    "lesion": resprobe.lesion,
    "lesion-curve": resprobe.lesion_curve,
    "reorder": resprobe.reorder,
    "paths": resprobe.paths,
}
# Forward passes of an image that an analysis takes for each version of the network; of paths altogether. About.
PASSES = {"lesion": 0.5, "lesion-curve": 0.7, "reorder": 0.9, "paths": 400, "paths of a plain network": 4}


class Subject(NamedTuple):
    """A checkpoint with its name in the names of files, and how to open its images."""

    name: str
    checkpoint: Checkpoint
    images: Callable[[int | None], ImageData]


def open_subject(file: str, *, device: torch.device, data: str | None = None, normalise: str | None = None) -> Subject:
    """Open a checkpoint, and let its images settle what its keys don't show.

    Args:
        file: The checkpoint, or its name under `checkpoints/`.
        device: Where the network goes.
        data: The images; None for those that it was trained on.
        normalise: Their normalisation; None for the one that the checkpoint says.

    Returns:
        The checkpoint, its network on the device; its images are opened by their number.
    """
    stored = ROOT / "checkpoints" / file
    file = str(stored) if not Path(file).exists() and stored.exists() else file
    common = Common(ckpt=[file], data=data, normalise=normalise)
    checkpoint, opened = open_settled(file, common, lambda line: print(line, file=sys.stderr))
    checkpoint.model.to(device)

    def images(number: int | None) -> ImageData:
        known = None if number is None else min(number, opened.num_images)
        return open_images(file, checkpoint, replace(common, num_images=known))

    return Subject(Path(checkpoint.path.name).stem, checkpoint, images)


class Part(NamedTuple):
    """One analysis of one network: on the first so many images, or all, and its options."""

    subject: Subject
    analysis: str
    num_images: int | None
    options: dict[str, Any]


def num_units(subject: Subject, by: str | None = None) -> int:
    """Count the units of a network.

    Args:
        subject: The network.
        by: As in `resprobe.lesion`.

    Returns:
        Their number.
    """
    return len(find(subject.checkpoint.model, example(subject), by=by).units)


def is_residual(subject: Subject) -> bool:
    """Say whether a network has shortcuts.

    Args:
        subject: The network.

    Returns:
        Whether its first unit is a residual one.
    """
    return find(subject.checkpoint.model, example(subject)).units[0].kind == "residual"


def example(subject: Subject) -> torch.Tensor:
    """Give two images on the device of the network."""
    return next(iter(subject.images(2)))[0].to(device_of(subject.checkpoint.model))


def measure_all(parts: Sequence[Part], arguments: argparse.Namespace) -> dict[str, dict[str, xr.Dataset]]:
    """Run analyses one after the other, after an estimate of their time, and tell how much is left.

    Args:
        parts: The analyses.
        arguments: The command line of the study; a result is `ANALYSIS-NAME.nc` in `out`.

    Returns:
        The results by network and analysis.
    """
    seconds = {part.subject.name: seconds_of_pass(part.subject) for part in parts}

    def work(part: Part) -> float:
        if path_of(part, arguments.out).exists() and not arguments.overwrite:
            return 0.0
        return passes(part) * seconds[part.subject.name]

    missing = sum(work(part) > 0 for part in parts)
    print(f"{missing} of {len(parts)} results to compute, about {sum(map(work, parts)) / 60:.1f} minutes", flush=True)
    measured: dict[str, dict[str, xr.Dataset]] = {}
    for part in with_time_left(parts, lambda part: f"{part.analysis} of {part.subject.name}", work):
        measured.setdefault(part.subject.name, {})[part.analysis] = measure(
            part, arguments.out, overwrite=arguments.overwrite
        )
    return measured


def passes(part: Part) -> float:
    """Say how many images will pass the network, about."""
    images, options = part.subject.images(part.num_images).num_images, part.options
    if part.analysis == "paths":
        return images * PASSES["paths of a plain network" if options.get("by") else "paths"]
    steps = options.get("num_deleted", options.get("num_swaps"))
    versions = num_units(part.subject, options.get("by")) if steps is None else len(steps) * options["draws"]
    return images * versions * PASSES[part.analysis]


def seconds_of_pass(subject: Subject) -> float:
    """Take the time of a forward pass of one image in a batch."""
    model = subject.checkpoint.model
    images = next(iter(subject.images(50)))[0].to(device_of(model))
    with torch.inference_mode():
        model(images[:2])
        start = time.perf_counter()
        model(images)
    return (time.perf_counter() - start) / len(images)


def path_of(part: Part, folder: Path) -> Path:
    """Name the file of a result."""
    return folder / f"{part.analysis}-{part.subject.name}.nc"


def measure(part: Part, folder: Path, *, overwrite: bool = False) -> xr.Dataset:
    """Run one analysis on one network, or read its result if it is there already.

    Args:
        part: The analysis.
        folder: Where the result is.
        overwrite: Compute again what is there.

    Returns:
        The result.
    """
    function = FUNCTIONS[part.analysis]
    data = part.subject.images(part.num_images)
    options = results.complete_options(function, part.options)
    provenance = part.subject.checkpoint.provenance
    start = time.perf_counter()
    dataset, found = results.find_or_compute(
        path_of(part, folder),
        part.analysis,
        lambda: function(part.subject.checkpoint.model, data, provenance=provenance, **options),
        options=options,
        model=provenance,
        data=data.provenance,
        overwrite=overwrite,
    )
    took = "there already" if found else f"{time.perf_counter() - start:.0f} s"
    print(f"{part.analysis} of {part.subject.name}: {took}", flush=True)
    return dataset
