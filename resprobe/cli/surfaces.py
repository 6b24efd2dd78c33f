"""The command that measures loss surfaces."""

from typing import Annotated

import typer

from resprobe.cli.options import Common
from resprobe.cli.running import analyse


def surface(
    common: Common,
    dims: Annotated[int, typer.Option(help="1 for lines through the trained weights, 2 for a plane.")] = 1,
    points: Annotated[int, typer.Option(help="Points along each direction.")] = 51,
    radius: Annotated[
        float,
        typer.Option(
            "--range",
            metavar="R",
            help="Distances go from -R to R, in shares of each filter's norm; along eigenvectors, which are of norm 1, "
            "in the norm of the change of all weights.",
        ),
    ] = 1.0,
    directions: Annotated[
        str,
        typer.Option(
            help="random (each filter as long as the trained one) or hessian (the eigenvectors of the two largest "
            "eigenvalues, of norm 1)."
        ),
    ] = "random",
    draws: Annotated[int | None, typer.Option(help="Random lines or planes. Default: 5 lines, one plane.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the directions.")] = 0,
    bn_mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="running, batch, folded, or none for a net without batch normalisation. Default: running or none.",
        ),
    ] = None,
) -> None:
    """Measure the loss around the trained weights.

    Loss and error along lines or in a plane. A measurement that is interrupted, by Ctrl-C for example, keeps what it
    has; the same command goes on with it.
    """
    from resprobe.probes.surfaces.grid import check_grid

    # before anything is opened, and with the number of draws that is meant: asked for or not, the question is the same
    draws = check_grid(dims, points, radius, directions, draws, seed).draws
    options = {
        **{"dims": dims, "points": points, "radius": radius, "directions": directions},
        **{"draws": draws, "seed": seed, "bn_mode": bn_mode},
    }
    analyse("surface", "surface", options, common, batches_count=True)
