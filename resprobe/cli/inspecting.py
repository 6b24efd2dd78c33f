"""The command that says what a checkpoint is."""

import functools
from typing import Annotated

import typer

from resprobe.cli.options import Common
from resprobe.cli.running import notify


def inspect(
    common: Common,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a checkpoint is.

    Shows its architecture, how each fact about it is known, its units, parameters and multiply-adds, and with --data
    its error under each usual normalisation.
    """
    from resprobe.cli.inspection import inspect as inspect_checkpoint

    tell = functools.partial(notify, quiet=common.quiet)
    reports = [inspect_checkpoint(name, common, tell, all_baselines=not as_json) for name in common.ckpt]
    if as_json:
        for report in reports:
            print(report.as_json())
        return
    from rich.console import Console

    from resprobe.cli.inspection_tables import show_inspection

    for report in reports:
        show_inspection(report, Console())
