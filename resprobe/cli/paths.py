"""The command that splits the gradient by path length."""

from typing import Annotated

import typer

from resprobe.cli.lesions import By
from resprobe.cli.options import Common
from resprobe.cli.running import analyse


def paths(
    common: Common,
    estimator: Annotated[
        str, typer.Option(help="exact, or with it signs (power of single paths), sampled (Veit et al.), or all.")
    ] = "exact",
    at: Annotated[str, typer.Option(help="Where the gradient arrives: input or first-unit.")] = "input",
    by_stage: Annotated[bool, typer.Option("--by-stage", help="Also split by each stage's branches alone.")] = False,
    repeats: Annotated[int, typer.Option(help="Repetitions with random signs.")] = 10,
    samples: Annotated[int, typer.Option(help="Sampled paths for each length.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of signs and samples.")] = 0,
    by: By = None,
) -> None:
    """Split the gradient by path length.

    A path takes the branch or the shortcut of every residual unit; its length is the number of branches. The split is
    exact: it sums over all paths, for each image.
    """
    options = {
        "estimator": estimator,
        "at": at,
        "by_stage": by_stage,
        "repeats": repeats,
        "samples": samples,
        "seed": seed,
        "by": by,
    }
    analyse("paths", "paths", options, common)
