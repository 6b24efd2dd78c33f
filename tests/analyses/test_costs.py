def test_quick_study(quick_study):
    folder, printed = quick_study("costs")
    assert {path.stem for path in (folder / "data").glob("*.nc")} == {"costs"}
    assert {path.stem for path in folder.glob("*.png")} == {"costs"}
    assert "largest differences from the papers" in printed


def test_bad_option(error_of):
    assert "repeats: expected 1 or more, got 0; choose another" in error_of("costs", "--repeats", "0")
