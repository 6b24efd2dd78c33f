import pytest

from resprobe import results


@pytest.fixture(scope="module")
def quick(quick_study):
    folder, _ = quick_study("construction")
    return folder


def test_results_networks_and_figures(quick):
    names = {path.stem for path in (quick / "data").glob("*.nc")}
    assert names == {
        *("comparison-plain26-measured", "comparison-plain26-unit", "comparison-resnet26-measured"),
        *("race-plain26", "race-perceptron"),
    }
    assert {path.name for path in quick.glob("*.png")} == {"race-plain26.png", "race-perceptron.png"}
    assert {path.stem for path in (quick / "work" / "quick-nets").glob("*.pt")} == {
        f"construction-{name}" for name in ("plain26-measured", "plain26-unit", "plain26-random", "plain20-continued")
    }


def test_race_starts_from_one_function(quick):
    before = results.open(quick / "data" / "race-plain26.nc").train_loss.sel(epoch=0)
    # one function in three networks, measured on the same images
    assert before[0] == before[1] == before[3] != before[2]


def test_notebook_of_other_results(quick, run_notebook):
    num_figures, printed = run_notebook("construction", (quick / "data").glob("*.nc"))
    assert num_figures == 3
    assert "plain26 (measured), stored statistics: same to the bit on all" in printed
    assert "plain26, random " in printed
