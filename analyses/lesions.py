"""Lesions of plain and residual networks: what a network still gets right without some of its units.

    python analyses/lesions.py            the digits networks of checkpoints/, about five minutes on two CPU cores
    python analyses/lesions.py --quick    a few images and draws, to see that everything works

For each network the deletion of single units; for the residual ones also the deletion of several random units and
the reordering of units (Veit, Wilber, Belongie 2016, arXiv 1605.06431, section 4). Results go to `--out` as netCDF
files, figures to `--figures`. A result that is there already is kept.
"""

import argparse

import xarray as xr
from measuring import measure, open_subject
from studies import parse_study, run_study, study_parser

import resprobe
from resprobe import plots

PAIRS = (("resnet20", "plain20"), ("resnet56", "plain56"), ("resnet110", "plain110"))
PREACTIVATION = "preresnet110"
DRAWS = 20
QUICK_IMAGES = 60


def sizes(num_units: int, quick: bool) -> list[int]:
    """Choose how many units to delete or pairs to swap: up to about the half of them, in even steps."""
    most = max(num_units // 2, 2)
    return sorted({1, most}) if quick else sorted({round(most * step / 10) for step in range(1, 11)} - {0})


def main() -> None:
    """Measure every network and draw plain against residual."""
    arguments = parse_study(study_parser(__doc__))
    pairs = PAIRS[:1] if arguments.quick else PAIRS
    draws = 2 if arguments.quick else DRAWS
    shared = {"num_images": QUICK_IMAGES if arguments.quick else None, "overwrite": arguments.overwrite}
    folder = arguments.out
    curves, orders = [], []
    for names in pairs:
        residual, plain = (open_subject(f"{name}.pt") for name in names)
        lesions_of = measure("lesion", resprobe.lesion, residual, folder, **shared)
        plain_lesion = measure("lesion", resprobe.lesion, plain, folder, by="block", **shared)
        draw([lesions_of, plain_lesion], f"lesion-{residual.name}-{plain.name}", arguments)
        steps = sizes(lesions_of.sizes["unit"], arguments.quick)
        curves.append(
            measure("lesion-curve", resprobe.lesion_curve, residual, folder, num_deleted=steps, draws=draws, **shared)
        )
        orders.append(measure("reorder", resprobe.reorder, residual, folder, num_swaps=steps, draws=draws, **shared))
    measure("lesion", resprobe.lesion, open_subject(f"{PREACTIVATION}.pt"), folder, **shared)
    draw(curves, "lesion-curve", arguments)
    draw(orders, "reorder", arguments)


def draw(datasets: list[xr.Dataset], name: str, arguments: argparse.Namespace) -> None:
    """Save the figure of several results of one analysis."""
    plots.save_figure(plots.plot(*datasets), arguments.figures / f"{name}.png")


if __name__ == "__main__":
    run_study(main)
