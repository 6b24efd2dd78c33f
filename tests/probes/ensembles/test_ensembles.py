import numpy as np
import pytest

from resprobe import plots
from resprobe.errors import ResprobeError
from resprobe.probes.ensembles.ensembles import ANALYSES, chance, ensemble_statements, error_at, exponential_fit
from resprobe.probes.ensembles.table import statements


@pytest.fixture
def studies(make_result):
    """A residual and a plain network of 27 units."""

    def study(residual, name):
        options = {"num_units": 27, "residual": residual, "checkpoint": f"{name}.pt"}
        results = {analysis: make_result(analysis, **options) for analysis in ANALYSES}
        results["paths"]["path_grad_rms"] = 0.5 ** results["paths"]["path_length"]
        return results

    return study(True, "resnet56"), study(False, "plain56")


def test_what_holds_is_decided_by_the_numbers(studies):
    residual, plain = studies
    residual["lesion"]["error"][:] = float(residual["lesion"].baseline_error) + 0.04
    plain["lesion"]["error"][:] = 0.9
    by_text = {row.text: row.holds for row in ensemble_statements(residual, plain)}
    assert by_text["deleting one unit of a residual network hardly matters"]
    assert by_text["deleting any layer of a plain network leaves chance"]
    residual["lesion"]["error"][:14] += 0.02
    plain["lesion"]["error"][:4] = 0.3
    by_text = {row.text: row.holds for row in ensemble_statements(residual, plain)}
    assert not by_text["deleting one unit of a residual network hardly matters"]
    assert not by_text["deleting any layer of a plain network leaves chance"]


def test_order(studies):
    residual, plain = studies
    text = "error rises smoothly as the units leave their order"
    swaps = residual["reorder"]
    swaps["error"][:] = 0.064 + (1 - swaps["kendall_tau"]) * 0.5
    assert {row.text: row.holds for row in ensemble_statements(residual, plain)}[text]
    swaps["error"][:] = 0.9
    assert not {row.text: row.holds for row in ensemble_statements(residual, plain)}[text]


def test_error_between_sizes_lies_on_a_line(make_result):
    curve = make_result("lesion-curve", num_units=10, sizes=(2, 4))
    curve["error"][0], curve["error"][1] = 0.2, 0.6
    assert error_at(curve, 0.3) == pytest.approx(0.4)
    assert error_at(curve, 0.1) == pytest.approx((0.2 + float(curve.baseline_error)) / 2)
    assert np.isnan(error_at(curve, 0.5))


def test_exponential_fit(make_result):
    paths = make_result("paths", num_units=9)
    paths["path_grad_rms"] = 3 * 0.25 ** paths["path_length"]
    slope, fit = exponential_fit(paths)
    assert np.exp(slope) == pytest.approx(0.25)
    assert fit == pytest.approx(1)


def test_chance(make_result):
    result = make_result("lesion")
    assert chance(result) == pytest.approx(0.9)
    assert chance(result.assign_attrs(facts='{"num_classes": {"value": 4}}')) == pytest.approx(0.75)


def test_missing_results_are_named(studies):
    residual, plain = studies
    del plain["paths"]
    with pytest.raises(ResprobeError, match="of the plain net, got no paths"):
        ensemble_statements(residual, plain)


def test_unsampled_paths(studies):
    residual, plain = studies
    residual["paths"] = residual["paths"].drop_vars("path_grad_rms")
    with pytest.raises(ResprobeError, match="expected norms of single paths, got none"):
        ensemble_statements(residual, plain)


def test_figure(studies):
    residual, plain = studies
    figure = plots.ensemble(residual, plain)
    assert len(figure.axes) == 4
    drawn = figure.axes[0].lines[0].get_ydata()
    np.testing.assert_array_equal(drawn, residual["lesion"]["error"])
    assert figure.axes[2].get_xlim()[0] > figure.axes[2].get_xlim()[1]
    whole = figure.bbox
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 for box in boxes)
    assert all(whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes)
    with pytest.raises(ResprobeError, match="expected results of lesion only"):
        plots.ensemble({**residual, "lesion": residual["reorder"]}, plain)


def test_table_says_what_holds(studies):
    rows = ensemble_statements(*studies)
    table = statements(rows, residual="resnet56", plain="plain56")
    assert [column.header for column in table.columns] == [
        "statement",
        "Veit et al.",
        "residual: resnet56",
        "plain: plain56",
        "holds",
    ]
    assert list(table.columns[4].cells) == ["yes" if row.holds else "no" for row in rows]
