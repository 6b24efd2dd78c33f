"""Lesions of plain and residual networks: what a network still gets right without some of its units.

    python analyses/lesions.py            the digits networks of checkpoints/, about five minutes on two CPU cores
    python analyses/lesions.py --quick    a few images and draws, to see that everything works

For each network the deletion of single units; for the residual ones also the deletion of several random units and
the reordering of units (Veit, Wilber, Belongie 2016, arXiv 1605.06431, section 4). Results go to `--out` as netCDF
files, figures to `--figures`. A result that is there already is kept.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xarray as xr

import resprobe
from resprobe import plots, results

ROOT = Path(__file__).parents[1]
PAIRS = (("resnet20", "plain20"), ("resnet56", "plain56"), ("resnet110", "plain110"))
PREACTIVATION = "preresnet110"
DRAWS = 20
QUICK_IMAGES = 60


def measure(
    analysis: str, function: Callable[..., xr.Dataset], name: str, arguments: argparse.Namespace, **given: Any
) -> xr.Dataset:
    """Run one analysis on one network, or read its result if it is there already."""
    checkpoint = resprobe.load(ROOT / "checkpoints" / f"{name}.pt")
    assert checkpoint.data is not None
    num_images = QUICK_IMAGES if arguments.quick else None
    data = resprobe.open_data(checkpoint.data, normalisation=checkpoint.normalisation, num_images=num_images)
    options = results.complete_options(function, given)
    start = time.perf_counter()
    dataset, found = results.find_or_compute(
        arguments.out / f"{analysis}-{name}.nc",
        analysis,
        lambda: function(checkpoint.model, data, provenance=checkpoint.provenance, **options),
        options=options,
        model=checkpoint.provenance,
        data=data.provenance,
        overwrite=arguments.overwrite,
    )
    print(f"{analysis} of {name}: {'there already' if found else f'{time.perf_counter() - start:.0f} s'}", flush=True)
    return dataset


def sizes(num_units: int, quick: bool) -> list[int]:
    """Choose how many units to delete or pairs to swap: up to about the half of them, in even steps."""
    most = max(num_units // 2, 2)
    return sorted({1, most}) if quick else sorted({round(most * step / 10) for step in range(1, 11)} - {0})


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few images and draws, small networks only")
    parser.add_argument("--out", type=Path, default=ROOT / "notebooks" / "data", help="folder of the results")
    parser.add_argument("--figures", type=Path, default=ROOT / "notebooks" / "figures", help="folder of the figures")
    parser.add_argument("--overwrite", action="store_true", help="compute again what is there")
    return parser.parse_args()


def main() -> None:
    """Measure every network and draw plain against residual."""
    arguments = parse_arguments()
    pairs = PAIRS[:1] if arguments.quick else PAIRS
    draws = 2 if arguments.quick else DRAWS
    residual_lesions = []
    for residual, plain in pairs:
        residual_lesions.append(measure("lesion", resprobe.lesion, residual, arguments))
        plain_lesion = measure("lesion", resprobe.lesion, plain, arguments, by="block")
        draw([residual_lesions[-1], plain_lesion], f"lesion-{residual}-{plain}", arguments)
    measure("lesion", resprobe.lesion, PREACTIVATION, arguments)
    curves, orders = [], []
    for name, lesions_of in zip((pair[0] for pair in pairs), residual_lesions, strict=True):
        steps = sizes(lesions_of.sizes["unit"], arguments.quick)
        curves.append(measure("lesion-curve", resprobe.lesion_curve, name, arguments, num_deleted=steps, draws=draws))
        orders.append(measure("reorder", resprobe.reorder, name, arguments, num_swaps=steps, draws=draws))
    draw(curves, "lesion-curve", arguments)
    draw(orders, "reorder", arguments)


def draw(datasets: list[xr.Dataset], name: str, arguments: argparse.Namespace) -> None:
    """Save the figure of several results of one analysis."""
    plots.save_figure(plots.plot(*datasets), arguments.figures / f"{name}.png")


if __name__ == "__main__":
    main()
