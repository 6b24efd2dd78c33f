"""The notebooks show what is stored in them, and are stored as `analyses/notebooks.py` writes them."""

import base64
import re
import struct
from pathlib import Path

import nbformat
import pytest

from tests.analyses.conftest import CLIENT_WARNINGS

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FILES = sorted(NOTEBOOKS.glob("*.ipynb"))
NAMES = [path.stem for path in FILES]
MOST_BYTES = 8_000_000
MOST_COLUMNS = 80
PNG_TEXT = (b"tEXt", b"iTXt", b"zTXt", b"tIME")


def read(path):
    return nbformat.read(path, as_version=4)


def outputs(path):
    return [output for cell in read(path).cells if cell.cell_type == "code" for output in cell.outputs]


def shown_text(output):
    return output.get("text", "") + output.get("data", {}).get("text/plain", "")


def chunks(png):
    place = 8
    while place < len(png):
        length, kind = struct.unpack_from(">I4s", png, place)
        yield kind
        place += length + 12


@pytest.mark.filterwarnings(*CLIENT_WARNINGS)
@pytest.mark.parametrize("name", NAMES)
def test_shows_what_is_stored(name, imported, kernel, monkeypatch):
    notebooks = imported("notebooks")
    # figures are counted here, not compared
    monkeypatch.setattr(notebooks, "_plain_png", lambda encoded: encoded)
    path = NOTEBOOKS / f"{name}.ipynb"
    stored, new = read(path), notebooks.executed(path, manager=kernel)
    assert notebooks.differences(stored, new) == []
    assert any("[figure]" in text for _, text in notebooks.texts(stored))


@pytest.mark.parametrize("name", NAMES)
def test_is_stored_as_it_is_written(name, imported):
    notebooks = imported("notebooks")
    path = NOTEBOOKS / f"{name}.ipynb"
    assert path.read_text() == notebooks.as_written(notebooks.tidied(read(path), path))


@pytest.mark.parametrize("path", FILES, ids=NAMES)
class TestReader:
    def test_every_code_cell_was_run(self, path):
        counts = [cell.execution_count for cell in read(path).cells if cell.cell_type == "code"]
        assert counts == list(range(1, len(counts) + 1))

    def test_one_title(self, path):
        titles = re.findall(r"^# .+", "\n".join(c.source for c in read(path).cells if c.cell_type == "markdown"), re.M)
        assert len(titles) == 1

    def test_text_is_plain_and_fits(self, path):
        for output in outputs(path):
            text = shown_text(output)
            assert output.get("name") != "stderr"
            assert "\x1b" not in text
            assert not re.search(r"(^|[\s\"'])/(home|root|tmp|usr|work)/", text)
            assert max(map(len, text.splitlines()), default=0) <= MOST_COLUMNS

    def test_figures_say_nothing_of_when_they_were_drawn(self, path):
        pngs = [base64.b64decode(o.data["image/png"]) for o in outputs(path) if "image/png" in o.get("data", {})]
        assert pngs
        assert not {kind for png in pngs for kind in chunks(png)} & set(PNG_TEXT)


def test_all_are_small():
    assert len(FILES) == 8
    assert sum(path.stat().st_size for path in FILES) < MOST_BYTES


class TestChecking:
    def test_another_number_is_found(self, imported):
        notebooks = imported("notebooks")
        stored, other = read(NOTEBOOKS / "degradation.ipynb"), read(NOTEBOOKS / "degradation.ipynb")
        cell = next(cell for cell in other.cells if "degradation.report" in cell.source)
        cell.outputs[0].text = cell.outputs[0].text.replace("plain-56            1.12", "plain-56            1.13")
        (line,) = notebooks.differences(stored, other)
        assert "stored 'plain-56            1.12" in line
        assert "now 'plain-56            1.13" in line

    def test_a_missing_line_and_a_missing_figure_are_found(self, imported):
        notebooks = imported("notebooks")
        stored, other = read(NOTEBOOKS / "degradation.ipynb"), read(NOTEBOOKS / "degradation.ipynb")
        report = next(cell for cell in other.cells if "degradation.report" in cell.source)
        report.outputs[0].text = "\n".join(report.outputs[0].text.splitlines()[:-1]) + "\n"
        drawn = next(cell for cell in other.cells if "subplots" in cell.source)
        drawn.outputs = []
        assert len(notebooks.differences(stored, other)) == 2

    def test_a_notebook_with_another_output_is_refused(self, imported, monkeypatch, tmp_path):
        notebooks = imported("notebooks")
        monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
        wrong = (NOTEBOOKS / "costs.ipynb").read_text().replace("ResNet-152 takes 59%", "ResNet-152 takes 58%")
        (tmp_path / "costs.ipynb").write_text(wrong)
        monkeypatch.setattr(notebooks, "executed", lambda path: read(NOTEBOOKS / path.name))
        with pytest.raises(notebooks.ResprobeError, match=r"costs, cell costs-5: .*58%.*59%.*run python analyses"):
            notebooks.write_or_check(["costs"], check=True)
        assert (tmp_path / "costs.ipynb").read_text() == wrong

    def test_an_unknown_name(self, imported):
        notebooks = imported("notebooks")
        with pytest.raises(notebooks.ResprobeError, match="expected one of construction, .* got 'lesion'"):
            notebooks.write_or_check(["lesion"], check=True)

    @pytest.mark.filterwarnings(*CLIENT_WARNINGS)
    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("1 / 0", "a cell failed with ZeroDivisionError: division by zero"),
            ("import sys; print('late', file=sys.stderr)", "a cell wrote to stderr: late; mend that"),
        ],
    )
    def test_a_notebook_that_fails_is_one_line(self, imported, kernel, tmp_path, source, message):
        notebooks = imported("notebooks")
        path = tmp_path / "new.ipynb"
        path.write_text(nbformat.writes(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])))
        with pytest.raises(notebooks.ResprobeError) as error:
            notebooks.executed(path, folder=tmp_path, manager=kernel)
        assert str(error.value) == f"new.ipynb: {message}"
