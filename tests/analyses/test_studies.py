"""The studies that train networks of their own."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
import xarray as xr

import resprobe
from tests.analyses.conftest import as_for_a_script


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("studies")


def options(folder):
    return ["--quick", *(f"--{what}={folder / what}" for what in ("work", "out", "figures"))]


@pytest.fixture(scope="module")
def run_here(run_script, folder):
    """Run a study beside the networks of the others, and train in this process however slow it is at the moment."""

    def run(name):
        with as_for_a_script() as patch:
            patch.setattr(__import__("trained_nets"), "WORTH_A_WORKER", math.inf)
            return run_script(name, *options(folder))

    return run


@pytest.fixture(scope="module")
def degradation(run_here):
    return run_here("degradation")


@pytest.fixture(scope="module")
def factorial(degradation, run_here):
    """Run the study again, or for the first time, beside the networks of the other one; gives what it printed."""
    return lambda: run_here("factorial")


def test_degradation(degradation, folder):
    assert "4 networks to train" in degradation
    result = xr.open_dataset(folder / "out" / "degradation.nc")
    assert dict(result.train_loss.sizes) == {"kind": 2, "depth": 2, "seed": 1, "epoch": 2}
    assert result.attrs["command"] == "python analyses/degradation.py --quick"
    assert all(variable.attrs.keys() >= {"long_name", "units"} for variable in result.data_vars.values())
    log = xr.open_dataset(folder / "work" / "quick-nets" / "plain14-seed0-training.nc")
    np.testing.assert_array_equal(result.train_loss.sel(kind="plain", depth=14, seed=0), log.train_loss)
    assert "plain-14 against plain-8" in degradation
    assert (folder / "figures" / "degradation.png").stat().st_size > 10_000


def test_factorial(factorial, folder):
    files = {path: path.stat().st_mtime_ns for path in (folder / "work" / "quick-nets").iterdir()}
    printed = factorial()
    # the four with normalisation are those of the other study, which are kept
    assert "4 networks to train" in printed
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert "8 of 8 measured" in printed
    result = xr.open_dataset(folder / "out" / "factorial.nc")
    assert dict(result.beta.sizes) == {"shortcut": 2, "normalisation": 2, "depth": 2, "seed": 1}
    assert all(np.isfinite(variable).all() for variable in result.data_vars.values())
    plain, residual = (result.effective_length.sel(shortcut=kind) for kind in ("plain", "residual"))
    assert (plain == 1).all()
    assert (residual < 1).all()
    assert (folder / "figures" / "factorial.png").stat().st_size > 10_000


def test_factorial_goes_on(factorial, folder, imported, capsys):
    kept = folder / "work" / "quick-nets" / "factorial.json"
    if not kept.exists():
        factorial()
    rows = json.loads(kept.read_text())
    del rows["plain8-seed0"]
    rows["plain14-seed0"]["numbers"]["beta"] = 1234.5
    kept.write_text(json.dumps(rows))
    trained_nets = imported("trained_nets")
    study = trained_nets.read(trained_nets.parser("").parse_args(options(folder)))
    result = imported("factorial").measure_all(study)
    assert "plain8-seed0: 1 of 1 measured" in capsys.readouterr().out
    assert result.beta.sel(shortcut="plain", normalisation="BN", depth=14).item() == 1234.5


def test_a_worker_trains_what_this_process_does(imported, monkeypatch, tmp_path, capsys):
    trained_nets = imported("trained_nets")
    net = trained_nets.Net(8, "resnet")
    trained = []
    for worth in (1e9, 0):
        monkeypatch.setattr(trained_nets, "WORTH_A_WORKER", worth)
        options = ["--quick", "--device", "cpu", "--work", str(tmp_path / str(worth))]
        study = trained_nets.read(trained_nets.parser("").parse_args(options))
        trained_nets.train_all([net], study)
        assert "resnet8-seed0: 1 of 1 trained" in capsys.readouterr().out
        trained.append(resprobe.load(net.file(study)).model.state_dict())
    # the number of threads may be another, which changes the last digits
    torch.testing.assert_close(*trained, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("logarithmic", [False, True])
def test_effects_are_those_of_least_squares(imported, logarithmic):
    factorial = imported("factorial")
    values = np.random.default_rng(0).uniform(1, 9, (2, 2, 2, 3))
    found = factorial.effects(xr.DataArray(values), logarithmic=logarithmic)
    signs = np.array([(*levels, seed) for *levels, seed in itertools.product([-1, 1], [-1, 1], [-1, 1], range(3))])
    a, b, c = signs[:, :3].T
    columns = np.stack([np.ones(24), a, b, c, a * b, a * c, b * c, a * b * c], axis=1)
    response = (np.log10(values) if logarithmic else values).ravel()
    coefficients, residuals, *_ = np.linalg.lstsq(columns, response)
    error = np.sqrt(residuals[0] / 16 / 24)
    quantile = 2.1199  # of Student's t with 16 degrees of freedom, from a table
    # a main effect is twice its coefficient, the difference of two effects four times
    for name, column, factor in (("shortcut", 1, 2), ("normalisation", 2, 2), ("depth", 3, 2)):
        assert found[name] == pytest.approx((factor * coefficients[column], factor * quantile * error), rel=1e-4)
    expected = 4 * coefficients[4], 4 * quantile * error
    assert found["shortcut x normalisation"] == pytest.approx(expected, rel=1e-4)


def test_effects_without_a_spread(imported):
    effects = imported("factorial").effects
    values = xr.DataArray(np.arange(8.0).reshape(2, 2, 2, 1))
    estimate, half = effects(values, logarithmic=False)["shortcut"]
    assert estimate == 4
    assert np.isnan(half)
    values[0, 0, 0, 0] = np.inf
    assert not np.isfinite(effects(values, logarithmic=False)["shortcut"][0])
