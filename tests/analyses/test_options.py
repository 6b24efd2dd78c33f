"""The options that the studies share."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def read(imported, tmp_path):
    """Read the options of a study that trains networks, as its script does."""
    trained_nets = imported("trained_nets")
    parser = trained_nets.parser("A study.")
    return lambda *options: trained_nets.read(parser.parse_args(["--work", str(tmp_path), "--device", "cpu", *options]))


def test_digits_go_to_the_notebooks(read, tmp_path):
    study = read()
    assert study.out == ROOT / "notebooks" / "data"
    assert study.figures == ROOT / "notebooks" / "figures"
    assert study.nets == tmp_path / "nets"
    assert study.seeds == (0, 1, 2)
    assert study.given == ""


def test_other_data_replace_nothing(read, tmp_path):
    study = read("--data", "npz:/somewhere/a b.npz", "--seeds", "2")
    folder = tmp_path / "npz-somewhere-a-b.npz"
    assert (study.nets, study.out, study.figures) == (folder / "nets", folder, folder)
    assert study.nets.is_dir()
    assert study.given == "--data 'npz:/somewhere/a b.npz' --seeds 2"
    assert read("--data", "mnist").nets != study.nets


def test_quick_studies_replace_nothing(read, tmp_path):
    study = read("--quick")
    assert study.out == ROOT / "results" / "quick"
    assert study.nets == tmp_path / "quick-nets"
    assert study.seeds == (0,)
    assert read("--quick", "--data", "mnist").nets == tmp_path / "mnist" / "quick-nets"
