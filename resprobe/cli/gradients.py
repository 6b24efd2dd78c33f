"""The commands that measure gradients and responses."""

from typing import Annotated, Any

import typer

from resprobe.cli.options import Common
from resprobe.cli.running import analyse, analyse_untrained

# typer exports this subclass alone of click's usage errors
UsageError: Any = typer.BadParameter.__base__


def gradients(
    common: Common,
    bn_mode: Annotated[
        str | None,
        typer.Option(
            help="What batch normalisations use: running (stored statistics) or batch. Default: running; batch for an "
            "untrained net, which has none."
        ),
    ] = None,
    noise: Annotated[bool, typer.Option("--noise", help="Also the correlation of gradients between images.")] = False,
    unit: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this unit; repeatable.")] = None,
    by: Annotated[str | None, typer.Option(help="For nets without shortcuts: layer (default) or block.")] = None,
    init: Annotated[
        str | None,
        typer.Option(help="Without --ckpt, the start of --arch: he (default), xavier, lecun, orthogonal or lsuv."),
    ] = None,
    norm: Annotated[str | None, typer.Option(help="Without --ckpt: batch (default) or none.")] = None,
    width: Annotated[int | None, typer.Option(help="Without --ckpt: channels of the first stage. Default: 16.")] = None,
    seed: Annotated[int | None, typer.Option(help="Without --ckpt: seed of the weights. Default: 0.")] = None,
) -> None:
    """Measure the gradient at each layer and unit.

    Of a checkpoint, or with --arch alone of an untrained net: its norm by the weights of each layer, by the output of
    each unit, how much a unit amplifies it, and how large a unit's branch is beside its shortcut. Batches count: norms
    by the weights are those of the mean loss of a batch.
    """
    start = {"init": init, "norm": norm, "width": width, "seed": seed}
    given = {name: value for name, value in start.items() if value is not None}
    if not common.ckpt and common.arch is None:
        raise UsageError("Missing option '--ckpt', or '--arch' for an untrained net")
    if common.ckpt and given:
        raise UsageError(f"Option '--{next(iter(given))}' is for an untrained net, of '--arch' without '--ckpt'")
    options = {"units": unit or None, "by": by, "noise": noise}
    if common.ckpt:
        analyse("gradients", "gradients", options | {"bn_mode": bn_mode or "running"}, common, batches_count=True)
        return
    default_mode = "running" if norm == "none" else "batch"
    analyse_untrained("gradients", "gradients", options | {"bn_mode": bn_mode or default_mode}, common, given)


def responses(common: Common) -> None:
    """Measure how strong the signal of each convolution is.

    Mean and standard deviation of its output after batch normalisation, before nonlinearity and addition.
    """
    analyse("responses", "responses", {}, common)
