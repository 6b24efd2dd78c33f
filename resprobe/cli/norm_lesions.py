"""The command that replaces batch normalisations."""

from typing import Annotated

import typer

from resprobe.cli.options import Common
from resprobe.cli.running import analyse


def norm_lesion(
    common: Common,
    replacement: Annotated[
        str,
        typer.Option(
            help="affine (scale and offset alone), batch (statistics of each batch), or recomputed (statistics of all "
            "the images given)."
        ),
    ] = "affine",
) -> None:
    """Measure the error after a norm is replaced.

    Each batch normalisation, one layer at a time; the others keep their stored statistics.
    """
    analyse("norm-lesion", "norm_lesion", {"replacement": replacement}, common, batches_count=True)
