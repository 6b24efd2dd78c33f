import io

import numpy as np
import pytest
import torch
from rich.console import Console

import resprobe
from resprobe.showing.tables import show


@pytest.fixture
def shown(make_net, digits):
    def print_in_80_columns(dataset):
        console = Console(file=io.StringIO(), width=80)
        show(dataset, console)
        return console.file.getvalue().splitlines()

    return print_in_80_columns


def test_lesion(shown, make_net, digits):
    dataset = resprobe.lesion(make_net(), digits)
    dataset = dataset.assign(
        error=("unit", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9, 0.0999]), baseline_error=np.float64(0.1)
    )
    lines = shown(dataset)
    assert lines[1].split() == ["unit", "stage", "error", "change", "95", "%", "interval"]
    assert lines[2].split()[:5] == ["layer1.0", "1", "10.0", "%", "+0.0"]
    assert lines[9].split()[:5] == ["layer3.1", "3", "90.0", "%", "+80.0"]
    # a change that rounds to nothing has no sign of its own
    assert lines[10].split()[4] == "+0.0"
    assert lines[-1] == "baseline 10.0 %, median 40.0 % over 9 deletions, worst 90.0 % (layer3.1)"
    assert all(len(line) <= 80 for line in lines[1:])


def test_unit_that_could_not_be_deleted(shown, make_net, digits):
    dataset = resprobe.lesion(make_net("resnet8"), digits)
    dataset["status"] = ("unit", ["ok", "no way", "ok"])
    dataset["error"] = ("unit", [0.2, np.nan, 0.4])
    lines = shown(dataset)
    assert lines[3].split() == ["layer2.0", "2", "-", "-", "no", "way"]
    assert "median 30.0 % over 2 deletions" in lines[-1]
    dataset["error"] = ("unit", [np.nan] * 3)
    assert shown(dataset)[-1].endswith("no unit could be deleted")


def test_random_experiments(shown, make_net, digits):
    net = make_net()
    curve = shown(resprobe.lesion_curve(net, digits, num_deleted=[1, 3], draws=2))
    assert [line.split()[0] for line in curve[2:4]] == ["1", "3"]
    assert curve[-1].endswith("2 random sets of units per row")
    orders = shown(resprobe.reorder(net, digits, num_swaps=[0], draws=2))
    assert orders[2].split()[:2] == ["0", "1.000"]


def test_paths(shown, make_net, digits):
    lines = shown(resprobe.paths(make_net("resnet8"), digits, estimator="all", repeats=2, samples=2))
    assert lines[3].split()[:3] == ["0", "0", "1"]
    assert lines[6].split()[:3] == ["3", "6", "1"]
    assert all(len(line.split()) == 8 for line in lines[3:7])
    assert lines[-2].startswith("effective length ")
    assert "the sum over all lengths is that gradient to" in lines[-1]
    assert all(len(line) <= 80 for line in lines[1:7])
    long = shown(resprobe.paths(make_net("resnet110", width=1), [(torch.zeros(1, 1, 8, 8), torch.tensor([0]))]))
    assert [line.split()[2] for line in long if line.startswith("      26")] == ["1.88e+15"]


def test_paths_of_a_plain_net(shown, make_net, digits):
    lines = shown(resprobe.paths(make_net("plain8"), digits))
    assert lines[-1] == "a net without shortcuts has one path, through all of its layers"


def test_gradients(shown, make_net, digits):
    lines = shown(resprobe.gradients(make_net("resnet8"), digits, noise=True))
    assert lines[1].split() == ["layer", "stage", "gradient", "norm", "+-", "full", "weight", "norm", "ratio"]
    assert [line.split()[:2] for line in (lines[2], lines[9])] == [["conv1", "1"], ["linear", "3"]]
    assert lines[10].split() == ["unit", "stage", "gradient", "norm", "+-", "gain", "branch", "correlation"]
    assert [line.split()[0] for line in lines[11:14]] == ["layer1.0", "layer2.0", "layer3.0"]
    assert "gain of the 3 units together" in lines[-1]
    assert lines[-1].endswith("BN mode running")
    assert all(len(line) <= 80 for line in lines[1:-1])


def test_gradients_that_are_missing_or_not_finite(shown, make_net, digits):
    dataset = resprobe.gradients(make_net("plain14"), digits)
    dataset["grad_gain"][:2] = 0.5
    dataset["grad_gain"][2:] = np.nan
    dataset["status"] = ("unit", ["ok"] * 11 + ["no way"])
    dataset["num_nonfinite"][1:3] = 4
    dataset["num_nonfinite_batches"][0] = 1
    dataset["num_zero_grad"][0] = 7
    lines = shown(dataset)
    assert lines[-2].split()[-4:] == ["-"] * 4
    assert "gain of the 12 units together 0.25" in lines[-1]
    assert "Units without values: 1 (no way)." in lines[-1]
    assert "Up to 7 images have no gradient left and count in no gain." in lines[-1]
    assert lines[-1].endswith("Not finite: somewhere at 2 units and 1 layers.")


def test_responses(shown, make_net, digits):
    lines = shown(resprobe.responses(make_net("preresnet8"), digits))
    assert lines[1].split() == ["layer", "stage", "mean", "std", "measured", "at"]
    assert lines[3].split()[-1] == "layer1.0.bn2"
    assert len(lines[4].split()) == 4
    assert lines[-1].startswith("7 layers, median std")


def test_long_tables_show_some_rows(shown, make_net, digits):
    lines = shown(resprobe.responses(make_net("resnet44"), digits))
    assert len(lines) == 2 + 30 + 1
    assert lines[31].split()[0] == "layer3.6.conv2"
    assert lines[-1].endswith("30 of 43 rows shown, all are in the file")


def test_smoothness(shown, make_net, digits):
    lines = shown(resprobe.smoothness(make_net("resnet8"), digits, steps=[0.05, 0.1]))
    assert lines[1].split()[:3] == ["BN", "mode", "loss"]
    assert [line.split()[0] for line in lines[2:5]] == ["running", "batch", "folded"]
    assert lines[-2] == "medians over 3 batches of 10 to 25 images; steps 0.05 to 0.1, rule gradient"
    assert all(len(line) <= 80 for line in lines[1:])


def test_curvature(shown):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 3)).double()
    images = torch.tensor([[1.0, 2.0], [0.5, -1.0], [0.0, 1.0]], dtype=torch.float64)
    result = resprobe.curvature(model, [(images, torch.tensor([0, 1, 2]))], num_eigenvalues=2, precision="float64")
    lines = shown(result)
    assert lines[1].split() == ["rank", "eigenvalue", "residual", "converged"]
    assert [line.split()[0] for line in lines[2:5]] == ["1", "2", "lowest"]
    assert lines[2].split()[1] == f"{float(result.eigenvalue[0]):.4g}"
    assert lines[2].split()[3] == "yes"
    assert lines[5].startswith(f"trace {float(result.trace):.4g} (exact) over 9 parameters")
    block = {f"block_{name}": result[name].expand_dims(block=["stem"]) for name in ("eigenvalue", "residual")}
    block |= {f"block_{name}": ("block", [1.0]) for name in ("trace", "trace_sem", "num_params")}
    block["block_converged"] = (("block", "rank"), [[False, True]])
    lines = shown(result.assign(block).assign(eigenvalue=result.eigenvalue * np.nan))
    assert lines[6].split()[3] == "*"
    assert lines[-2:] == ["* not converged", "loss or Hessian is not finite, so that it has no eigenvalues"]


def test_smoothness_of_several(shown, make_net, digits):
    models = {"residual": make_net("resnet8"), "bare": make_net("plain8", norm="none")}
    dataset = resprobe.smoothness(models, digits, steps=[0.05, 0.1], num_batches=1)
    lines = shown(dataset)
    rows = ["residual running", "residual batch", "residual folded", "bare none"]
    assert [" ".join(line.split()[:2]) for line in lines[2:6]] == rows
    assert "medians over 1 batch of 25 images" in lines[6]
    dataset.num_nonfinite[0, 0] = 2
    dataset.effective_beta[0, 0] = np.inf
    lines = shown(dataset)
    assert lines[2].endswith("inf to inf")
    assert lines[-1].startswith("2 losses or gradients along the way are not finite")
    assert all(len(line) <= 80 for line in lines[1:6])


def test_norm_lesion(shown, make_net, digits):
    lines = shown(resprobe.norm_lesion(make_net("resnet8"), digits))
    assert lines[1].split()[:4] == ["layer", "stage", "channels", "error"]
    assert lines[2].split()[:3] == ["bn1", "1", "4"]
    assert "over 7 normalisations, worst" in lines[-1]
    assert all(len(line) <= 80 for line in lines[1:-1])


def test_surface(shown, make_net, digits):
    net = make_net("resnet8")
    dataset = resprobe.surface(net, digits, points=5, draws=2)
    dataset["loss"].values[:] = [[9, 4, 1, 2, 9], [7, 2, 1, 0.5, np.inf]]
    dataset["error"].values[:] = [[0.9, 0.4, 0.1, 0.2, 0.9], [0.7, 0.2, 0.1, 0.1, 1]]
    dataset = dataset.assign(baseline_loss=1.0, baseline_error=0.1, num_nonfinite=1)
    lines = shown(dataset)
    assert lines[1].split() == "distance points loss lowest to highest error lowest to highest".split()
    assert lines[2].split() == "0 2 1 1 to 1 10.0 % 10.0 % to 10.0 %".split()
    assert lines[3].split() == "0.5 4 2 0.5 to 4 20.0 % 10.0 % to 40.0 %".split()
    assert lines[4].split() == "1 4 9 7 to inf 90.0 % 70.0 % to 100.0 %".split()
    assert lines[5:] == [
        "medians over points; 2 random directions; BN mode running",
        "distance: share of each filter's norm",
        "trained weights: loss 1, error 10.0 %; lowest point 0.5 at distance 0.5",
        "1 points have a loss that is not finite",
    ]
    assert all(len(line) <= 80 for line in lines)


def test_surface_in_a_plane(shown, make_net, digits):
    dataset = resprobe.surface(make_net("resnet8"), digits, points=5, dims=2)
    dataset["loss"] = 1 + dataset.direction_x**2 + dataset.direction_y**2
    dataset = dataset.assign(baseline_loss=1.0, baseline_error=np.nan)
    lines = shown(dataset)
    assert [line.split()[:2] for line in lines[2:5]] == [["0", "1"], ["0.5", "8"], ["1", "12"]]
    # the corners at distance 0.71 are as near to 0.5, those at 1.12 to 1
    assert lines[3].split()[2:6] == ["1.38", "1.25", "to", "1.5"]
    assert "1 plane of two random directions" in lines[5]
    assert lines[-1] == "trained weights: loss 1; no point is lower"
    dataset["done"][3:] = False
    assert shown(dataset)[-1] == "unfinished: 15 of 25 points; the same command goes on with them"
