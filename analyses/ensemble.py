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

from lesions import DRAWS, QUICK_IMAGES, sizes
from measuring import Part, Subject, is_residual, measure_all, num_units, open_subject
from rich.console import Console
from studies import parse_study, run_study, study_parser

from resprobe import plots
from resprobe.errors import ResprobeError
from resprobe.probes.ensembles.ensembles import ensemble_statements
from resprobe.probes.ensembles.table import statements

DEFAULTS, QUICK_DEFAULTS = ("resnet56.pt", "plain56.pt"), ("resnet20.pt", "plain20.pt")
PATH_IMAGES = 100


def parts_of(subject: Subject, arguments: argparse.Namespace) -> list[Part]:
    """List what is to be measured of one network.

    Args:
        subject: The network.
        arguments: The command line.

    Returns:
        The parts, in order.
    """
    by = {} if is_residual(subject) else {"by": "block"}
    steps = sizes(num_units(subject, by.get("by")), arguments.quick)
    num_images = subject.images(arguments.num_images).num_images
    drawn = {**by, "draws": arguments.draws}
    num_drawn = min(arguments.draw_images or num_images, num_images)
    return [
        Part(subject, "lesion", num_images, by),
        Part(subject, "paths", min(PATH_IMAGES, num_images), by or {"estimator": "all"}),
        Part(subject, "lesion-curve", num_drawn, {**drawn, "num_deleted": steps}),
        Part(subject, "reorder", num_drawn, {**drawn, "num_swaps": steps}),
    ]


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
        open_subject(file, device=arguments.device, data=arguments.data, normalise=arguments.normalise)
        for file in (arguments.residual, arguments.plain)
    ]
    check_kinds(subjects)
    measured = measure_all([part for subject in subjects for part in parts_of(subject, arguments)], arguments)
    residual, plain = (measured[subject.name] for subject in subjects)
    name = f"ensemble-{subjects[0].name}-{subjects[1].name}"
    plots.save_figure(plots.ensemble(residual, plain), arguments.figures / f"{name}.png")
    rows = ensemble_statements(residual, plain)
    Console(width=max(Console().width, 80)).print(
        statements(rows, residual=subjects[0].name, plain=subjects[1].name), highlight=False
    )
    for row in rows:
        print(f"{'holds' if row.holds else 'does not hold'} ({row.criterion}): {row.text}")


def check_kinds(subjects: list[Subject]) -> None:
    """Refuse a plain network in the place of the residual one, and the other way round."""
    if subjects[0].name == subjects[1].name:
        raise ResprobeError(f"plain: expected another checkpoint than --residual, got {subjects[0].name}; rename one")
    for which, subject in zip(("residual", "plain"), subjects, strict=True):
        kind = "residual" if is_residual(subject) else "plain"
        if kind != which:
            raise ResprobeError(f"{which}: expected a {which} network, got {subject.name}, a {kind} one; swap them")


if __name__ == "__main__":
    run_study(main)
