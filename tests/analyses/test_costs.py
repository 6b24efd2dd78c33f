import subprocess
import sys

from tests.analyses.conftest import ROOT


def test_quick_study(tmp_path):
    """A study as a person runs it, in a process of its own; the others share that of their tests."""
    options = ["--out", tmp_path / "data", "--figures", tmp_path, "--work", tmp_path / "work"]
    command = [sys.executable, "analyses/costs.py", "--quick", *options]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {path.stem for path in (tmp_path / "data").glob("*.nc")} == {"costs"}
    assert {path.stem for path in tmp_path.glob("*.png")} == {"costs"}
    assert "largest differences from the papers" in printed


def test_bad_option(error_of):
    assert "repeats: expected 1 or more, got 0; choose another" in error_of("costs", "--repeats", "0")
