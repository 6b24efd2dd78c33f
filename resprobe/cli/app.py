"""The command line: one program with a command for each analysis, and what it says when something fails."""

import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from resprobe.cli.curvature import curvature
from resprobe.cli.deepening import deepen
from resprobe.cli.gradients import gradients, responses
from resprobe.cli.inspecting import inspect
from resprobe.cli.lesions import lesion, lesion_curve, reorder
from resprobe.cli.norm_lesions import norm_lesion
from resprobe.cli.options import with_common_options
from resprobe.cli.paths import paths
from resprobe.cli.plotting import plot
from resprobe.cli.smoothness import smoothness
from resprobe.cli.surfaces import surface
from resprobe.cli.training import train
from resprobe.engine.allocator import keep_freed_memory
from resprobe.errors import ResprobeError

app = typer.Typer(
    name="resprobe",
    help="Lesions, gradient paths and smoothness of plain and residual networks. Each command reads a "
    "checkpoint, measures, prints a table and saves an xarray Dataset (netCDF4).",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_ANALYSES: dict[str, Callable[..., None]] = {
    "lesion": lesion,
    "lesion-curve": lesion_curve,
    "reorder": reorder,
    "paths": paths,
    "gradients": gradients,
    "responses": responses,
    "smoothness": smoothness,
    "curvature": curvature,
    "surface": surface,
    "norm-lesion": norm_lesion,
    "inspect": inspect,
}
_WITHOUT_CHECKPOINT = {"gradients"}
for name, command in _ANALYSES.items():
    app.command(name)(with_common_options(command, needs_ckpt=name not in _WITHOUT_CHECKPOINT))
app.command()(deepen)
app.command()(train)
app.command()(plot)

# typer exports this subclass alone of click's usage errors
UsageError: Any = typer.BadParameter.__base__

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended


def main() -> None:
    """Run the command line; every expected failure is one line on stderr."""
    keep_freed_memory()
    try:
        code = app(standalone_mode=False)
    except ResprobeError as error:
        if "--debug" in sys.argv:
            raise
        _fail(str(error), 1)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            print(error.format_message(), file=sys.stderr)
            sys.exit(2)
        _fail(f"{error.format_message()}; see resprobe --help", 2)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; flushing at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if "--debug" in sys.argv:
            raise
        _fail(f"{error.filename or 'files'}: expected to read and write them, got {error.strerror or error}", 1)
    except RuntimeError as error:
        # PyTorch's own, which is not imported here
        if type(error).__name__ != "OutOfMemoryError" or "--debug" in sys.argv:
            raise
        _fail("memory: expected room for a batch on the device, got none; give a smaller --batch-size", 1)
    # depending on its version, typer turns an interruption into an exception or into this exit code
    if code == INTERRUPTED:
        _fail("interrupted; no file is half-written", INTERRUPTED)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> None:
    print(f"resprobe: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
