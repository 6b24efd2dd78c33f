"""The command that measures the smoothness of the loss."""

from typing import Annotated

import typer

from resprobe.cli.comparing import analyse_together
from resprobe.cli.options import Common
from resprobe.errors import ResprobeError


def smoothness(
    common: Common,
    bn_mode: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODE",
            help="running, batch, folded, or none for a net without batch normalisation; repeatable. Default: all "
            "that a net can have.",
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="Step lengths with commas; 0 is always added. Default: 0.05,0.1,0.2,0.3,0.4, for the rule relative "
            "0.005,0.01,0.02,0.05,0.1.",
        ),
    ] = None,
    step_rule: Annotated[
        str,
        typer.Option(help="gradient (a step is a learning rate) or relative (to the norm of each filter)."),
    ] = "gradient",
    num_batches: Annotated[int, typer.Option(help="Use the first so many batches.")] = 10,
) -> None:
    """Measure how loss and gradient change along the gradient.

    For each batch the weights move along the negative gradient, with batch normalisation as it is, with batch
    statistics and folded into the weights. Several checkpoints are measured on the same batches, into one file.
    """
    options = {
        "bn_modes": bn_mode or None,
        "steps": None if steps is None else _read_steps(steps),
        "step_rule": step_rule,
        "num_batches": num_batches,
    }
    analyse_together("smoothness", "smoothness", options, common)


def _read_steps(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ResprobeError(f"steps: expected numbers with commas, got {text!r}; write --steps 0.1,0.2,0.4") from None
