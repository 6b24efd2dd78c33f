"""Writes the measured numbers into README.md, from the results in notebooks/data and the manifest of checkpoints/.

    python analyses/readme.py            after a study has written other results
    python analyses/readme.py --check    only say whether README.md is as the results are

What is written stands between a line `<!-- NAME: python analyses/readme.py -->` and the next `<!-- end -->`.
"""

import argparse
import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import costs
import degradation
import factorial
import normalisation
import xarray as xr
from rich.console import Console
from studies import DATA, ROOT, run_study

import checkpoints
from resprobe import results
from resprobe.errors import ResprobeError
from resprobe.probes.ensembles.ensembles import ANALYSES, ensemble_statements
from resprobe.results.writing import whole_file
from resprobe.showing.tables import show

README = ROOT / "README.md"
MARKED = re.compile(r"(<!-- ([\w-]+): python analyses/readme\.py -->\n).*?(<!-- end -->)", re.DOTALL)
COMPARISONS = ("plain56-measured", "plain56-unit", "resnet56-measured")
PAIRS = {
    "digits, ResNet-56": ("resnet56", "plain56"),
    "CIFAR-10, ResNet-56": ("tomgoldstein-resnet56", "tomgoldstein-plain56"),
}


def shown(*names: str) -> str:
    """Give the tables of results, as they are printed."""
    text = io.StringIO()
    console = Console(file=text, width=80)
    for name in names:
        show(results.open(DATA / f"{name}.nc"), console)
        console.print()
    return text.getvalue().strip()


def code(text: str) -> str:
    """Make a block of code."""
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"```\n{lines}\n```"


def study(report: Callable[[xr.Dataset], str], name: str) -> str:
    """Give the report of a study with a result of its own form."""
    with xr.open_dataset(DATA / f"{name}.nc") as result:
        return code(report(result))


def ensemble() -> str:
    """Put the statements of the ensemble study beside each other, for all pairs of networks."""
    columns = []
    for pair in PAIRS.values():
        residual, plain = (
            {analysis: results.open(DATA / f"{analysis}-{name}.nc") for analysis in ANALYSES} for name in pair
        )
        columns.append(ensemble_statements(residual, plain))
    heads = [cell for name in PAIRS for cell in (name, "its plain twin", "holds")]
    lines = [f"| statement (criterion) | Veit et al. | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for rows in zip(*columns, strict=True):
        cells = [cell for row in rows for cell in (row.residual, row.plain, "yes" if row.holds else "no")]
        lines.append(f"| {rows[0].text} ({rows[0].criterion}) | {rows[0].paper} | {' | '.join(cells)} |")
    return "\n".join(lines)


PARTS: Mapping[str, Callable[[], str]] = {
    "degradation": lambda: study(degradation.report, "degradation"),
    "construction": lambda: code(
        shown(*(f"comparison-{name}" for name in COMPARISONS), "race-plain56", "race-perceptron")
    ),
    "factorial": lambda: study(factorial.report, "factorial"),
    "normalisation": lambda: study(normalisation.report, "normalisation"),
    "ensemble": ensemble,
    "gradient-gain": lambda: code(shown("gradient-gain")),
    "costs": lambda: code("\n".join([shown("costs"), *costs.statements(results.open(DATA / "costs.nc"))])),
    "checkpoints": lambda: checkpoints.table(json.loads((checkpoints.FOLDER / "manifest.json").read_text())),
}


def filled(text: str) -> str:
    """Give the README with the numbers of the results.

    Args:
        text: The README.

    Returns:
        The same text with every marked part written anew.

    Raises:
        ResprobeError: If a part is marked twice, is not marked or is unknown.
    """
    found = [match[1] for match in MARKED.findall(text)]
    if sorted(found) != sorted(PARTS):
        raise ResprobeError(
            f"README.md: expected marks of {', '.join(sorted(PARTS))}, one each, got {', '.join(sorted(found))}; mark "
            "each with '<!-- NAME: python analyses/readme.py -->' and '<!-- end -->'"
        )
    return MARKED.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n\n{match[3]}", text)


def main() -> None:
    """Write the numbers, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where README.md has other numbers")
    parser.add_argument("--readme", type=Path, default=README, help="the file (default: README.md)")
    arguments = parser.parse_args()
    before = arguments.readme.read_text()
    after = filled(before)
    if before == after:
        print(f"{arguments.readme.name} has the numbers of the results")
    elif arguments.check:
        raise ResprobeError(
            f"{arguments.readme.name}: expected the numbers of the results, got others; run python analyses/readme.py"
        )
    else:
        with whole_file(arguments.readme) as temporary:
            temporary.write_text(after)
        print(f"wrote {arguments.readme}")


if __name__ == "__main__":
    run_study(main)
