def test_quick_study(quick_study):
    folder, printed = quick_study("gradient_gain")
    assert {path.stem for path in (folder / "data").glob("*.nc")} == {"gradient-gain"}
    assert {path.stem for path in folder.glob("*.png")} == {"gradient-gain"}
    assert "measured divided by predicted" in printed


def test_notebook(run_notebook):
    num_figures, printed = run_notebook("gradient_gain")
    assert num_figures > 0
    assert "gradient at the first unit" in printed


def test_bad_option(error_of):
    message = error_of("gradient_gain", "--num-images", "1")
    assert "num images: expected 2 or more, which statistics need, got 1" in message
