"""Normalisation: how smooth is the loss of plain and residual networks in each mode of batch normalisation?

    python analyses/normalisation.py            the digits networks of checkpoints/, about ten minutes on two CPU cores
    python analyses/normalisation.py --quick    the shallow ones on a few images, to see that everything works

Networks that were trained with batch normalisation are measured as they are (`running`), with the statistics of the
batch (`batch`, what training sees) and with the normalisation absorbed by the weights (`folded`, the same function as
`running`); those trained without it, as they are (`none`). Steps go along the gradient (Santurkar et al. 2018, arXiv
1805.11604) and, so that networks whose weights differ in scale can be compared, relative to each filter. What was
measured of a network is kept.
"""

import itertools
from pathlib import Path

import numpy as np
import study_results
import trained_nets
import xarray as xr
from matplotlib.figure import Figure
from studies import run_study, wrapped
from trained_nets import Net, Options

import resprobe
from resprobe.normalisation.bn_modes import BN_MODES, modes_of
from resprobe.showing.theme import PALETTE, empty_figure, settle, themed

DEPTHS = (20, 56)
KINDS = {"plain": "plain", "resnet": "residual"}
NORMS = ("batch", "none")
NUM_IMAGES, EIGENVALUE_IMAGES, QUICK_IMAGES = 500, 200, 12
PASSES = 100  # of each image, in all modes of a network, about
REFERENCES = "Santurkar, Tsipras, Ilyas, Madry 2018, arXiv 1805.11604, section 3.1"
QUANTITIES = {
    "beta": ("effective beta along the gradient, median over batches", "1"),
    "loss_range": ("range of the loss along the gradient, median over batches", "nat"),
    "beta_relative": ("effective beta, steps relative to each filter, median over batches", "1"),
    "loss_range_relative": ("range of the loss, steps relative to each filter, median over batches", "nat"),
    "top_eigenvalue": ("largest eigenvalue of the Hessian", "nat"),
}


def measure(file: Path, study: Options) -> dict[str, float]:
    """Measure one network in all its modes; the names are quantity and mode."""
    model = resprobe.load(file).model.to(study.device)
    data = trained_nets.images(study, "train", QUICK_IMAGES if study.quick else NUM_IMAGES)
    few = trained_nets.images(study, "train", QUICK_IMAGES if study.quick else EIGENVALUE_IMAGES)
    numbers = {}
    for rule, suffix in (("gradient", ""), ("relative", "_relative")):
        lines = resprobe.smoothness(model, data, step_rule=rule).median("batch")
        for mode in lines.bn_mode.values:
            numbers[f"beta{suffix} {mode}"] = float(lines.effective_beta.sel(bn_mode=mode))
            numbers[f"loss_range{suffix} {mode}"] = float(lines.loss_range.sel(bn_mode=mode))
    for mode in modes_of(model):
        numbers[f"top_eigenvalue {mode}"] = study_results.top_eigenvalue(model, few, mode)
    return numbers


def measure_all(study: Options) -> xr.Dataset:
    """Measure every network; a mode that one can't have is NaN."""
    depths = DEPTHS[:1] if study.quick else DEPTHS
    cells = list(itertools.product(KINDS, depths, NORMS))
    files = trained_nets.stored_or_trained([Net(depth, kind, norm) for kind, depth, norm in cells], study)
    passes = PASSES * (QUICK_IMAGES if study.quick else NUM_IMAGES)
    rows = study_results.for_each(files, lambda file: measure(file, study), "normalisation", study, passes=passes)
    values = {name: np.full((len(KINDS), len(depths), len(BN_MODES)), np.nan) for name in QUANTITIES}
    for (kind, depth, _), row in zip(cells, rows, strict=True):
        for key, number in row.items():
            name, mode = key.split()
            values[name][list(KINDS).index(kind), depths.index(depth), BN_MODES.index(mode)] = number
    dims = ("shortcut", "depth", "bn_mode")
    return xr.Dataset(
        {name: study_results.labelled(dims, values[name], *labels) for name, labels in QUANTITIES.items()},
        {
            "shortcut": study_results.labelled(["shortcut"], list(KINDS.values()), "kind of network"),
            "depth": study_results.labelled(["depth"], depths, "weight layers"),
            "bn_mode": study_results.labelled(["bn_mode"], BN_MODES, "mode of batch normalisation"),
        },
    )


def report(result: xr.Dataset) -> str:
    """Write plain and residual by mode, then their ratios."""
    heads = ("beta", "loss range", "beta, rel.", "range, rel.", "eigenvalue")
    lines = [f"{'network':12}{'BN mode':8}" + "".join(f"{head:>12}" for head in heads)]
    for depth, kind, mode in itertools.product(result.depth.values, result.shortcut.values, result.bn_mode.values):
        row = result.sel(shortcut=kind, depth=depth, bn_mode=mode)
        cells = "".join(f"{float(row[name]):>12.3g}" for name in QUANTITIES)
        lines.append(f"{f'{kind}-{depth}':12}{mode:8}{cells}")
    lines.append(
        "beta: change of the gradient over length of the step, the largest along the line. rel.: steps relative to "
        "each filter. Medians over batches. The modes of one row are of one network; none is another, trained without."
    )
    return wrapped([*lines, *sentences(result)])


def sentences(result: xr.Dataset) -> list[str]:
    """Say where the shortcut makes the loss smoother, and where normalisation does."""
    said = []
    for name, (long_name, _) in QUANTITIES.items():
        what = long_name.removesuffix(", median over batches")
        ratio = result[name].sel(shortcut="plain") / result[name].sel(shortcut="residual")
        by_mode = "; ".join(
            f"{mode} " + ", ".join(f"{float(ratio.sel(depth=depth, bn_mode=mode)):.2g}" for depth in ratio.depth.values)
            for mode in ratio.bn_mode.values
        )
        depths = " and ".join(map(str, ratio.depth.values))
        said.append(f"{what}: plain over residual at {depths} layers, by mode: {by_mode}.")
    return said


def draw(result: xr.Dataset) -> Figure:
    """Draw each quantity by mode: plain and residual side by side, a panel per depth."""
    modes = result.bn_mode.values
    with themed():
        figure = empty_figure(width=11, height=3.2 * result.sizes["depth"] + 0.6)
        names = ("beta", "beta_relative", "top_eigenvalue")
        grid = figure.subplots(result.sizes["depth"], len(names), squeeze=False)
        for row, depth in zip(grid, result.depth.values, strict=True):
            for axes, name in zip(row, names, strict=True):
                for index, kind in enumerate(result.shortcut.values):
                    values = result[name].sel(shortcut=kind, depth=depth)
                    places = np.arange(len(modes)) + (index - 0.5) * 0.2
                    axes.plot(places, values, "os"[index], color=PALETTE[(3, 0)[index]], label=f"{kind}-{depth}")
                axes.set_yscale("log")
                axes.set_xticks(range(len(modes)), modes)
                axes.margins(x=0.15)
                first, *rest = QUANTITIES[name][0].removesuffix(", median over batches").split(", ")
                units = QUANTITIES[name][1]
                axes.set_title("\n".join([first, *rest]) + ("" if units == "1" else f" [{units}]"), fontsize=9)
            row[0].legend(fontsize=8)
        figure.supxlabel("mode of batch normalisation (none: another network, trained without)", fontsize=9)
        figure.suptitle("Smoothness of the loss, with and without shortcuts and normalisation", x=0.01, ha="left")
        return settle(figure)


def main() -> None:
    """Measure, print, draw."""
    study = trained_nets.read(trained_nets.parser(__doc__, seeds=False).parse_args())
    result = measure_all(study)
    print(report(result))
    study_results.save(result, "normalisation", study, references=REFERENCES)
    study_results.save_figure(draw(result), "normalisation", study)


if __name__ == "__main__":
    run_study(main)
