import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from resprobe import results

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"


@pytest.fixture(scope="session")
def quick_lesions(tmp_path_factory):
    """What `python analyses/lesions.py --quick` writes."""
    folder = tmp_path_factory.mktemp("lesions")
    command = [sys.executable, "analyses/lesions.py", "--quick", "--out", folder / "data", "--figures", folder]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


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


@pytest.mark.parametrize("path", sorted((NOTEBOOKS / "data").glob("*.nc")), ids=lambda path: path.stem)
def test_stored_results_are_of_the_stored_checkpoints(path):
    import hashlib

    dataset = results.open(path)
    num_images = {"paths": 100, "race": 1297}.get(dataset.attrs["analysis"], 500)
    assert dataset.attrs["num_images"] == num_images
    if path.stem == "race-perceptron":  # its networks are made and trained by the script alone
        return
    file = ROOT / "checkpoints" / dataset.attrs["checkpoint"]
    assert dataset.attrs["checkpoint_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
