import pytest


@pytest.fixture(scope="module")
def quick(quick_study):
    folder, _ = quick_study("lesions")
    return folder


def test_results_and_figures(quick):
    names = {path.stem for path in (quick / "data").glob("*.nc")}
    assert {"lesion-resnet20", "lesion-plain20", "lesion-curve-resnet20", "reorder-resnet20"} <= names
    assert {path.name for path in quick.glob("*.png")} == {
        *("lesion-resnet20-plain20.png", "lesion-curve.png", "reorder.png"),
    }


@pytest.mark.parametrize("source", ["stored", "quick"])
def test_notebook(source, quick, run_notebook):
    num_figures, printed = run_notebook("lesions", None if source == "stored" else (quick / "data").glob("*.nc"))
    assert num_figures == (5 if source == "stored" else 3)
    assert "resnet20" in printed
    assert "after the median deletion" in printed
