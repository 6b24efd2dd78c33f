"""The command that says what a checkpoint is."""

import functools
from typing import TYPE_CHECKING, Annotated

import typer

from resprobe.cli.options import Common

if TYPE_CHECKING:
    from resprobe.cli.inspection import Inspection
from resprobe.cli.running import notify


def inspect(
    common: Common,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a checkpoint is.

    Shows its architecture, how each fact about it is known, its units, parameters and multiply-adds, and with --data
    its error under each usual normalisation.
    """
    reports = [_inspect(name, common, all_baselines=not as_json) for name in common.ckpt]
    if as_json:
        for report in reports:
            print(report.as_json())
        return
    from rich.console import Console

    from resprobe.cli.inspection_tables import show_inspection

    for report in reports:
        show_inspection(report, Console())


def _inspect(name: str, common: Common, *, all_baselines: bool) -> "Inspection":
    from resprobe.cli.inspection import Images
    from resprobe.cli.inspection import inspect as inspect_checkpoint
    from resprobe.cli.opening import open_checkpoint, open_images

    checkpoint = open_checkpoint(name, common)
    images = None
    if common.data is not None or checkpoint.data is not None:
        images = Images(
            lambda normalisation: open_images(name, checkpoint, common, normalisation=normalisation),
            are_named=common.data is not None,
            normalisation_is_known=common.normalise is not None or checkpoint.normalisation is not None,
        )
    tell = functools.partial(notify, quiet=common.quiet)
    return inspect_checkpoint(checkpoint, images, tell, device=common.device, all_baselines=all_baselines)
