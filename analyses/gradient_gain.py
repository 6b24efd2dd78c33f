"""Gradient gain at depth: the backward signal through plain and residual networks before training.

    python analyses/gradient_gain.py            20, 56, 110 and 200 layers, five initialisations, three seeds
    python analyses/gradient_gain.py --quick    8 layers, one seed, to see that everything works

Each network, with and without batch normalisation, sees one batch of digits; `resprobe.gradients` measures the norm of
each image's loss gradient by the output of every unit (a block of two layers in the plain networks) in float64. Beside
it the prediction of random Jacobians, `resprobe.probes.gains.predictions`. Batch normalisation uses the batch's
statistics. The measurement of each network is kept in `--work`, so an interrupted run goes on where it was; the joint
result goes to `--out`, the figure to `--figures`.
"""

import argparse
import functools
import hashlib
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from rich.console import Console
from studies import add_data_options, fill_in, keep_apart, run_study, study_parser, with_time_left

import resprobe
from resprobe import plots, results
from resprobe.cli.options import Common
from resprobe.cli.untrained import Start, open_untrained
from resprobe.errors import ResprobeError
from resprobe.networks.initialisation import INITIALISATIONS
from resprobe.probes.gains.predictions import predicted_gains, relative_gradients
from resprobe.showing.tables import show

DEPTHS, QUICK_DEPTHS = (20, 56, 110, 200), (8,)
FAMILIES, NORMS = ("plain", "resnet"), ("none", "batch")
REFERENCES = "Yang et al. 2019, arXiv 1902.08129; De, Smith 2020, arXiv 2002.10444; He et al. 2015, arXiv 1502.01852"
LSUV_WORK = 0.02  # LSUV runs the network anew for each layer


class Network(NamedTuple):
    """What fixes a network but for its seed."""

    family: str
    norm: str
    init: str
    depth: int

    @property
    def arch(self) -> str:
        """Name of the architecture."""
        return f"{self.family}{self.depth}"

    @property
    def name(self) -> str:
        """Name in the result."""
        return f"{self.arch}-{self.init}{'' if self.norm == 'batch' else '-nonorm'}"

    @property
    def work(self) -> float:
        """About how long it takes, in any unit."""
        return self.depth * (1 + (LSUV_WORK * self.depth if self.init == "lsuv" else 0))


def measure(network: Network, seed: int, arguments: argparse.Namespace) -> xr.Dataset:
    """Measure one network with one seed, or read its result if it is there already."""
    path = path_of(network, seed, arguments)
    if path.exists() and not arguments.overwrite:
        return results.open(path)
    common = Common(
        ckpt=[],
        arch=network.arch,
        data=arguments.data,
        data_dir=arguments.data_dir,
        download=arguments.download,
        num_images=arguments.num_images,
        batch_size=arguments.num_images,
    )
    start = Start(init=network.init, norm=network.norm, seed=seed)
    untrained, data = open_untrained(start, common)
    dataset = resprobe.gradients(
        untrained.model.to(arguments.device),
        data,
        bn_mode="batch",
        by="block" if network.family == "plain" else None,
        precision="float64",
        provenance=untrained.provenance,
    )
    results.save(dataset, path, overwrite=True)
    return dataset


def path_of(network: Network, seed: int, arguments: argparse.Namespace) -> Path:
    """Name the file that keeps the measurement of a network."""
    work: Path = arguments.work
    return work / "gradient-gain" / f"gradients-{network.name}-seed{seed}-{arguments.num_images}.nc"


def open_images(arguments: argparse.Namespace) -> resprobe.ImageData:
    """Open the one batch."""
    return resprobe.open_data(
        arguments.data,
        num_images=arguments.num_images,
        data_dir=arguments.data_dir,
        download=arguments.download,
        batch_size=arguments.num_images,
    )


def join(networks: list[Network], measured: list[list[xr.Dataset]], arguments: argparse.Namespace) -> xr.Dataset:
    """Put the measurements into one result, beside the predictions."""
    first = measured[0][0]
    most = max(datasets[0].sizes["unit"] for datasets in measured)
    coords = {
        "checkpoint": [network.name for network in networks],
        **{name: ("checkpoint", [getattr(n, name) for n in networks]) for name in ("family", "norm", "init")},
        "num_layers": ("checkpoint", [network.depth for network in networks]),
        "num_units": ("checkpoint", [datasets[0].sizes["unit"] for datasets in measured]),
        "draw": np.arange(arguments.seeds),
        "place": np.arange(1, most + 1),
    }
    variables = {
        "relative_grad_norm": (("checkpoint", "draw", "place"), relative_norms(measured, arguments.seeds, most)),
        "predicted_grad_norm": (("checkpoint", "place"), predictions(networks, arguments, most)),
    }
    joined = results.label(xr.Dataset(variables, coords), "gradient-gain")
    hashes = [dataset.attrs["checkpoint_sha256"] for datasets in measured for dataset in datasets]
    joined.attrs = results.make_attrs(
        "gradient-gain",
        title="Gradient gain at depth",
        references=REFERENCES,
        options={"seeds": arguments.seeds, "batch_size": arguments.num_images, "precision": "float64"},
        model={
            "architecture": f"{len(networks)} untrained networks",
            "checkpoint_sha256": hashlib.sha256("".join(hashes).encode()).hexdigest(),
        },
        data={key: first.attrs[key] for key in ("data", "data_sha256", "split", "num_images", "normalisation")},
        device=first.attrs["device"],
    )
    joined.attrs["bn_mode"] = "batch"
    return joined


def relative_norms(measured: list[list[xr.Dataset]], draws: int, places: int) -> np.ndarray:
    """Divide each unit's gradient norm by that of the last, NaN behind it: (network, draw, place)."""
    norms = np.full((len(measured), draws, places), np.nan)
    for row, datasets in enumerate(measured):
        for draw, dataset in enumerate(datasets):
            values = dataset["activation_grad_norm"].values
            norms[row, draw, : len(values)] = values / values[-1]
    return norms


def predictions(networks: list[Network], arguments: argparse.Namespace, places: int) -> np.ndarray:
    """Predict the same from random Jacobians: (network, place)."""
    channels, _, side = open_images(arguments).image_shape
    predicted = np.full((len(networks), places), np.nan)
    for row, network in enumerate(networks):
        architecture = resprobe.parse_architecture(network.arch, in_channels=channels, norm=network.norm)
        gains = predicted_gains(architecture, network.init, side)
        predicted[row, : len(gains)] = relative_gradients(gains)
    return predicted


def parse_arguments() -> argparse.Namespace:
    """Read the command line and refuse what can't be measured."""
    parser = study_parser(__doc__)
    parser.add_argument("--seeds", type=int, help="seeds of each network; default 3, with --quick 1")
    parser.add_argument("--num-images", type=int, help="images in the one batch; default 100, with --quick 20")
    add_data_options(parser)
    arguments = parser.parse_args()
    keep_apart(arguments)
    fill_in(arguments)
    arguments.seeds = arguments.seeds if arguments.seeds is not None else 1 if arguments.quick else 3
    if arguments.num_images is None:
        arguments.num_images = 20 if arguments.quick else 100
    if arguments.seeds < 1:
        raise ResprobeError(f"seeds: expected 1 or more, got {arguments.seeds}; choose another")
    if arguments.num_images < 2:
        raise ResprobeError(
            f"num images: expected 2 or more, which statistics need, got {arguments.num_images}; choose another"
        )
    return arguments


def main() -> None:
    """Measure every network, print the table, draw."""
    arguments = parse_arguments()
    depths = QUICK_DEPTHS if arguments.quick else DEPTHS
    networks = [
        Network(family, norm, init, depth)
        for depth in depths
        for family in FAMILIES
        for norm in NORMS
        for init in INITIALISATIONS
    ]
    runs = [(network, seed) for network in networks for seed in range(arguments.seeds)]
    work = functools.partial(work_left, arguments=arguments)
    minutes = sum(map(work, runs)) * seconds_per_layer(arguments) / 60
    missing = sum(work(run) > 0 for run in runs)
    print(f"{missing} of {len(runs)} networks to measure, about {minutes:.1f} minutes", flush=True)
    found: dict[Network, list[xr.Dataset]] = {network: [] for network in networks}
    for network, seed in with_time_left(runs, lambda run: f"{run[0].name}, seed {run[1]}", work):
        found[network].append(measure(network, seed, arguments))
    joined = join(networks, list(found.values()), arguments)
    results.save(joined, arguments.out / "gradient-gain.nc", overwrite=True)
    plots.save_figure(plots.plot(joined), arguments.figures / "gradient-gain.png")
    show(joined, Console(width=max(Console().width, 80)))


def work_left(run: tuple[Network, int], arguments: argparse.Namespace) -> float:
    """Give what there is to do for a network: nothing where its result is there."""
    network, seed = run
    there = path_of(network, seed, arguments).exists() and not arguments.overwrite
    return 0.0 if there else network.work


def seconds_per_layer(arguments: argparse.Namespace) -> float:
    """Take the time of a network of 8 layers, after one that only warms up."""
    data = open_images(arguments)
    architecture = resprobe.parse_architecture("plain8", in_channels=data.image_shape[0], norm="none")
    net = resprobe.build(architecture, seed=0).eval().to(arguments.device)
    for _ in range(2):
        start = time.perf_counter()
        resprobe.gradients(net, data, precision="float64", by="block")
        took = time.perf_counter() - start
    return took / 8


if __name__ == "__main__":
    run_study(main)
