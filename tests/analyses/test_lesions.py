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


def test_notebook_of_other_results(quick, run_notebook):
    num_figures, printed = run_notebook("lesions", (quick / "data").glob("*.nc"))
    assert num_figures == 3
    assert "resnet20" in printed
    assert "error intact and after the median deletion" in printed
