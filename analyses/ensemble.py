"""Ensemble or chain: deletions, reorderings and path lengths of a residual network against a plain one.

    python analyses/ensemble.py            the 56-layer digits networks of checkpoints/
    python analyses/ensemble.py --quick    those of 20 layers, a few images and draws, to see that everything works
    python analyses/ensemble.py --residual RESNET.t7 --plain PLAIN.t7 --data npz:CIFAR.npz --normalise cifar10

For both networks the deletion of single units and of several random ones, random reorderings, and the gradient by path
length; beside them what Veit, Wilber and Belongie 2016 (arXiv 1605.06431) report, and whether it holds. A unit of the
plain network is the block of two layers that stands where a residual unit would; it is deleted by passing its input on,
subsampled and zero-padded where the shape changes. Results go to `--out`, the figure to `--figures`; a result that is
there already is kept, so an interrupted run goes on where it was.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import xarray as xr
from lesions import DRAWS, QUICK_IMAGES, sizes
from measuring import Subject, measure, open_subject
from rich.console import Console
from studies import parse_study, run_study, study_parser, with_time_left

import resprobe
from resprobe import plots
from resprobe.ensembles import ensemble_statements
from resprobe.errors import ResprobeError
from resprobe.tables.ensembles import statements
from resprobe.units import find

DEFAULTS, QUICK_DEFAULTS = ("resnet56.pt", "plain56.pt"), ("resnet20.pt", "plain20.pt")
PATH_IMAGES = 100
# Forward passes that an analysis takes for each version, or of paths for each image, about.
PASSES = {"lesion": 0.5, "lesion-curve": 0.7, "reorder": 0.9, "paths": 400, "one path": 4}


class Part(NamedTuple):
    """One analysis of one network: its options, on how many images, and how many of these pass the network, about."""

    subject: Subject
    analysis: str
    num_images: int
    options: dict[str, Any]
    passes: float


def parts_of(subject: Subject, arguments: argparse.Namespace) -> list[Part]:
    """List what is to be measured of one network.

    Args:
        subject: The network.
        arguments: The command line.

    Returns:
        The parts, in order.
    """
    data = subject.images(arguments.num_images)
    example, _ = next(iter(data))
    by = {} if find(subject.checkpoint.model, example[:2]).units[0].kind == "residual" else {"by": "block"}
    units = len(find(subject.checkpoint.model, example[:2], by=by.get("by")).units)
    steps = sizes(units, arguments.quick)
    estimator = {} if by else {"estimator": "all"}
    drawn = min(arguments.draw_images or data.num_images, data.num_images)
    versions = len(steps) * arguments.draws
    return [
        Part(subject, "lesion", data.num_images, by, PASSES["lesion"] * units * data.num_images),
        Part(
            subject,
            "paths",
            min(PATH_IMAGES, data.num_images),
            {**by, **estimator},
            PASSES["one path" if by else "paths"] * min(PATH_IMAGES, data.num_images),
        ),
        Part(
            subject,
            "lesion-curve",
            drawn,
            {**by, "num_deleted": steps, "draws": arguments.draws},
            PASSES["lesion-curve"] * versions * drawn,
        ),
        Part(
            subject,
            "reorder",
            drawn,
            {**by, "num_swaps": steps, "draws": arguments.draws},
            PASSES["reorder"] * versions * drawn,
        ),
    ]


def seconds_of_pass(subject: Subject) -> float:
    """Take the time of a forward pass of one image in a batch."""
    images, _ = next(iter(subject.images(50)))
    with torch.inference_mode():
        subject.checkpoint.model(images[:2])
        start = time.perf_counter()
        subject.checkpoint.model(images)
    return (time.perf_counter() - start) / len(images)


def parse_arguments() -> argparse.Namespace:
    """Read the command line and refuse what can't be measured."""
    parser = study_parser(__doc__)
    parser.add_argument("--residual", metavar="FILE", help=f"checkpoint; default {DEFAULTS[0]}")
    parser.add_argument("--plain", metavar="FILE", help=f"checkpoint; default {DEFAULTS[1]}")
    parser.add_argument("--data", metavar="NAME", help="as in resprobe lesion; default what they were trained on")
    parser.add_argument("--normalise", metavar="NAME", help="as in resprobe lesion; default what they say")
    parser.add_argument("--num-images", type=int, help="the first so many images; default all")
    parser.add_argument("--draw-images", type=int, help="of these, so many for random lesions and orders; default all")
    parser.add_argument("--draws", type=int, help=f"random draws of each size; default {DRAWS}")
    arguments = parse_study(parser)
    for option in ("num_images", "draw_images", "draws"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise ResprobeError(f"{option.replace('_', ' ')}: expected 1 or more, got {value}; choose another")
    if (arguments.residual is None) != (arguments.plain is None):
        given, missing = ("residual", "plain") if arguments.plain is None else ("plain", "residual")
        raise ResprobeError(f"{missing}: expected a checkpoint beside --{given}, got none; give --{missing} too")
    defaults = QUICK_DEFAULTS if arguments.quick else DEFAULTS
    arguments.residual, arguments.plain = arguments.residual or defaults[0], arguments.plain or defaults[1]
    if arguments.quick:
        arguments.num_images = arguments.num_images or QUICK_IMAGES
    arguments.draws = arguments.draws or (2 if arguments.quick else DRAWS)
    return arguments


def main() -> None:
    """Measure both networks, draw, and print what holds."""
    arguments = parse_arguments()
    subjects = [
        open_subject(file, data=arguments.data, normalise=arguments.normalise)
        for file in (arguments.residual, arguments.plain)
    ]
    parts = [part for subject in subjects for part in parts_of(subject, arguments)]
    check_kinds(subjects, parts)
    seconds = {subject.name: seconds_of_pass(subject) for subject in subjects}
    missing = [part for part in parts if arguments.overwrite or not path_of(part, arguments).exists()]
    estimate = sum(part.passes * seconds[part.subject.name] for part in missing)
    print(f"{len(missing)} of {len(parts)} results to compute, about {estimate / 60:.1f} minutes", flush=True)
    measured: dict[str, dict[str, xr.Dataset]] = {subject.name: {} for subject in subjects}
    functions: dict[str, Callable[..., xr.Dataset]] = {
        "lesion": resprobe.lesion,
        "paths": resprobe.paths,
        "lesion-curve": resprobe.lesion_curve,
        "reorder": resprobe.reorder,
    }
    for part in with_time_left(
        parts,
        lambda part: f"{part.analysis} of {part.subject.name}",
        lambda part: part.passes * seconds[part.subject.name] if part in missing else 0.0,
    ):
        measured[part.subject.name][part.analysis] = measure(
            part.analysis,
            functions[part.analysis],
            part.subject,
            arguments.out,
            num_images=part.num_images,
            overwrite=arguments.overwrite,
            **part.options,
        )
    residual, plain = (measured[subject.name] for subject in subjects)
    name = f"ensemble-{subjects[0].name}-{subjects[1].name}"
    plots.save_figure(plots.ensemble(residual, plain), arguments.figures / f"{name}.png")
    rows = ensemble_statements(residual, plain)
    Console(width=max(Console().width, 80)).print(
        statements(rows, residual=subjects[0].name, plain=subjects[1].name), highlight=False
    )
    for row in rows:
        print(f"{'holds' if row.holds else 'does not hold'} ({row.criterion}): {row.text}")


def check_kinds(subjects: list[Subject], parts: list[Part]) -> None:
    """Refuse a plain network in the place of the residual one, and the other way round."""
    if subjects[0].name == subjects[1].name:
        raise ResprobeError(f"plain: expected another checkpoint than --residual, got {subjects[0].name}; rename one")
    for which, subject in zip(("residual", "plain"), subjects, strict=True):
        is_plain = any("by" in part.options for part in parts if part.subject is subject)
        if is_plain != (which == "plain"):
            kind = "plain" if is_plain else "residual"
            raise ResprobeError(f"{which}: expected a {which} network, got {subject.name}, a {kind} one; swap them")


def path_of(part: Part, arguments: argparse.Namespace) -> Any:
    """Name the file of a result."""
    return arguments.out / f"{part.analysis}-{part.subject.name}.nc"


if __name__ == "__main__":
    run_study(main)
