"""Degradation: does a deeper network train as well as the shallower one inside it?

    python analyses/degradation.py            about two hours on two CPU cores, 42 networks on digits
    python analyses/degradation.py --seeds 1 --depths 20 56 110  fewer of them
    python analyses/degradation.py --quick    four small networks for two epochs, to see that everything works

Plain and residual networks of 8 to 110 layers, three seeds each, under one recipe (He, Zhang, Ren, Sun 2015, arXiv
1512.03385, section 4.2). A network that is there is not trained again, an interrupted training goes on. The result
holds loss and error by epoch, on training and test images, the gradient that reaches the first block, before and
after training, and the training error of the shallower plain network padded with identity layers to each depth: what
tells degradation from overfitting, from vanishing gradients, from a lack of data and from a lack of capacity.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import seaborn as sns
import study_results
import trained_nets
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from studies import run_study, wrapped
from torch import nn
from trained_nets import Net, Options

import resprobe
from resprobe.networks.construction import units_to_reach
from resprobe.showing.theme import PALETTE, empty_figure, error_axis, settle, themed
from resprobe.training.loop import Split, evaluate

KINDS = ("plain", "resnet")
DEPTHS = (8, 14, 20, 32, 44, 56, 110)
QUICK_DEPTHS = (8, 14)
GRADIENT_IMAGES = 200
COMPARED = (20, 56)
CURVES = ("train_loss", "train_error", "test_loss", "test_error")
REFERENCES = "He, Zhang, Ren, Sun 2015, arXiv 1512.03385, sections 4.1 and 4.2"
PADDED = PALETTE[2]
COLOURS = {"plain": PALETTE[3], "resnet": PALETTE[0]}
NAMES = {"plain": "plain", "resnet": "residual"}


def gradient_ratio(model: nn.Module, net: Net, data: resprobe.ImageData) -> float:
    """Divide the loss's gradient by the first block's output by that of the last, with the statistics of the batch."""
    by = "block" if net.kind == "plain" else None
    norms = resprobe.gradients(model, data, bn_mode="batch", by=by).activation_grad_norm.values
    return float(norms[0] / norms[-1])


def compared(depths: Sequence[int]) -> tuple[int, int]:
    """Choose the two depths that the text compares."""
    return COMPARED if set(COMPARED) <= set(depths) else (depths[0], depths[-1])


def padded(shallow: Net, depth: int, study: Options) -> tuple[float, float]:
    """Give training loss and error of a plain network padded with identity layers; NaN where there is none to add."""
    if depth <= shallow.depth:
        return np.nan, np.nan
    data = trained_nets.images(study, "train")
    network = resprobe.load(shallow.file(study)).model
    num_units = units_to_reach(shallow.architecture(data), f"{shallow.kind}{depth}")
    deep = resprobe.deepen(network, num_units, batches=data).to(study.device)
    return evaluate(deep, Split.from_data(data, study.device))


def measure(study: Options, depths: Sequence[int]) -> xr.Dataset:
    """Train every network, read its log, and measure its gradient before and after training."""
    seeds = study.seeds
    nets = [Net(depth, kind, seed=seed) for kind, depth, seed in itertools.product(KINDS, depths, seeds)]
    trained_nets.train_all(nets, study)
    shape = len(KINDS), len(depths), len(seeds)
    logs = [study_results.training_log(net, study) for net in nets]
    variables = {
        name: study_results.labelled(
            ("kind", "depth", "seed", "epoch"),
            np.stack([log[name].values for log in logs]).reshape(*shape, -1),
            logs[0][name].attrs["long_name"],
            logs[0][name].attrs["units"],
        )
        for name in CURVES
    }
    return xr.Dataset(
        {**variables, **gradient_ratios(nets, shape, study), **paddings(depths, study)},
        {
            "kind": study_results.labelled(["kind"], [NAMES[kind] for kind in KINDS], "kind of network"),
            "depth": study_results.labelled(["depth"], depths, "weight layers"),
            "seed": study_results.labelled(["seed"], seeds, "seed of weights, order and augmentation"),
            "epoch": study_results.labelled(["epoch"], logs[0].epoch, "epoch"),
        },
    )


def gradient_ratios(nets: Sequence[Net], shape: tuple[int, ...], study: Options) -> dict[str, Any]:
    """Measure the gradient of each network as it was built and as it is trained."""
    data = trained_nets.images(study, "train", 30 if study.quick else GRADIENT_IMAGES)
    initial, trained = (np.full(len(nets), np.nan) for _ in range(2))
    for index, net in enumerate(nets):
        architecture = net.architecture(data)
        initial[index] = gradient_ratio(resprobe.build(architecture, seed=net.seed).to(study.device), net, data)
        trained[index] = gradient_ratio(resprobe.load(net.file(study)).model.to(study.device), net, data)
    return {
        name: study_results.labelled(
            ("kind", "depth", "seed"),
            values.reshape(shape),
            f"gradient norm by the first block's output over that by the last block's, {when}",
        )
        for name, values, when in (
            ("initial_gradient_ratio", initial, "before training"),
            ("gradient_ratio", trained, "after training"),
        )
    }


def paddings(depths: Sequence[int], study: Options) -> dict[str, Any]:
    """Measure the shallower of the compared plain networks, padded to each depth."""
    shallow = compared(depths)[0]
    measured = [
        padded(Net(shallow, "plain", seed=seed), depth, study) for depth, seed in itertools.product(depths, study.seeds)
    ]
    return {
        f"padded_train_{name}": study_results.labelled(
            ("depth", "seed"),
            np.array(measured)[:, index].reshape(len(depths), len(study.seeds)),
            f"{what} on training images, plain network of {shallow} layers padded with identity layers",
            units,
        )
        for index, (name, what, units) in enumerate((("loss", "mean cross-entropy", "nat"), ("error", "error", "1")))
    }


def report(result: xr.Dataset) -> str:
    """Write what each depth ends with, then what the numbers show."""
    final = result.isel(epoch=-1)
    heads = ("train loss", "smallest", "largest", "error", "test error", "gradient")
    lines = [f"{'':13}" + "".join(f"{head:>11}" for head in heads)]
    for kind, depth in itertools.product(result.kind.values, result.depth.values):
        row = final.sel(kind=kind, depth=depth)
        loss = row.train_loss
        cells = [f"{float(value):.3g}" for value in (loss.mean(), loss.min(), loss.max())]
        cells += [f"{float(error.mean()):.1%}" for error in (row.train_error, row.test_error)]
        cells.append(f"{float(row.gradient_ratio.median()):.2g}")
        lines.append(f"{f'{kind}-{depth}':13}" + "".join(f"{cell:>11}" for cell in cells))
    lines.append(
        f"after {int(final.epoch)} epochs, means over seeds ({result.sizes['seed']}) and smallest and largest loss; "
        "error: on the training images; gradient: norm at the first block over that at the last, median"
    )
    return wrapped([*lines, *sentences(result)])


def sentences(result: xr.Dataset) -> list[str]:
    """Say what the numbers show of the degradation and of each explanation that is usually given for it."""
    plain, residual = (result.sel(kind=kind) for kind in ("plain", "residual"))
    shallow, deep = compared(result.depth.values)
    said = []
    for name, nets in (("plain", plain), ("residual", residual)):
        loss = nets.train_loss.sel(depth=deep) - nets.train_loss.sel(depth=shallow)
        above = (loss > 0).mean("epoch")
        last = nets.isel(epoch=-1)
        said.append(
            f"{name}-{deep} against {name}-{shallow}, per seed: final training loss "
            f"{listed(last.train_loss.sel(depth=deep), '.3g')} against "
            f"{listed(last.train_loss.sel(depth=shallow), '.3g')}; the deeper one's is above in "
            f"{listed(above, '.0%')} of the epochs."
        )
    last = plain.isel(epoch=-1)
    gap = (last.test_error - last.train_error).mean("seed")
    said.append(
        "Overfitting or lack of data would show as a training error that stays low while the test error grows. "
        f"Plain, test less training error, by depth: {listed(gap, '+.1%')}; training error: "
        f"{listed(last.train_error.mean('seed'), '.1%')}."
    )
    deeper = result.depth > shallow
    said.append(
        f"A lack of capacity would leave no better solution. Plain-{shallow} padded with identity layers to "
        f"{', '.join(map(str, result.depth[deeper].values))} layers: training loss "
        f"{listed(result.padded_train_loss[deeper].mean('seed'), '.2g')}; those trained from random weights: "
        f"{listed(last.train_loss[deeper].mean('seed'), '.2g')}."
    )
    for name, nets in (("Plain", plain), ("Residual", residual)):
        ratios = nets.initial_gradient_ratio.median("seed"), nets.gradient_ratio.median("seed")
        said.append(
            f"{name}, gradient at the first block over that at the last, by depth: "
            f"{listed(ratios[0], '.2g')} before training, {listed(ratios[1], '.2g')} after it "
            "(a vanishing gradient is far below 1)."
        )
    return said


def listed(values: xr.DataArray, form: str) -> str:
    """Write numbers with commas."""
    return ", ".join(format(float(value), form) for value in values)


def draw(result: xr.Dataset) -> Figure:
    """Draw the training loss by epoch, the errors by depth, and the gradient that arrives at the first block."""
    with themed():
        figure = empty_figure(width=10, height=7.5)
        (plain_axes, residual_axes), (error_axes, gradient_axes) = figure.subplots(2, 2)
        residual_axes.sharey(plain_axes)
        for axes, kind in ((plain_axes, "plain"), (residual_axes, "residual")):
            _draw_training(axes, result.train_loss.sel(kind=kind))
            axes.set_title(f"{kind} networks")
        plain_axes.legend(title="layers", ncols=2, fontsize=8)
        _draw_errors(error_axes, result.isel(epoch=-1))
        _draw_gradients(gradient_axes, result)
        figure.suptitle(f"Depth and training, number of seeds: {result.sizes['seed']}", x=0.01, ha="left")
        return settle(figure)


def _draw_training(axes: Axes, loss: xr.DataArray) -> None:
    colours = sns.color_palette("viridis_r", loss.sizes["depth"] + 1)[1:]
    for depth, colour in zip(loss.depth.values, colours, strict=True):
        of_depth = loss.sel(depth=depth)
        axes.plot(loss.epoch, of_depth.median("seed"), color=colour, label=str(depth))
        axes.fill_between(loss.epoch, of_depth.min("seed"), of_depth.max("seed"), color=colour, alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss [nat]")


def _draw_errors(axes: Axes, final: xr.Dataset) -> None:
    for kind, colour in zip(("plain", "residual"), COLOURS.values(), strict=True):
        for name, style in (("train_error", "-"), ("test_error", "--")):
            error = final[name].sel(kind=kind)
            label = f"{kind}, {name.removesuffix('_error').replace('train', 'training')}"
            axes.plot(final.depth, error.median("seed"), style, marker="o", markersize=4, color=colour, label=label)
            axes.vlines(final.depth, error.min("seed"), error.max("seed"), color=colour, linewidth=1)
    padding = final.padded_train_error.median("seed").dropna("depth")
    axes.plot(padding.depth, padding, ":", marker="x", markersize=5, color=PADDED, label="plain, padded: training")
    error_axis(axes, label="error after training")
    _depth_axis(axes, final)


def _draw_gradients(axes: Axes, result: xr.Dataset) -> None:
    for kind, colour in zip(("plain", "residual"), COLOURS.values(), strict=True):
        for name, style, when in (("initial_gradient_ratio", ":", "before"), ("gradient_ratio", "-", "after")):
            ratio = result[name].sel(kind=kind)
            label = f"{kind}, {when} training"
            axes.plot(result.depth, ratio.median("seed"), style, marker="o", markersize=4, color=colour, label=label)
            axes.vlines(result.depth, ratio.min("seed"), ratio.max("seed"), color=colour, linewidth=1)
    axes.set_yscale("log")
    axes.set_ylabel("gradient norm, first over last block")
    _depth_axis(axes, result)


def _depth_axis(axes: Axes, result: xr.Dataset) -> None:
    axes.set_xlabel("weight layers")
    axes.set_xscale("log")
    axes.set_xticks(result.depth.values, [str(depth) for depth in result.depth.values])
    axes.xaxis.minorticks_off()
    axes.legend(fontsize=8)


def main() -> None:
    """Train, measure, print, draw."""
    parser = trained_nets.parser(__doc__)
    parser.add_argument("--depths", type=int, nargs="+", help=f"default: {' '.join(map(str, DEPTHS))}")
    arguments = parser.parse_args()
    study = trained_nets.read(arguments)
    depths = sorted(set(arguments.depths or (QUICK_DEPTHS if study.quick else DEPTHS)))
    result = measure(study, depths)
    print(report(result))
    given = "" if arguments.depths is None else f" --depths {' '.join(map(str, depths))}"
    study_results.save(result, "degradation", study, options=given, references=REFERENCES)
    study_results.save_figure(draw(result), "degradation", study)


if __name__ == "__main__":
    run_study(main)
