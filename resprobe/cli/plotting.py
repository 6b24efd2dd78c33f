"""The command that draws a result."""

from pathlib import Path
from typing import Annotated

import typer

from resprobe.cli.running import save_figure


def plot(
    result: Annotated[list[Path], typer.Argument(help="Result files of one analysis; several are drawn together.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Figure: .png, .pdf or .svg. Default: beside the result."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No notices.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Draw the figure of a result."""
    from resprobe import results

    save_figure([results.open(path) for path in result], out or result[0].with_suffix(".png"), quiet)
