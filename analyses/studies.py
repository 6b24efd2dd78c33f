"""What the studies have in common: options of their command lines, errors of a line, tables, the time left."""

import argparse
import io
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import xarray as xr
from rich.console import Console

from resprobe.engine.devices import pick_device
from resprobe.errors import ResprobeError
from resprobe.showing.tables import show

ROOT = Path(__file__).parents[1]
DATA, FIGURES, QUICK = ROOT / "notebooks" / "data", ROOT / "notebooks" / "figures", ROOT / "results" / "quick"
DEFAULT_DATA = "digits"
Item = TypeVar("Item")


def study_parser(description: str | None) -> argparse.ArgumentParser:
    """Make the parser of a study, with the options of all of them.

    Args:
        description: The script's docstring.

    Returns:
        A parser with `--quick`, `--out`, `--figures`, `--work`, `--overwrite` and `--device`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little of everything, in less than a minute")
    parser.add_argument(
        "--out", type=Path, help="folder of the results; default notebooks/data, with --quick results/quick"
    )
    parser.add_argument(
        "--figures", type=Path, help="folder of the figures; default notebooks/figures, with --quick results/quick"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / "results",
        help="folder that keeps networks and single measurements, of which a joint result is made; default results",
    )
    parser.add_argument("--overwrite", action="store_true", help="compute again what is there")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    return parser


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Let a study run on other data than the digits, with `keep_apart`."""
    parser.add_argument("--data", default=DEFAULT_DATA, help=f"dataset (default: {DEFAULT_DATA})")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data", help="where downloaded datasets are kept")
    parser.add_argument("--download", action="store_true", help="fetch a dataset that is missing")


def parse_study(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line of a study.

    Args:
        parser: From `study_parser`.

    Returns:
        The options, with the folders filled in.
    """
    arguments = parser.parse_args()
    fill_in(arguments)
    return arguments


def keep_apart(arguments: argparse.Namespace) -> None:
    """Give other data than the digits a folder of their own below `--work`, so that they mix with nothing."""
    if arguments.data != DEFAULT_DATA:
        arguments.work /= re.sub(r"[^\w.-]+", "-", arguments.data)
        if not arguments.quick:
            arguments.out, arguments.figures = arguments.out or arguments.work, arguments.figures or arguments.work


def fill_in(arguments: argparse.Namespace) -> None:
    """Find the device, and fill in the folders that were not given; a quick study has its own and replaces nothing."""
    arguments.device = pick_device(arguments.device)
    arguments.out = arguments.out or (QUICK if arguments.quick else DATA)
    arguments.figures = arguments.figures or (QUICK if arguments.quick else FIGURES)


def run_study(main: Callable[[], None]) -> None:
    """Run a study; bad input ends it with one line.

    Args:
        main: The study.
    """
    try:
        main()
    except ResprobeError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: error: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{Path(sys.argv[0]).name}: interrupted; what is finished is kept, the same command goes on")


def wrapped(lines: Sequence[str]) -> str:
    """Put lines under each other; one of more than 80 letters goes on in the next, indented."""
    return "\n".join(textwrap.fill(line, 80, subsequent_indent="  ") if len(line) > 80 else line for line in lines)


def print_tables(*datasets: xr.Dataset) -> None:
    """Print the tables of results for a reader of 80 columns.

    Args:
        datasets: Results of any analyses, as `resprobe.results.open` gives them.
    """
    for dataset in datasets:
        text = io.StringIO()
        show(dataset, Console(file=text, width=80, force_jupyter=False, force_terminal=False))
        print(wrapped([line.rstrip() for line in text.getvalue().strip().splitlines()]), end="\n\n")


def with_time_left(
    items: Sequence[Item], describe: Callable[[Item], str], work: Callable[[Item], float]
) -> Iterator[Item]:
    """Go through the parts of a study, telling on stderr which one it is and about how long the rest takes.

    Args:
        items: The parts.
        describe: Names a part.
        work: How much there is to do in a part, in any unit; 0 for one that is there already.

    Yields:
        The parts.
    """
    total, done, start = sum(map(work, items)), 0.0, time.perf_counter()
    for number, item in enumerate(items, start=1):
        elapsed = time.perf_counter() - start
        left = f", about {elapsed / done * (total - done):.0f} s left" if done else ""
        print(f"{number} of {len(items)}: {describe(item)}{left}", file=sys.stderr, flush=True)
        yield item
        done += work(item)
