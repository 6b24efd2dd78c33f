"""The command that measures the curvature of the loss."""

from typing import Annotated

import typer

from resprobe.cli.options import Common
from resprobe.cli.running import analyse


def curvature(
    common: Common,
    bn_mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="running, batch, folded, or none for a net without batch normalisation. Default: running, or none.",
        ),
    ] = None,
    num_eigenvalues: Annotated[int, typer.Option(help="Eigenvalues from the largest down.")] = 5,
    num_probes: Annotated[int, typer.Option(help="Random vectors for the trace.")] = 16,
    num_lanczos: Annotated[int, typer.Option(help="Steps of the Lanczos run for the density.")] = 20,
    blocks: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="stage or unit: also the diagonal block of each. Default: none."),
    ] = None,
    tol: Annotated[float, typer.Option(help="Residual of a converged eigenvalue, relative to it.")] = 1e-2,
    seed: Annotated[int, typer.Option(help="Seed of the random vectors.")] = 0,
) -> None:
    """Measure the curvature of the loss by its Hessian.

    Its largest eigenvalues, trace and density. The Hessian is that of the mean loss over all images. The work is about
    100 products with it, each of which costs a few passes over the images; --num-images makes it less.
    """
    from resprobe.probes.curvature.options import check_tolerance

    # a setting that is not a number has no place in a fingerprint
    check_tolerance(tol)
    options = {
        "bn_mode": bn_mode,
        "num_eigenvalues": num_eigenvalues,
        "num_probes": num_probes,
        "num_lanczos": num_lanczos,
        "blocks": blocks,
        "tol": tol,
        "seed": seed,
    }
    analyse("curvature", "curvature", options, common, batches_count=True)
