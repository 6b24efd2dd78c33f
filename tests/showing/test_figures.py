import json
import subprocess
import sys

import matplotlib
import matplotlib.colors
import matplotlib.image
import matplotlib.pyplot
import numpy as np
import pytest
import torch
import xarray as xr
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

import resprobe
from resprobe import plots, results
from resprobe.errors import ResprobeError

ANALYSES = sorted(results.SCHEMA)


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def bars(figure: Figure) -> dict[float, float]:
    """The height of the bar at each place."""
    return {
        bar.get_center()[0]: bar.get_height()
        for container in figure.axes[0].containers
        if isinstance(container, BarContainer)
        for bar in container
    }


def intervals(figure: Figure) -> dict[float, tuple[float, float]]:
    """The ends of the error bar at each place."""
    return {
        segment[0, 0]: tuple(segment[:, 1])
        for container in figure.axes[0].containers
        if isinstance(container, ErrorbarContainer)
        for collection in container.lines[2]
        for segment in collection.get_segments()
    }


def horizontal_lines(figure: Figure, axes: int = 0) -> list[float]:
    """Heights of the lines that run over the whole width."""
    lines = figure.axes[axes].lines
    return [line.get_ydata()[0] for line in lines if list(line.get_xdata()) == [0, 1]]


def line_labelled(figure: Figure, label: str, axes: int = 0):
    (line,) = [line for line in figure.axes[axes].lines if line.get_label() == label]
    return line


def hexagon(colour) -> str:
    return matplotlib.colors.to_hex(to_rgb(colour))


def written_in(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def with_classes(result: xr.Dataset, number: object) -> xr.Dataset:
    return result.assign_attrs(facts=json.dumps({"num_classes": {"value": number, "how": "read"}}))


def without_unit(result: xr.Dataset, index: int) -> xr.Dataset:
    """The result of a network of which one unit could not be deleted."""
    hidden = np.arange(result.sizes["unit"]) == index
    result = result.assign({name: result[name].where(~hidden) for name in ("error", "error_low", "error_high", "loss")})
    return result.assign_coords(status=result["status"].where(~hidden, "no bypass"))


class TestLesion:
    def test_bars_and_intervals_are_the_errors(self, make_result):
        result = make_result("lesion", num_units=27)
        figure = plots.lesion(result)
        places = np.arange(1, 28)
        heights, ends = bars(figure), intervals(figure)
        np.testing.assert_allclose([heights[place] for place in places], result["error"])
        np.testing.assert_allclose(
            [ends[place] for place in places], np.stack([result["error_low"], result["error_high"]], 1)
        )

    def test_the_baseline_is_a_line_with_its_value(self, make_result):
        figure = plots.lesion(make_result("lesion"))
        assert horizontal_lines(figure) == [0.064]
        assert "intact network: 6.4%" in legend(figure)

    def test_units_are_named_and_axes_labelled(self, make_result):
        result = make_result("lesion")
        axes = plots.lesion(result).axes[0]
        assert [text.get_text() for text in axes.get_xticklabels()] == list(result["unit"].values)
        assert axes.get_xlabel() == "unit, from input to output"
        assert axes.get_ylabel() == "error with the unit deleted"
        assert axes.yaxis.get_major_formatter()(0.075) == "7.5%"
        low, high = axes.get_ylim()
        assert -0.05 * high < low < 0

    def test_units_that_change_the_shape_are_marked(self, make_result):
        for residual in (True, False):
            figure = plots.lesion(make_result("lesion", residual=residual))
            hatched = {bar.get_center()[0] for bar in figure.axes[0].patches if bar.get_hatch()}
            assert hatched == {4, 7}
            assert {"unit that keeps the shape", "unit that changes the shape"} <= set(legend(figure))

    def test_many_units_are_points(self, make_result):
        result = make_result("lesion", num_units=54)
        figure = plots.lesion(result)
        assert not bars(figure)
        ends = intervals(figure)
        np.testing.assert_allclose([ends[place][0] for place in range(1, 55)], result["error_low"])
        points = {
            x: y for container in figure.axes[0].containers for x, y in zip(*container.lines[0].get_data(), strict=True)
        }
        np.testing.assert_allclose([points[place] for place in range(1, 55)], result["error"])

    def test_stages_are_separated_and_numbered(self, make_result):
        figure = plots.lesion(make_result("lesion"))
        separators = [line.get_xdata()[0] for line in figure.axes[0].lines if list(line.get_ydata()) == [0, 1]]
        assert separators == [3.5, 6.5]
        assert written_in(figure) == ["stage 1", "stage 2", "stage 3"]

    def test_narrow_stages_are_numbered_briefly_and_very_many_not_at_all(self, make_result):
        result = make_result("lesion", num_units=27)
        narrow = result.assign_coords(stage=("unit", np.minimum(np.arange(27) // 2 + 1, 5)))
        assert written_in(plots.lesion(narrow)) == ["1", "2", "3", "4", "5", "stage"]
        assert written_in(plots.lesion(result.assign_coords(stage=("unit", np.arange(1, 28))))) == []
        assert written_in(plots.lesion(result.assign_coords(stage=("unit", np.ones(27, dtype=int))))) == []

    def test_units_that_could_not_be_deleted_are_crosses(self, make_result):
        figure = plots.lesion(without_unit(make_result("lesion"), 3))
        assert set(bars(figure)) == {1, 2, 3, 5, 6, 7, 8, 9}
        assert line_labelled(figure, "unit that could not be deleted").get_xdata().tolist() == [4]

    def test_chance_is_drawn_where_it_is_known(self, make_result):
        result = make_result("lesion")
        assert horizontal_lines(plots.lesion(with_classes(result, 10))) == [0.064, 0.9]
        assert "chance: 90%" in legend(plots.lesion(with_classes(result, 10)))
        assert horizontal_lines(plots.lesion(with_classes(result, None))) == [0.064]
        figure = plots.lesion(with_classes(result, 10), with_classes(result, 100))
        assert 0.9 not in horizontal_lines(figure)

    def test_different_networks_share_relative_depth(self, make_result):
        one = make_result("lesion", num_units=27, checkpoint="resnet56.pt")
        other = make_result("lesion", num_units=55, checkpoint="plain56.pt", residual=False)
        figure = plots.lesion(one, other)
        axes = figure.axes[0]
        assert axes.get_xlabel() == "relative depth of the unit"
        for result, name in ((one, "resnet56"), (other, "plain56")):
            line = line_labelled(figure, f"{name} (intact: 6.4%)")
            number = result.sizes["unit"]
            np.testing.assert_allclose(line.get_xdata(), (np.arange(number) + 0.5) / number)
            np.testing.assert_allclose(line.get_ydata(), result["error"])
        assert {"resnet56 (intact: 6.4%)", "plain56 (intact: 6.4%)"} <= set(legend(figure))
        assert axes.get_title(loc="left") == "Deletion of single units: 2 networks, digits test, 500 images"
        assert written_in(figure) == ["stage 1", "stage 2", "stage 3"]

    def test_networks_with_as_many_units_share_their_places(self, make_result):
        figure = plots.lesion(make_result("lesion"), without_unit(make_result("lesion", checkpoint="plain20.pt"), 0))
        assert figure.axes[0].get_xlabel() == "place of the unit, from input to output"
        assert line_labelled(figure, "resnet20 (intact: 6.4%)").get_xdata().tolist() == list(range(1, 10))
        assert "unit that could not be deleted" in legend(figure)

    def test_networks_divided_differently_get_no_common_stages(self, make_result):
        one = make_result("lesion")
        other = one.assign_coords(stage=("unit", [1] * 7 + [2, 3]))
        assert written_in(plots.lesion(one, other)) == []


class TestLesionCurve:
    def test_median_band_and_draws(self, make_result):
        result = make_result("lesion-curve")
        figure = plots.lesion_curve(result)
        axes = figure.axes[0]
        median = line_labelled(figure, "median of 30 draws")
        assert median.get_xdata().tolist() == [1, 2, 5, 10, 20]
        np.testing.assert_allclose(median.get_ydata(), np.median(result["error"], axis=1))
        corners = axes.collections[0].get_paths()[0].vertices
        for size, low, high in zip([1, 2, 5, 10, 20], *np.quantile(result["error"], [0.05, 0.95], axis=1), strict=True):
            np.testing.assert_allclose(sorted(set(corners[corners[:, 0] == size, 1])), sorted({low, high}))
        (draws,) = [line for line in axes.lines if line.get_marker() == "."]
        np.testing.assert_allclose(draws.get_ydata(), result["error"].values.ravel())
        np.testing.assert_allclose(draws.get_xdata(), np.repeat([1, 2, 5, 10, 20], 30))

    def test_labels(self, make_result):
        figure = plots.lesion_curve(make_result("lesion-curve"))
        assert horizontal_lines(figure) == [0.064]
        assert legend(figure) == ["median of 30 draws", "intact network: 6.4%", "5 to 95 % of the draws"]
        assert figure.axes[0].get_xlabel() == "number of deleted units"
        assert figure.axes[0].get_title(loc="left") == "Deletion of several units: resnet20, digits test, 500 images"

    def test_several_results_have_their_colours(self, make_result):
        figure = plots.lesion_curve(make_result("lesion-curve"), make_result("lesion-curve", checkpoint="plain20.pt"))
        one = line_labelled(figure, "median, resnet20 (intact: 6.4%)").get_color()
        other = line_labelled(figure, "median, plain20 (intact: 6.4%)").get_color()
        assert one != other
        assert horizontal_lines(figure) == [0.064, 0.064]

    def test_the_order_of_dims_is_irrelevant_and_unmeasured_sizes_are_left_out(self, make_result):
        result = make_result("lesion-curve")
        error = result["error"].where(result["num_deleted"] < 20)
        error[0, 0] = np.nan
        figure = plots.lesion_curve(result.assign(error=error.transpose("draw", "num_deleted")))
        median = line_labelled(figure, "median of 30 draws")
        assert median.get_xdata().tolist() == [1, 2, 5, 10]
        np.testing.assert_allclose(median.get_ydata(), np.nanmedian(error[:4], axis=1))


class TestReorder:
    def test_points_medians_and_colours(self, make_result):
        result = make_result("reorder", sizes=(1, 5, 20))
        figure = plots.reorder(result)
        points = figure.axes[0].collections[0]
        np.testing.assert_allclose(points.get_offsets()[:, 0], result["kendall_tau"].values.ravel())
        np.testing.assert_allclose(points.get_offsets()[:, 1], result["error"].values.ravel())
        np.testing.assert_array_equal(points.get_array(), np.repeat([1, 5, 20], 30))
        median = line_labelled(figure, "median of the draws")
        np.testing.assert_allclose(median.get_xdata(), np.median(result["kendall_tau"], axis=1))
        np.testing.assert_allclose(median.get_ydata(), np.median(result["error"], axis=1))

    def test_axes_fall_from_the_original_order(self, make_result):
        result = make_result("reorder")
        figure = plots.reorder(result)
        left, right = figure.axes[0].get_xlim()
        assert 1 < left < 1.1
        assert right < float(result["kendall_tau"].min())
        assert figure.axes[0].get_xlabel() == "Kendall's tau with the original order"
        assert figure.axes[0].get_ylabel() == "error with the units reordered"
        assert figure.axes[1].get_ylabel() == "number of swaps"
        assert horizontal_lines(figure) == [0.064]
        assert legend(figure) == ["median of the draws", "intact network: 6.4%"]

    @pytest.mark.parametrize(("number", "shape"), [(2, (1, 2)), (4, (2, 2)), (5, (2, 3))])
    def test_several_results_lie_side_by_side(self, make_result, number, shape):
        several = [make_result("reorder", checkpoint=f"net{i}.pt", sizes=(1, 2)) for i in range(number)]
        figure = plots.reorder(*several)
        shown = [axes for axes in figure.axes if axes.get_visible() and axes.get_title(loc="left")]
        assert [axes.get_title(loc="left") for axes in shown] == [f"net{i} (intact: 6.4%)" for i in range(number)]
        assert shown[0].get_gridspec().get_geometry() == shape
        assert len({axes.get_xlim() for axes in shown}) == len({axes.get_ylim() for axes in shown}) == 1

    def test_a_single_size_and_missing_draws(self, make_result):
        result = make_result("reorder", sizes=(1, 3), num_draws=2)
        result = result.assign(error=result["error"].where(result["num_swaps"] < 3))
        median = line_labelled(plots.reorder(result), "median of the draws")
        assert len(median.get_xdata()) == 1
        assert plots.reorder(make_result("reorder", sizes=(3,))).axes[0].collections[0].get_clim() == (3, 4)


class TestPaths:
    def test_panels(self, make_result):
        result = make_result("paths")
        shares, single, together = plots.paths(result).axes
        np.testing.assert_allclose(shares.lines[0].get_ydata(), result.path_share)
        assert single.get_yscale() == "log"
        np.testing.assert_allclose(single.lines[0].get_ydata(), result.path_grad_rms)
        np.testing.assert_allclose(together.lines[0].get_ydata(), result.coherent_grad_norm)

    def test_without_single_paths(self, make_result):
        names = ["path_grad_rms", "path_grad_rms_sem", "path_grad_mean", "path_grad_mean_sem"]
        figure = plots.paths(make_result("paths").drop_vars(names))
        assert len(figure.axes) == 2
        assert not any("single path" in text for text in legend(figure))


class TestSmoothness:
    def test_panels(self, make_result):
        result = make_result("smoothness")
        figure = plots.smoothness(result)
        grid = np.reshape(figure.axes, (3, 3))
        assert [axes.get_title(loc="left") for axes in grid[0]] == [
            "BN with stored statistics",
            "BN with batch statistics",
            "BN folded into the weights",
        ]
        for column, mode in enumerate(result.bn_mode.values):
            row = result.sel(bn_mode=mode)
            loss, change, beta = (axes[column].lines[0] for axes in grid)
            np.testing.assert_allclose(loss.get_xdata(), result.step)
            np.testing.assert_allclose(loss.get_ydata(), row.loss.median("batch"))
            np.testing.assert_allclose(change.get_ydata(), row.grad_change.median("batch")[1:])
            np.testing.assert_allclose(beta.get_ydata(), float(row.effective_beta.median()))
            band = grid[0, column].collections[0].get_paths()[0].vertices[:, 1]
            assert band.max() == pytest.approx(float(row.loss.quantile(0.95, "batch").max()))
        assert grid[2, 0].get_yscale() == "log"
        assert [axes.get_xlabel() for axes in grid[2]] == ["step [learning rate]"] * 3
        assert legend(figure) == ["resnet20, median", "5 to 95 % of batches"]

    def test_several_networks_in_one_result(self, make_result):
        one = make_result("smoothness")
        other = one.assign_coords(bn_mode=["none", "batch", "folded"]).isel(bn_mode=[0])
        joined = xr.concat([one, other], xr.Variable("checkpoint", ["residual", "bare"]), join="outer", fill_value=-1)
        figure = plots.smoothness(joined)
        assert legend(figure)[:2] == ["residual, median", "bare, median"]
        assert figure.get_suptitle() == "Smoothness of the loss: 2 networks, digits test, 500 images"
        titles = {axes.get_title(loc="left"): axes for axes in figure.axes[:4]}
        assert hexagon(titles["without BN"].lines[0].get_color()) == "#de8f05"
        assert len(titles["BN with stored statistics"].collections) == 2  # one band, and the legend's

    def test_values_that_are_not_finite_are_gaps(self, make_result):
        result = make_result("smoothness").isel(bn_mode=[1])
        result["loss"] = result["loss"].where(result.step < 0.4, np.inf)
        drawn = plots.smoothness(result).axes[0].lines[0].get_ydata()
        assert np.isfinite(drawn).tolist() == [True] * 4 + [False]
        result["loss"] = result["loss"] * np.nan
        assert not [line for line in plots.smoothness(result).axes[0].lines if len(line.get_xdata())]


class TestNormLesion:
    def test_one_result_has_names(self, make_result):
        result = make_result("norm-lesion")
        axes = plots.norm_lesion(result).axes[0]
        assert [text.get_text() for text in axes.get_xticklabels()] == list(result["layer"].values)
        np.testing.assert_allclose(axes.containers[0].lines[0].get_ydata(), result["error"])
        assert axes.get_title(loc="left").startswith("Batch normalisation replaced (affine): resnet20")

    def test_different_networks_share_relative_depth(self, make_result):
        figure = plots.norm_lesion(*(make_result("norm-lesion", num_units=n, checkpoint=f"n{n}.pt") for n in (5, 9)))
        assert figure.axes[0].get_xlabel() == "relative depth of the layer"
        assert max(figure.axes[0].containers[1].lines[0].get_xdata()) < 1


class TestUnravelled:
    def test_one_line_for_each_path(self):
        graph = resprobe.units.graph(
            resprobe.units.find(resprobe.build(resprobe.parse_architecture("resnet8")), torch.zeros(1, 3, 32, 32))
        )
        (axes,) = plots.unravelled(graph).axes
        assert sum(len(line.get_xdata()) == 2 and line.get_color() == "0.6" for line in axes.lines) == 8
        assert len(axes.patches) == 3 * 4
        assert [text.get_text() for text in axes.texts] == [
            "1 path of 0 branches",
            "3 paths of 1 branch",
            "3 paths of 2 branches",
            "1 path of 3 branches",
        ]

    def test_too_many(self):
        net = resprobe.build(resprobe.parse_architecture("resnet110"))
        graph = resprobe.units.graph(resprobe.units.find(net, torch.zeros(1, 3, 8, 8)))
        with pytest.raises(resprobe.ResprobeError, match="expected a network of at most 64 paths"):
            plots.unravelled(graph)


class TestTraining:
    def test_curves(self, make_result):
        one, other = make_result("training"), make_result("training", checkpoint="plain20.pt", residual=False)
        figure = plots.training(one, other)
        for axes, quantity in zip(figure.axes, ("error", "loss"), strict=True):
            solid = [line for line in axes.lines if line.get_linestyle() == "-" and len(line.get_xdata())]
            dashed = [line for line in axes.lines if line.get_linestyle() == "--" and len(line.get_xdata())]
            for result, train, test in zip((one, other), solid, dashed, strict=True):
                np.testing.assert_allclose(train.get_ydata(), result[f"train_{quantity}"])
                np.testing.assert_allclose(test.get_ydata(), result[f"test_{quantity}"])
                np.testing.assert_allclose(train.get_xdata(), result["epoch"])
                assert train.get_color() == test.get_color()
            assert solid[0].get_color() != solid[1].get_color()

    def test_axes_and_legend(self, make_result):
        figure = plots.training(make_result("training"), make_result("training", checkpoint="plain20.pt"))
        error, loss = figure.axes
        assert (error.get_yscale(), loss.get_yscale()) == ("linear", "log")
        assert (error.get_ylabel(), loss.get_ylabel()) == ("error", "loss [nat]")
        assert error.get_xlabel() == loss.get_xlabel() == "epoch"
        assert legend(figure) == ["resnet20", "plain20", "training images", "test images"]
        assert figure.get_suptitle() == "Training: 2 networks, digits test, 500 images"
        assert legend(plots.training(make_result("training"))) == ["training images", "test images"]


def curves(axes):
    """The lines with more than one point that don't run over the whole width, by label."""
    return {line.get_label(): line for line in axes.lines if len(line.get_xdata()) > 2}


class TestGradients:
    def test_values_places_and_bands(self, make_result):
        result = make_result("gradients")
        figure = plots.gradients(result)
        by_weights, by_output, gain, branch = figure.axes
        names = ("weight_grad_norm", "activation_grad_norm", "grad_gain", "branch_ratio")
        for axes, name in zip((by_weights, by_output, gain, branch), names, strict=True):
            (line,) = curves(axes).values()
            np.testing.assert_allclose(line.get_ydata(), result[name])
            np.testing.assert_allclose(line.get_xdata(), np.arange(1, result[name].size + 1))
        corners = by_weights.collections[0].get_paths()[0].vertices
        assert corners[:, 1].max() == pytest.approx(float((1.2 * result["weight_grad_norm"]).max()))
        assert by_weights.get_yscale() == by_output.get_yscale() == "log"
        assert gain.get_yscale() == "linear"
        assert by_weights.get_ylabel() == "gradient by weights [nat]"
        assert legend(figure) == ["± 2 standard errors over batches"]

    def test_several_networks(self, make_result):
        one, other = make_result("gradients"), make_result("gradients", checkpoint="plain20.pt", residual=False)
        other = other.assign_attrs(facts=json.dumps({"init": {"value": "he", "how": "read"}}))
        figure = plots.gradients(one, other)
        lines = curves(figure.axes[0])
        assert lines["resnet20"].get_linestyle() == "-"
        assert lines["plain20"].get_linestyle() == "--"
        assert list(curves(figure.axes[3])) == ["resnet20"]
        assert figure.axes[1].get_xlabel() == "place of the unit, from input to output"
        deeper = plots.gradients(one, make_result("gradients", num_units=27, checkpoint="resnet56.pt"))
        assert deeper.axes[0].get_xlabel() == "relative depth of the layer"
        np.testing.assert_allclose(curves(deeper.axes[1])["resnet20"].get_xdata(), (np.arange(9) + 0.5) / 9)

    def test_plain_networks_alone(self, make_result):
        figure = plots.gradients(make_result("gradients", residual=False))
        assert [text.get_text() for text in figure.axes[3].texts] == ["no shortcut beside these layers"]

    def test_correlation_has_a_panel_of_its_own(self, make_result):
        result = make_result("gradients")
        correlation = xr.DataArray(np.linspace(-0.01, 0.5, 9), dims="unit")
        figure = plots.gradients(result.assign(grad_correlation=correlation), result)
        assert figure.axes[4].get_ylabel() == "correlation of images"
        (line,) = curves(figure.axes[4]).values()
        np.testing.assert_allclose(line.get_ydata(), correlation)
        assert not figure.axes[5].get_visible()

    def test_values_that_no_logarithm_has_are_left_out(self, make_result):
        result = make_result("gradients")
        norms = result["weight_grad_norm"].copy()
        norms[:3] = [np.inf, np.nan, 0]
        figure = plots.gradients(result.assign(weight_grad_norm=norms))
        (line,) = curves(figure.axes[0]).values()
        assert line.get_xdata().tolist() == list(range(4, 21))
        nothing = result.assign({name: result[name] * np.nan for name in result.data_vars if result[name].dims})
        assert plots.gradients(nothing).get_suptitle().startswith("Gradients")


class TestResponses:
    def test_in_order_and_sorted(self, make_result):
        one, other = make_result("responses"), make_result("responses", checkpoint="plain20.pt", seed=1)
        figure = plots.responses(one, other)
        for result, line, ordered in zip((one, other), figure.axes[0].lines, figure.axes[1].lines, strict=True):
            np.testing.assert_allclose(line.get_ydata(), result["response_std"])
            np.testing.assert_allclose(line.get_xdata(), result["depth"])
            np.testing.assert_allclose(ordered.get_ydata(), sorted(result["response_std"].values, reverse=True))
        assert legend(figure)[0] == f"resnet20 (median {float(one['response_std'].median()):.2f})"
        assert [axes.get_ylim()[0] for axes in figure.axes] == [0, 0]
        assert figure.get_suptitle() == "Responses of convolutions: 2 networks, digits test, 500 images"

    def test_values_that_are_not_finite_are_left_out(self, make_result):
        result = make_result("responses")
        std = result["response_std"].copy()
        std[3] = np.nan
        figure = plots.responses(result.assign(response_std=std))
        assert [len(axes.lines[0].get_xdata()) for axes in figure.axes] == [19, 19]


def plane(result: xr.Dataset) -> xr.Dataset:
    """The same surface in a plane: the first line turned around."""
    x = result["direction_x"].values[::2]
    distance = np.hypot(*np.meshgrid(x, x, indexing="ij"))
    loss = 0.05 * np.exp(4 * distance)
    variables = {
        "loss": loss,
        "error": np.clip(loss / 20, 0, 0.9),
        "num_correct": np.ones(loss.shape, int),
        "done": np.ones(loss.shape, bool),
    }
    turned = xr.Dataset(
        {name: (("direction_x", "direction_y"), values) for name, values in variables.items()}
        | {name: result[name] for name in result.data_vars if not result[name].dims},
        {"direction_x": x, "direction_y": x},
    )
    return results.label(turned, "surface").assign_attrs(result.attrs)


class TestSurface:
    def test_lines_median_and_band(self, make_result):
        result = make_result("surface")
        figure = plots.surface(result)
        for axes, quantity in zip(figure.axes, ("loss", "error"), strict=True):
            *lines, median = [line for line in axes.lines if len(line.get_xdata()) == 21]
            np.testing.assert_allclose([line.get_ydata() for line in lines], result[quantity])
            np.testing.assert_allclose(median.get_ydata(), result[quantity].median("draw"))
            band = axes.collections[0].get_paths()[0].vertices
            assert band[:, 1].max() == pytest.approx(float(result[quantity].max()))
            assert axes.get_xlabel() == "distance: share of each filter's norm"
        assert legend(figure) == ["resnet20, median of 5 directions", "lowest to highest direction"]
        assert figure.axes[0].get_yscale() == "log"
        assert figure.axes[0].get_ylabel() == "loss [nat]"

    def test_eigenvectors(self, make_result):
        result = make_result("surface").isel(draw=slice(2)).rename(draw="rank").assign_coords(rank=[1, 2])
        result = result.assign(eigenvalue=("rank", [31.4, 2.5])).assign_attrs(
            directions="hessian", direction_unit="norm of the change of all weights"
        )
        figure = plots.surface(result)
        assert legend(figure) == ["resnet20, eigenvalue 31.4", "resnet20, eigenvalue 2.5"]
        assert [line.get_linestyle() for line in figure.axes[0].lines[:2]] == ["-", "--"]
        assert figure.axes[0].get_xlabel() == "distance: norm of the change of all weights"

    def test_contours(self, make_result):
        result = plane(make_result("surface"))
        figure = plots.surface(result)
        loss_axes, error_axes = figure.axes[:2]
        filled = loss_axes.collections[0]
        assert filled.norm.vmin == pytest.approx(float(result["loss"].min()))
        assert filled.norm.vmax == pytest.approx(float(result["loss"].max()))
        ratios = filled.levels[1:] / filled.levels[:-1]
        np.testing.assert_allclose(ratios, ratios[0])
        assert filled.get_cmap().name == "viridis"
        np.testing.assert_allclose(np.diff(error_axes.collections[0].levels), np.ptp(result["error"].values) / 16)
        for axes in (loss_axes, error_axes):
            assert axes.get_box_aspect() == 1
            assert axes.get_xlim() == axes.get_ylim() == (-1, 1)
            assert [line.get_xydata().tolist() for line in axes.lines[:2]] == [[[0, 0]]] * 2
        assert [axes.get_ylabel() for axes in figure.axes[2:]] == ["loss [nat]", "error"]
        assert legend(figure) == ["trained weights"]
        assert loss_axes.get_ylabel() == "second direction: share of each filter's norm"

    def test_first_direction_is_horizontal(self, make_result):
        result = plane(make_result("surface"))
        result["loss"] = 1 + result["direction_x"] + 0 * result["direction_y"]
        filled = plots.surface(result).axes[0].collections[0]
        highest = [path.vertices for path in filled.get_paths() if len(path.vertices)][-1]
        assert highest[:, 0].min() > 0.5
        assert (highest[:, 1].min(), highest[:, 1].max()) == (-1, 1)

    def test_what_is_missing_is_said(self, make_result):
        result = plane(make_result("surface"))
        result["loss"][6:] = np.nan
        result["error"][6:] = np.nan
        result["done"][6:] = False
        figure = plots.surface(result, result.assign_attrs(checkpoint="other.pt"))
        assert figure.get_suptitle().endswith("\n(110 points not measured yet)")
        assert legend(figure) == ["trained weights", "not finite or not measured"]
        assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["resnet20", "other"]
        result = make_result("surface")
        result["loss"][0, 0] = np.inf
        figure = plots.surface(result.assign(num_nonfinite=1))
        assert figure.get_suptitle().endswith("\n(1 points not finite)")
        assert np.isnan(figure.axes[0].lines[0].get_ydata()[0])

    def test_nothing_finite_or_flat(self, make_result):
        result = plane(make_result("surface"))
        for value in (np.nan, 0.0, 2.0):
            plots.surface(result.assign(loss=result["loss"] * 0 + value, error=result["error"] * 0 + value))
        lines = make_result("surface")
        plots.surface(lines.assign(loss=lines["loss"] * np.nan, error=lines["error"] * np.nan))

    def test_nothing_overlaps_or_is_cut_off(self, make_result):
        one = plane(make_result("surface"))
        for several in ([one], [one.assign_attrs(checkpoint=f"a-long-checkpoint-name-{i}.pt") for i in range(3)]):
            figure = plots.surface(*several)
            boxes = [axes.get_tightbbox() for axes in figure.axes] + [figure.legends[0].get_window_extent()]
            assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
            assert not any(boxes[-1].overlaps(box) for box in boxes[:-1])

    def test_lines_and_planes_together(self, make_result):
        result = make_result("surface")
        with pytest.raises(ResprobeError, match="expected lines only or planes only, got both"):
            plots.surface(result, plane(result))


class TestNames:
    def test_the_same_checkpoint_is_told_apart_by_its_settings(self, make_result):
        one, other = make_result("lesion", bn_mode="running"), make_result("lesion", bn_mode="batch")
        assert "resnet20, bn_mode running (intact: 6.4%)" in legend(plots.lesion(one, other))
        assert "resnet20, bn_mode batch (intact: 6.4%)" in legend(plots.lesion(one, other))

    def test_the_same_checkpoint_is_told_apart_by_its_data(self, make_result):
        one, other = make_result("training"), make_result("training", data="mnist")
        figure = plots.training(one, other)
        assert legend(figure)[:2] == ["resnet20, digits test, 500 images", "resnet20, mnist test, 500 images"]
        assert figure.get_suptitle() == "Training: 2 networks, various data"

    def test_the_same_result_twice_is_numbered(self, make_result):
        assert legend(plots.training(*[make_result("training")] * 2))[:2] == ["resnet20 (1)", "resnet20 (2)"]

    def test_a_data_file_is_named_without_its_folders(self, make_result):
        result = make_result("training", data="npz:/long/way/to/cifar.npz").assign_attrs(num_images=10000, split="all")
        assert plots.training(result).get_suptitle() == "Training: resnet20, npz:cifar.npz, 10,000 images"

    def test_a_model_from_no_file_on_bare_batches(self, make_result):
        bare = {"checkpoint": "", "architecture": "", "data": "", "split": "", "num_images": ""}
        figure = plots.training(make_result("training").assign_attrs(bare))
        assert figure.get_suptitle() == "Training: network"


class TestCurvature:
    def test_marks_are_the_eigenvalues(self, make_result):
        result = make_result("curvature")
        figure = plots.curvature(result)
        full, empty = figure.axes[0].lines[1:3]
        assert full.get_xdata().tolist() == [12.1, 6.4, -0.5]
        assert empty.get_xdata().tolist() == [2.2]
        assert legend(figure)[1].endswith("(open: not converged)")
        drawn = figure.axes[0].lines[0].get_ydata()
        assert np.nanmax(drawn) == float(result.density.max())
        assert [text.get_text() for text in figure.axes[1].get_xticklabels()] == ["stem", "head"]

    def test_nothing_finite(self, make_result):
        result = make_result("curvature")
        missing = result.assign(eigenvalue=result.eigenvalue * np.nan, density=result.density * np.nan)
        assert np.isnan(plots.curvature(missing).axes[0].lines[0].get_ydata()).all()


class TestAll:
    @pytest.mark.parametrize("analysis", ANALYSES)
    def test_plot_chooses_the_figure_that_fits_and_leaves_everything_else_alone(self, make_result, analysis):
        several = [make_result(analysis, checkpoint=f"a-long-checkpoint-name-{i}.pt") for i in range(3)]
        before, settings = [result.copy(deep=True) for result in several], dict(matplotlib.rcParams)
        figure = plots.plot(*several)
        assert figure.get_suptitle() or figure.axes[0].get_title(loc="left")
        for result, copy in zip(several, before, strict=True):
            xr.testing.assert_identical(result, copy)
        assert dict(matplotlib.rcParams) == settings
        assert matplotlib.pyplot.get_fignums() == []
        whole = figure.bbox
        boxes = [axes.get_tightbbox() for axes in figure.axes] + [figure.legends[0].get_window_extent()]
        assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 for box in boxes)
        assert all(whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes)
        assert not any(boxes[-1].overlaps(box) for box in boxes[:-1])

    @pytest.mark.parametrize("number", [9, 27])
    def test_unit_names_do_not_overlap(self, make_result, number):
        labels = plots.lesion(make_result("lesion", num_units=number)).axes[0].get_xticklabels()
        boxes = [label.get_window_extent() for label in labels]
        assert len(boxes) == number
        assert all(left.x1 <= right.x0 for left, right in zip(boxes, boxes[1:], strict=False))

    def test_the_palette_is_for_the_colour_blind(self, make_result):
        figure = plots.training(*[make_result("training", checkpoint=f"net{i}.pt") for i in range(3)])
        colours = [hexagon(line.get_color()) for line in figure.axes[1].lines[::2]]
        assert colours == ["#0173b2", "#de8f05", "#029e73"]

    def test_unknown_analysis(self, make_result):
        with pytest.raises(ResprobeError, match="expected a result of .*lesion, .*, got analysis 'phrenology'"):
            plots.plot(make_result("lesion").assign_attrs(analysis="phrenology"))
        with pytest.raises(ResprobeError, match="got analysis None"):
            plots.plot(xr.Dataset({"error": 1}))

    def test_mixed_analyses(self, make_result):
        with pytest.raises(ResprobeError, match="expected results of lesion only, got reorder"):
            plots.plot(make_result("lesion"), make_result("reorder"))

    def test_no_result(self):
        with pytest.raises(ResprobeError, match="expected at least one result, got none"):
            plots.plot()
        with pytest.raises(ResprobeError, match="expected at least one training result, got none"):
            plots.training()

    def test_importing_changes_no_settings(self):
        code = (
            "import matplotlib; before = dict(matplotlib.rcParams); import resprobe.plots, sys; "
            "sys.exit(dict(matplotlib.rcParams) != before or 'torch' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestSaving:
    @pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("PDF", b"%PDF"), ("svg", b"<?xml")])
    def test_the_suffix_is_the_format(self, make_result, tmp_path, suffix, magic):
        path = plots.save_figure(plots.plot(make_result("training")), tmp_path / "new" / f"figure.{suffix}")
        assert path.read_bytes().startswith(magic)
        assert [entry.name for entry in path.parent.iterdir()] == [f"figure.{suffix}"]

    def test_resolution(self, make_result, tmp_path):
        figure = plots.lesion(make_result("lesion", num_units=54))
        image = matplotlib.image.imread(plots.save_figure(figure, tmp_path / "figure.png"))
        assert image.shape[:2] == (4.5 * 150, 10 * 150)

    @pytest.mark.parametrize("name", ["figure.doc", "figure"])
    def test_unknown_suffix(self, make_result, tmp_path, name):
        with pytest.raises(
            ResprobeError, match=f"{name}: expected one of the suffixes .*pdf, .*png.*, got (.doc|none)"
        ):
            plots.save_figure(plots.plot(make_result("training")), tmp_path / name)
        assert list(tmp_path.iterdir()) == []

    def test_an_interrupted_write_leaves_what_was_there(self, make_result, tmp_path, monkeypatch):
        figure = plots.plot(make_result("training"))
        path = plots.save_figure(figure, tmp_path / "figure.png")
        before = path.read_bytes()

        def half_written(self, target, **options):
            target.write_bytes(b"half")
            raise KeyboardInterrupt("stopped")

        monkeypatch.setattr(Figure, "savefig", half_written)
        with pytest.raises(KeyboardInterrupt, match="stopped"):
            plots.save_figure(figure, path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_a_folder_that_cannot_be(self, make_result, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(ResprobeError, match="file/figure.png: expected to write a file there, got"):
            plots.save_figure(plots.plot(make_result("training")), tmp_path / "file" / "figure.png")
