"""The notebooks of studies of many networks, whose result is a table in the form of their script."""

from pathlib import Path

import pytest

STORED = Path(__file__).parents[2] / "notebooks" / "data"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("degradation", "plain-56: training loss"),
        ("factorial", "residual, BN, 56 layers: training error 0.0%"),
        ("normalisation", "largest eigenvalue of the Hessian, 56 layers, plain over residual"),
    ],
)
def test_notebook(name, expected, run_notebook):
    num_figures, printed = run_notebook(name, [STORED / f"{name}.nc"])
    assert num_figures > 0
    assert expected in printed
