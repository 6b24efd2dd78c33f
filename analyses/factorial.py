"""Two by two: how much of the good behaviour is the shortcut's, and how much batch normalisation's?

    python analyses/factorial.py            24 networks on digits: about an hour of training and ten minutes of
                                            measuring on two CPU cores
    python analyses/factorial.py --quick    8 small networks for two epochs, to see that everything works

{plain, residual} x {batch normalisation, none} x depth {20, 56} x 3 seeds, each under the default recipe of its kind
(without normalisation: half the learning rate, and clipped gradients). A network that is there is not trained again;
what was measured of one is kept too. Each quantity is one number per network; main effects and the interaction come
from the balanced design, with intervals from the spread between seeds.
"""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import study_results
import trained_nets
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from scipy import stats
from studies import run_study, wrapped
from trained_nets import Net, Options

import resprobe
from resprobe.showing.theme import PALETTE, empty_figure, settle, themed

KINDS, NORMS, DEPTHS = ("plain", "resnet"), ("none", "batch"), (20, 56)
QUICK_DEPTHS = (8, 14)
NAMES = {"plain": "plain", "resnet": "residual", "none": "no BN", "batch": "BN"}
SHORT = {("plain", "no BN"): "plain", ("plain", "BN"): "plain + BN"}
SHORT |= {("residual", "no BN"): "residual", ("residual", "BN"): "residual + BN"}
INTERACTION = "shortcut x normalisation"
FACTORS = ("shortcut", "normalisation", "depth")
CONFIDENCE = 0.95
PROBE_IMAGES = 500
PATH_IMAGES = 100
EIGENVALUE_IMAGES = 200
QUICK_IMAGES = 12
PASSES = 57  # of each image, for all that is measured of a network, about
REFERENCES = (
    "He et al. 2015, arXiv 1512.03385; Veit et al. 2016, arXiv 1605.06431; Santurkar et al. 2018, arXiv 1805.11604"
)


class Quantity(NamedTuple):
    """One number of a network.

    Attributes:
        long_name: What it is.
        short: The same in a table of 80 columns.
        units: Its units.
        logarithmic: Whether effects are ratios (of positive numbers) and not differences.
    """

    long_name: str
    short: str
    units: str
    logarithmic: bool

    @property
    def is_error(self) -> bool:
        """Whether it is a fraction of images."""
        return "error" in self.long_name


QUANTITIES = {
    "train_loss": Quantity("training loss", "training loss [nat]", "nat", True),
    "train_error": Quantity("training error", "training error", "1", False),
    "test_error": Quantity("test error", "test error", "1", False),
    "gradient_spread": Quantity("spread of weight gradients over layers", "spread of gradients", "decades", False),
    "gradient_gain": Quantity("gradient, first over last block", "gradient, first / last", "1", True),
    "effective_length": Quantity("effective path length / blocks", "path length / blocks", "1", False),
    "lesion": Quantity("median error after a lesion", "error after a lesion", "1", False),
    "beta": Quantity("effective beta, steps along the gradient", "beta, gradient steps", "1", True),
    "beta_relative": Quantity("effective beta, steps relative to filters", "beta, relative steps", "1", True),
    "top_eigenvalue": Quantity("largest eigenvalue of the Hessian", "largest eigenvalue", "nat", True),
}


def measure(net: Net, study: Options) -> dict[str, float]:
    """Measure all quantities of one network; in training's own BN mode where the mode matters."""
    log = study_results.training_log(net, study).isel(epoch=-1)
    model = resprobe.load(net.file(study)).model.to(study.device)
    data, few, fewest = (
        trained_nets.images(study, "train", QUICK_IMAGES if study.quick else count)
        for count in (PROBE_IMAGES, EIGENVALUE_IMAGES, PATH_IMAGES)
    )
    test = trained_nets.images(study, "test", QUICK_IMAGES if study.quick else None)
    # the gradient is the one that training sees: with the statistics of the batch
    mode = "none" if net.norm == "none" else "batch"
    by = "block" if net.kind == "plain" else None
    gradients = resprobe.gradients(model, data, bn_mode="batch" if mode == "batch" else "running", by=by)
    by_unit = gradients.activation_grad_norm.values
    by_layer = gradients.weight_grad_norm.values
    paths = resprobe.paths(model, fewest, by=by)
    lesion = resprobe.lesion(model, test, by=by)
    lines = {
        rule: resprobe.smoothness(model, data, bn_modes=[mode], step_rule=rule) for rule in ("gradient", "relative")
    }
    # a network that stays at chance may have no gradient: NaN then
    with np.errstate(divide="ignore", invalid="ignore"):
        spread, gain = float(np.std(np.log10(by_layer))), float(by_unit[0] / by_unit[-1])
    return {
        **{name: float(log[name]) for name in ("train_loss", "train_error", "test_error")},
        "gradient_spread": spread,
        "gradient_gain": gain,
        "effective_length": float(paths.effective_length_mean) / len(by_unit),
        "lesion": float(lesion.error.median()),
        "beta": float(lines["gradient"].effective_beta.median()),
        "beta_relative": float(lines["relative"].effective_beta.median()),
        "top_eigenvalue": study_results.top_eigenvalue(model, few, mode),
    }


def measure_all(study: Options) -> xr.Dataset:
    """Train and measure every network; what is measured of one is kept, so that an interrupted run goes on."""
    depths, seeds = QUICK_DEPTHS if study.quick else DEPTHS, study.seeds
    nets = [Net(depth, kind, norm, seed) for kind, norm, depth, seed in itertools.product(KINDS, NORMS, depths, seeds)]
    trained_nets.train_all(nets, study)
    by_file = {net.file(study): net for net in nets}
    passes = PASSES * (QUICK_IMAGES if study.quick else PROBE_IMAGES)
    rows = study_results.for_each(
        list(by_file), lambda file: measure(by_file[file], study), "factorial", study, passes=passes
    )
    shape = len(KINDS), len(NORMS), len(depths), len(seeds)
    dims = ("shortcut", "normalisation", "depth", "seed")
    return xr.Dataset(
        {
            name: study_results.labelled(
                dims, np.array([row[name] for row in rows]).reshape(shape), quantity.long_name, quantity.units
            )
            for name, quantity in QUANTITIES.items()
        },
        {
            "shortcut": study_results.labelled(["shortcut"], [NAMES[kind] for kind in KINDS], "kind of network"),
            "normalisation": study_results.labelled(
                ["normalisation"], [NAMES[norm] for norm in NORMS], "normalisation"
            ),
            "depth": study_results.labelled(["depth"], depths, "weight layers"),
            "seed": study_results.labelled(["seed"], seeds, "seed of weights, order and augmentation"),
        },
    )


def effects(values: xr.DataArray, *, logarithmic: bool) -> dict[str, tuple[float, float]]:
    """Estimate effects of a balanced two-level design from the means of its cells.

    A main effect is the mean at a factor's second level less that at its first; the interaction is the effect of the
    shortcut with normalisation less the one without. The variance is the one between seeds, pooled over the cells
    (analysis of variance).

    Args:
        values: `(shortcut, normalisation, depth, seed)`, two levels of each factor; `depth` may be missing.
        logarithmic: Take the decimal logarithm first.

    Returns:
        Estimate and half the width of its 95 % interval, which is NaN with one seed, by name of the effect. Both are
        NaN where a value is not finite.
    """
    array = np.asarray(values, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        array = np.log10(array) if logarithmic else array
    cells = array.mean(-1)
    num_seeds = array.shape[-1]
    freedom = cells.size * (num_seeds - 1)
    variance = array.var(-1, ddof=1).mean() if num_seeds > 1 else np.nan
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) if num_seeds > 1 else np.nan
    by_factor: dict[str, npt.NDArray[np.float64]] = {}
    for axis, factor in enumerate(FACTORS[: cells.ndim]):
        by_factor[factor] = _contrast(cells.ndim, axis) * np.ones(cells.shape) * 2 / cells.size
    interaction = _contrast(cells.ndim, 0) * _contrast(cells.ndim, 1) * np.ones(cells.shape) * 4 / cells.size
    return {
        name: (
            float((weights * cells).sum()),
            float(quantile * np.sqrt((weights**2).sum() * variance / num_seeds)),
        )
        for name, weights in {**by_factor, INTERACTION: interaction}.items()
    }


def _contrast(num_factors: int, axis: int) -> npt.NDArray[np.float64]:
    """Give -1 and 1 along one axis."""
    return np.array([-1.0, 1.0]).reshape([2 if place == axis else 1 for place in range(num_factors)])


def report(result: xr.Dataset) -> str:
    """Write the mean over seeds of every cell, then the effects at one depth alone where the other has no value."""
    lines: list[str] = []
    for depth in result.depth.values:
        lines.append(f"{f'{depth} layers':24}" + "".join(f"{name:>14}" for name in SHORT.values()))
        for name, quantity in QUANTITIES.items():
            means = [result[name].sel(shortcut=a, normalisation=b, depth=depth).mean("seed") for a, b in SHORT]
            lines.append(f"{quantity.short:24}" + "".join(f"{_number(float(mean), quantity):>14}" for mean in means))
        lines.append("")
    found = {name: effects(result[name], logarithmic=q.logarithmic) for name, q in QUANTITIES.items()}
    lines += _table_of_effects("effects", found, [*FACTORS, INTERACTION])
    missing = [name for name in QUANTITIES if not np.isfinite(result[name]).all()]
    for depth in result.depth.values:
        alone = {name: result[name].sel(depth=depth) for name in missing}
        found = {
            name: effects(values, logarithmic=QUANTITIES[name].logarithmic)
            for name, values in alone.items()
            if np.isfinite(values).all()
        }
        if found:
            lines += _table_of_effects(f"at {depth} layers alone", found, [*FACTORS[:2], INTERACTION])
    lines.append(
        f"Cells: means over seeds ({result.sizes['seed']}). Effects with 95 % intervals. x: a ratio; others are "
        "differences, of errors in points. shortcut: residual against plain; normalisation: BN against none; depth: "
        f"{result.depth.values[-1]} against {result.depth.values[0]} layers; {INTERACTION}: the shortcut's effect with "
        "BN against that without. -: no estimate, for a value that is not finite or a single seed."
    )
    return wrapped(lines)


def _table_of_effects(
    title: str, found: Mapping[str, Mapping[str, tuple[float, float]]], names: Sequence[str]
) -> list[str]:
    """Write effects by quantity, two beside each other."""
    lines = []
    for pair in (names[:2], names[2:]):
        lines.append(f"{title:24}" + "".join(f"{name:>28}" for name in pair))
        for name, by_effect in found.items():
            cells = "".join(f"{_effect(*by_effect[key], QUANTITIES[name]):>28}" for key in pair)
            lines.append(f"{QUANTITIES[name].short:24}{cells}")
        lines.append("")
    return lines


def _number(value: float, quantity: Quantity) -> str:
    return f"{value:.1%}" if quantity.is_error else f"{value:.3g}"


def _effect(estimate: float, half: float, quantity: Quantity) -> str:
    if not np.isfinite([estimate, half]).all():
        return "-"
    low, high = estimate - half, estimate + half
    if quantity.logarithmic:
        return f"x{10**estimate:.2g} ({10**low:.2g}, {10**high:.2g})"
    scale, form = (100, "+.1f") if quantity.is_error else (1, "+.2f")
    return f"{scale * estimate:{form}} ({scale * low:{form}}, {scale * high:{form}})"


def draw(result: xr.Dataset) -> Figure:
    """Draw each quantity: the four kinds of network side by side, a point per seed, a colour per depth."""
    cells = list(itertools.product(result.shortcut.values, result.normalisation.values))
    with themed():
        figure = empty_figure(width=11, height=8.5)
        grid = figure.subplots(3, 4).ravel()
        for axes, (name, quantity) in zip(grid, QUANTITIES.items(), strict=False):
            for index, depth in enumerate(result.depth.values):
                values = [result[name].sel(shortcut=a, normalisation=b, depth=depth) for a, b in cells]
                places = np.arange(len(cells)) + (index - 0.5) * 0.25
                for place, value in zip(places, values, strict=True):
                    axes.plot([place] * value.size, value, "o", color=PALETTE[index], markersize=4, alpha=0.7)
                means = [float(value.mean()) for value in values]
                axes.plot(places, means, "_", color=PALETTE[index], markersize=12, label=f"{depth} layers")
            if quantity.logarithmic:
                axes.set_yscale("log")
            axes.set_title("\n".join(textwrap.wrap(quantity.long_name, 26)), fontsize=9)
            axes.set_ylabel("" if quantity.units == "1" else quantity.units)
            if quantity.is_error:
                axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            axes.set_xlim(-0.5, len(cells) - 0.5)
            axes.set_xticks(range(len(cells)), [f"{a}\n{b}" for a, b in cells], fontsize=7)
        for axes in grid[len(QUANTITIES) :]:
            axes.set_axis_off()
        handles, labels = grid[0].get_legend_handles_labels()
        grid[-1].legend(handles, labels, loc="center", title="a point per seed, a dash at the mean")
        figure.suptitle("Shortcut and batch normalisation, two by two", x=0.01, ha="left")
        return settle(figure)


def main() -> None:
    """Train, measure, print, draw."""
    study = trained_nets.read(trained_nets.parser(__doc__).parse_args())
    result = measure_all(study)
    print(report(result))
    study_results.save(result, "factorial", study, references=REFERENCES)
    study_results.save_figure(draw(result), "factorial", study)


if __name__ == "__main__":
    run_study(main)
