"""The numbers of the studies in README.md are those of the stored results."""

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_stored_readme(run_script):
    assert "README.md has the numbers of the results" in run_script("readme", "--check")


def test_another_number_is_found_and_mended(run_script, tmp_path):
    path = tmp_path / "README.md"
    text = (ROOT / "README.md").read_text()
    wrong = re.sub(r"(\| `plain56.pt` \| )0\.\d+", r"\g<1>0.1234", text)
    assert wrong != text
    path.write_text(wrong)
    with pytest.raises(SystemExit) as stop:
        run_script("readme", "--readme", path, "--check")
    assert str(stop.value) == (
        "readme.py: error: README.md: expected the numbers of the results, got others; run python analyses/readme.py"
    )
    assert path.read_text() == wrong
    run_script("readme", "--readme", path)
    assert path.read_text() == text


def test_a_missing_mark_is_one_line(run_script, tmp_path):
    path = tmp_path / "README.md"
    shutil.copy(ROOT / "README.md", path)
    path.write_text(path.read_text().replace("<!-- costs: ", "<!-- cost: "))
    with pytest.raises(SystemExit) as stop:
        run_script("readme", "--readme", path)
    assert str(stop.value).startswith(
        "readme.py: error: README.md: expected marks of checkpoints, construction, costs,"
    )
    assert "\n" not in str(stop.value)
