"""Every result stored with the project is shown as it was when `stored_results.txt` was written.

After a change that is meant, or a study measured anew: `python tests/showing/test_stored_results.py`, and read what
is different.
"""

import io
import re
from pathlib import Path

import pytest
import xarray as xr
from rich.console import Console

from resprobe import results
from resprobe.errors import ResprobeError
from resprobe.showing.figures import plot
from resprobe.showing.tables import show

ROOT = Path(__file__).parents[2]
SHOWN = Path(__file__).with_name("stored_results.txt")
STORED = sorted([*(ROOT / "checkpoints").glob("*.nc"), *(ROOT / "notebooks" / "data").glob("*.nc")])
# of many networks together, in the form of their scripts
STUDIES = {"degradation", "factorial", "normalisation"}
RESULTS = [path for path in STORED if path.stem not in STUDIES]


def _table(dataset: xr.Dataset) -> str:
    text = io.StringIO()
    show(dataset, Console(file=text, width=80))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _figure(dataset: xr.Dataset) -> str:
    """Say what is written and how much is drawn in a figure."""
    figure = plot(dataset)
    lines = [f"figure {' '.join(figure.get_suptitle().split())}".rstrip()]
    for axes in figure.axes:
        texts = " | ".join(" ".join(text.split()) for text in (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()))
        drawn = f"{len(axes.lines)} lines, {len(axes.patches)} patches, {len(axes.collections)} collections"
        lines.append(f"axes {texts} | {drawn}")
        lines += [f"legend {text}" for text in axes.get_legend_handles_labels()[1]]
    return "\n".join(lines)


def _shown(path: Path) -> str:
    dataset = results.open(path)
    return f"{_table(dataset)}\n\n{_figure(dataset)}\n"


def _recorded() -> dict[str, str]:
    _, *parts = re.split(r"^=== (.+)\n", SHOWN.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_is_shown_as_before(path):
    assert _shown(path) == _recorded()[path.stem]


def test_every_stored_result_is_recorded():
    assert list(_recorded()) == [path.stem for path in RESULTS]


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_study_of_many_networks_opens(name):
    path = ROOT / "notebooks" / "data" / f"{name}.nc"
    with xr.open_dataset(path) as dataset:
        assert "python analyses/" in dataset.attrs["command"]
    with pytest.raises(ResprobeError, match="expected"):
        results.open(path)


if __name__ == "__main__":
    SHOWN.write_text("".join(f"=== {path.stem}\n{_shown(path)}" for path in RESULTS))
