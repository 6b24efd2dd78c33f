import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from resprobe import results
from resprobe.ensembles import ANALYSES

ROOT = Path(__file__).parents[1]
REAL = ROOT.parent / "shared" / "real"
NOTEBOOKS = ROOT / "notebooks"


@pytest.fixture(scope="session")
def quick_lesions(tmp_path_factory):
    """What `python analyses/lesions.py --quick` writes."""
    folder = tmp_path_factory.mktemp("lesions")
    command = [sys.executable, "analyses/lesions.py", "--quick", "--out", folder / "data", "--figures", folder]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="session")
def quick_study(tmp_path_factory):
    """Give the folder that `python analyses/NAME.py --quick` has filled, and what it printed."""
    done = {}

    def run_quick(name):
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            options = ["--out", folder / "data", "--figures", folder, "--work", folder / "work"]
            command = [sys.executable, f"analyses/{name}.py", "--quick", *options]
            done[name] = folder, subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        return done[name]

    return run_quick


def run(notebook, folder):
    """Run a notebook in a folder; gives all that it printed."""
    shutil.copy(NOTEBOOKS / notebook, folder)
    content = nbformat.read(folder / notebook, as_version=4)
    NotebookClient(content, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in content.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    return outputs


def test_quick_analysis_writes_results_and_figures(quick_lesions):
    names = {path.stem for path in (quick_lesions / "data").glob("*.nc")}
    assert {"lesion-resnet20", "lesion-plain20", "lesion-curve-resnet20", "reorder-resnet20"} <= names
    assert {path.name for path in quick_lesions.glob("*.png")} == {
        *("lesion-resnet20-plain20.png", "lesion-curve.png", "reorder.png"),
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("source", ["stored", "quick"])
def test_lesions(source, tmp_path, quick_lesions):
    shutil.copytree(NOTEBOOKS / "data" if source == "stored" else quick_lesions / "data", tmp_path / "data")
    outputs = run("lesions.ipynb", tmp_path)
    num_figures = sum("image/png" in output.get("data", {}) for output in outputs)
    assert num_figures == (5 if source == "stored" else 3)
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "resnet20" in printed
    assert "after the median deletion" in printed


@pytest.fixture(scope="session")
def quick_construction(tmp_path_factory):
    """What `python analyses/construction.py --quick` writes."""
    folder = tmp_path_factory.mktemp("construction")
    command = [sys.executable, "analyses/construction.py", "--quick", "--out", folder / "data", "--figures", folder]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


def test_quick_construction_writes_results_networks_and_figures(quick_construction):
    names = {path.stem for path in (quick_construction / "data").glob("*.nc")}
    assert names == {
        *("comparison-plain26-measured", "comparison-plain26-unit", "comparison-resnet26-measured"),
        *("race-plain26", "race-perceptron"),
    }
    assert {path.name for path in quick_construction.glob("*.png")} == {"race-plain26.png", "race-perceptron.png"}
    assert len(list((quick_construction / "data" / "nets").glob("*.pt"))) == 4
    race = results.open(quick_construction / "data" / "race-plain26.nc")
    before = race.train_loss.sel(epoch=0)
    # one function in three networks, measured on the same images
    assert before[0] == before[1] == before[3] != before[2]


STUDIES = {
    "costs": ({"costs"}, {"costs"}, "largest differences from the papers"),
    "gradient_gain": ({"gradient-gain"}, {"gradient-gain"}, "measured divided by predicted"),
    "ensemble": (
        {f"{analysis}-{net}20" for analysis in ANALYSES for net in ("resnet", "plain")},
        {"ensemble-resnet20-plain20"},
        "holds (median error rises by at most 5%)",
    ),
}


@pytest.mark.parametrize("name", STUDIES)
def test_quick_study(name, quick_study):
    expected_results, expected_figures, expected_text = STUDIES[name]
    folder, printed = quick_study(name)
    assert {path.stem for path in (folder / "data").glob("*.nc")} == expected_results
    assert {path.stem for path in folder.glob("*.png")} == expected_figures
    assert expected_text in printed


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("source", ["stored", "quick"])
def test_construction(source, tmp_path, quick_construction):
    shutil.copytree(NOTEBOOKS / "data" if source == "stored" else quick_construction / "data", tmp_path / "data")
    outputs = run("construction.ipynb", tmp_path)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    deeper = "plain56" if source == "stored" else "plain26"
    assert f"{deeper}, measured: the same logits to the bit on " in printed
    assert f"{deeper}, random: training error " in printed


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("name", STUDIES)
def test_study_notebook(name, tmp_path):
    shutil.copytree(NOTEBOOKS / "data", tmp_path / "data")
    outputs = run(f"{name}.ipynb", tmp_path)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    expected = {"costs": "the shortcuts of ResNet-20 add 0 parameters", "gradient_gain": "gradient at the first unit"}
    assert expected.get(name, "deleting one unit of a residual network hardly matters") in printed


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("costs", ["--repeats", "0"], "repeats: expected 1 or more, got 0; choose another"),
        ("gradient_gain", ["--num-images", "1"], "num images: expected 2 or more, which statistics need, got 1"),
        (
            "ensemble",
            ["--residual", "plain20.pt", "--plain", "resnet20.pt"],
            "expected a residual network, got plain20",
        ),
        ("ensemble", ["--plain", "plain20.pt"], "expected a checkpoint beside --plain, got none; give --residual too"),
    ],
)
def test_bad_options_are_one_line(name, options, message, monkeypatch):
    script = ROOT / "analyses" / f"{name}.py"
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", [str(script), "--quick", *options])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(script), run_name="__main__")
    # what Python prints, before it exits with 1
    assert str(exit_.value).startswith(f"{name}.py: error: ")
    assert message in str(exit_.value)
    assert "\n" not in str(exit_.value)


def images_of(dataset):
    """Give the number of images that a stored result is of."""
    if dataset.attrs["analysis"] in ("paths", "race"):
        return {"paths": 100, "race": 1297}[dataset.attrs["analysis"]]
    if dataset.attrs["data"] == "digits":
        return 500
    return 1000 if dataset.attrs["analysis"] == "lesion" else 300


# of many networks together, in the form of their scripts
TABLES = {
    "degradation": "plain-56: training loss",
    "factorial": "residual, BN, 56 layers: training error 0.0%",
    "normalisation": "largest eigenvalue of the Hessian, 56 layers, plain over residual",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("name", TABLES)
def test_notebook_of_a_table(name, tmp_path):
    (tmp_path / "data").mkdir()
    shutil.copy(NOTEBOOKS / "data" / f"{name}.nc", tmp_path / "data")
    outputs = run(f"{name}.ipynb", tmp_path)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert TABLES[name] in printed


@pytest.mark.parametrize(
    "path",
    sorted(path for path in (NOTEBOOKS / "data").glob("*.nc") if path.stem not in TABLES),
    ids=lambda path: path.stem,
)
def test_stored_results_are_of_the_stored_checkpoints(path):
    import hashlib

    dataset = results.open(path)
    if not dataset.attrs["checkpoint"]:
        assert dataset.attrs["analysis"] in ("costs", "gradient-gain", "race")
        return
    file = ROOT / "checkpoints" / dataset.attrs["checkpoint"]
    if dataset.attrs["data"] != "digits":
        file = REAL / file.name
        if not file.exists():
            pytest.skip("the folder shared/real with real checkpoints is not beside the repository")
    assert dataset.attrs["checkpoint_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert dataset.attrs["num_images"] == images_of(dataset)


def test_stored_lesions_of_others_are_those_of_an_independent_count():
    if not REAL.is_dir():
        pytest.skip("the folder shared/real with real checkpoints is not beside the repository")
    expected = json.loads((REAL / "expected-lesions.json").read_text())
    for name in ("tomgoldstein-resnet56", "tomgoldstein-plain56"):
        dataset = results.open(NOTEBOOKS / "data" / f"lesion-{name}.nc")
        counts = {unit: entry["num_correct"] for unit, entry in expected[f"{name}.t7"].items()}
        assert abs(int(dataset.baseline_num_correct) - counts["baseline"]) <= 1
        for unit, count in zip(dataset.unit.values, dataset.num_correct.values, strict=True):
            assert abs(int(count) - counts[unit]) <= 1
