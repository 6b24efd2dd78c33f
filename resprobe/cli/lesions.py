"""The commands that delete and reorder units."""

from typing import Annotated

import typer

from resprobe.cli.options import Common
from resprobe.cli.running import analyse
from resprobe.cli.sizes import read_sizes

By = Annotated[str | None, typer.Option(help="For nets without shortcuts: layer (default) or block.")]
Draws = Annotated[int, typer.Option(help="Random draws for each size.")]
Seed = Annotated[int, typer.Option(help="Seed of the draws.")]


def lesion(
    common: Common,
    unit: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Delete only this unit; repeatable.")] = None,
    by: By = None,
    per_image: Annotated[bool, typer.Option("--per-image", help="Also keep the result of each image.")] = False,
) -> None:
    """Measure the error after each unit is deleted.

    A unit is a residual unit, or in a net without shortcuts a layer (or a block, with --by block).
    """
    options = {"units": unit or None, "by": by, "per_image": per_image}
    analyse("lesion", "lesion", options, common)


def lesion_curve(
    common: Common,
    num_deleted: Annotated[
        str, typer.Option(metavar="SIZES", help="Sizes of the lesions: 1:20, 2:20:2 or 1,5,10.")
    ] = "1:20",
    draws: Draws = 30,
    seed: Seed = 0,
    by: By = None,
) -> None:
    """Measure the error after random units are deleted."""
    sizes = read_sizes("num-deleted", num_deleted)
    analyse(
        "lesion-curve",
        "lesion_curve",
        {"num_deleted": sizes, "draws": draws, "seed": seed, "by": by},
        common,
    )


def reorder(
    common: Common,
    num_swaps: Annotated[
        str, typer.Option(metavar="SIZES", help="Numbers of swapped pairs: 1:30, 2:30:2 or 1,5,10.")
    ] = "1:30",
    draws: Draws = 30,
    seed: Seed = 0,
    by: By = None,
) -> None:
    """Measure the error after units are swapped.

    Each swap takes a random pair of units of equal shape.
    """
    swaps = read_sizes("num-swaps", num_swaps)
    analyse("reorder", "reorder", {"num_swaps": swaps, "draws": draws, "seed": seed, "by": by}, common)
