def test_quick_study(quick_study):
    folder, printed = quick_study("gradient_gain")
    assert {path.stem for path in (folder / "data").glob("*.nc")} == {"gradient-gain"}
    assert {path.stem for path in folder.glob("*.png")} == {"gradient-gain"}
    assert "measured divided by predicted" in printed


def test_bad_option(error_of):
    message = error_of("gradient_gain", "--num-images", "1")
    assert "num images: expected 2 or more, which statistics need, got 1" in message
