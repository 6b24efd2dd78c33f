"""Lesions of plain and residual networks: what a network still gets right without some of its units.

    python analyses/lesions.py            the digits networks of checkpoints/, about five minutes on two CPU cores
    python analyses/lesions.py --quick    a few images and draws, to see that everything works

For each network the deletion of single units; for the residual ones also the deletion of several random units and
the reordering of units (Veit, Wilber, Belongie 2016, arXiv 1605.06431, section 4). Results go to `--out` as netCDF
files, figures to `--figures`. A result that is there already is kept.
"""

import argparse

import xarray as xr
from measuring import Part, is_residual, measure_all, num_units, open_subject
from studies import parse_study, run_study, study_parser

from resprobe import plots

PAIRS = (("resnet20", "plain20"), ("resnet56", "plain56"), ("resnet110", "plain110"))
PREACTIVATION = "preresnet110"
DRAWS = 20
QUICK_IMAGES = 30


def sizes(num_units: int, quick: bool) -> list[int]:
    """Choose how many units to delete or pairs to swap: up to about the half of them, in even steps."""
    most = max(num_units // 2, 2)
    return sorted({1, most}) if quick else sorted({round(most * step / 10) for step in range(1, 11)} - {0})


def parts_of(name: str, arguments: argparse.Namespace) -> list[Part]:
    """List what is to be measured of one network: deletions, and of a residual one of each pair the other studies."""
    subject = open_subject(f"{name}.pt", device=arguments.device)
    images = QUICK_IMAGES if arguments.quick else None
    if not is_residual(subject):
        return [Part(subject, "lesion", images, {"by": "block"})]
    parts = [Part(subject, "lesion", images, {})]
    if name != PREACTIVATION:
        steps, draws = sizes(num_units(subject), arguments.quick), 2 if arguments.quick else DRAWS
        parts.append(Part(subject, "lesion-curve", images, {"num_deleted": steps, "draws": draws}))
        parts.append(Part(subject, "reorder", images, {"num_swaps": steps, "draws": draws}))
    return parts


def main() -> None:
    """Measure every network and draw plain against residual."""
    arguments = parse_study(study_parser(__doc__))
    pairs = PAIRS[:1] if arguments.quick else PAIRS
    names = [name for pair in pairs for name in pair]
    if not arguments.quick:
        names.append(PREACTIVATION)
    measured = measure_all([part for name in names for part in parts_of(name, arguments)], arguments)
    for residual, plain in pairs:
        draw([measured[residual]["lesion"], measured[plain]["lesion"]], f"lesion-{residual}-{plain}", arguments)
    for analysis in ("lesion-curve", "reorder"):
        draw([measured[residual][analysis] for residual, _ in pairs], analysis, arguments)


def draw(datasets: list[xr.Dataset], name: str, arguments: argparse.Namespace) -> None:
    """Save the figure of several results of one analysis."""
    plots.save_figure(plots.plot(*datasets), arguments.figures / f"{name}.png")


if __name__ == "__main__":
    run_study(main)
