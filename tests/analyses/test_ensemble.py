import pytest

from resprobe.probes.ensembles.ensembles import ANALYSES


def test_quick_study(quick_study):
    folder, printed = quick_study("ensemble")
    names = {f"{analysis}-{net}20" for analysis in ANALYSES for net in ("resnet", "plain")}
    assert {path.stem for path in (folder / "data").glob("*.nc")} == names
    assert {path.stem for path in folder.glob("*.png")} == {"ensemble-resnet20-plain20"}
    assert "holds (median error rises by at most 5%)" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--residual", "plain20.pt", "--plain", "resnet20.pt"], "expected a residual network, got plain20"),
        (["--plain", "plain20.pt"], "expected a checkpoint beside --plain, got none; give --residual too"),
    ],
)
def test_bad_options(options, message, error_of):
    assert message in error_of("ensemble", *options)
