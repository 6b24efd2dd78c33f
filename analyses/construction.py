"""The construction argument, carried out: can a deeper network learn to be no worse than the shallower one inside it?

    python analyses/construction.py            the digits networks of checkpoints/, about half an hour of one CPU core
    python analyses/construction.py --quick    a few layers, images and epochs, to see that everything works

He, Zhang, Ren and Sun (2015, arXiv 1512.03385, section 1): a deeper network has a solution that is no worse than that
of the shallower one, since the added layers may be the identity, so that its higher training error is a matter of
optimisation. Here that solution is built and checked (a plain-20 becomes a plain-56, a ResNet-20 a ResNet-56). Then the
race: the padded plain-56 is trained on, with new normalisations that store the statistics of what comes in or those
of nothing (`deepen`), against the same network from random weights and against the plain-20 itself, all for the same
epochs. At last the toy: a perceptron of 6 layers padded with 42 identity layers, against 48 layers from random weights.

Results go to `--out` as netCDF files, figures to `--figures`, networks to `--nets`. What is there already is kept, and
a training that was interrupted goes on. PyTorch's sums depend on the number of threads: OMP_NUM_THREADS=1 repeats a
training to the bit.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import xarray as xr
from rich.console import Console

import resprobe
from resprobe import plots, results, tables
from resprobe.networks import Architecture, ResidualNetwork
from resprobe.networks.construction import units_to_reach
from resprobe.networks.perceptrons import build_perceptron, deepen_perceptron
from resprobe.progress import progress_bar
from resprobe.training import Recipe, default_recipe, train
from resprobe.training.loop import Split
from resprobe.training.races import Racer, before_training, race_dataset, run_racer
from resprobe.training.resuming import hash_tensors

ROOT = Path(__file__).parents[1]
REFERENCES = "He, Zhang, Ren, Sun 2015, arXiv 1512.03385, section 1"
QUICK = {"epochs": 2, "train": 160, "test": 60}
TOY_LAYERS, TOY_PADDING, SEED = 6, 42, 0
CPU = torch.device("cpu")


def open_split(split: str, arguments: argparse.Namespace) -> resprobe.ImageData:
    """Open the training or test images."""
    return resprobe.open_data(arguments.data, split=split, num_images=QUICK[split] if arguments.quick else None)


def load(name: str) -> resprobe.Checkpoint:
    """Open one of our networks."""
    return resprobe.load(ROOT / "checkpoints" / f"{name}.pt")


def compare(name: str, deeper: str, statistics: str, arguments: argparse.Namespace) -> ResidualNetwork:
    """Deepen a network, compare the logits on test images, and save and print what came out."""
    checkpoint = load(name)
    assert isinstance(checkpoint.architecture, Architecture)
    num_units = units_to_reach(checkpoint.architecture, deeper)
    training_images, test_images = open_split("train", arguments), open_split("test", arguments)
    deep = resprobe.deepen(checkpoint.model, num_units, batches=training_images, statistics=statistics, seed=SEED)
    settings = {
        "deepened": deeper,
        "deepened_sha256": hash_tensors(deep.state_dict()),
        "num_units": num_units,
        "statistics": statistics,
        "seed": SEED,
    }
    dataset, _ = results.find_or_compute(
        arguments.out / f"comparison-{deeper}-{statistics}.nc",
        "comparison",
        lambda: resprobe.compare_logits(
            checkpoint.model, deep, test_images, provenance=checkpoint.provenance, settings=settings
        ),
        options={"batch_size": min(test_images.batch_size, test_images.num_images), **settings},
        model=checkpoint.provenance,
        data=test_images.provenance,
        overwrite=arguments.overwrite,
    )
    tables.show(dataset, Console())
    return deep


def race(padded: dict[str, ResidualNetwork], shallow: str, arguments: argparse.Namespace) -> xr.Dataset:
    """Train the padded networks on, one from random weights, and the shallow one, for the same epochs."""
    checkpoint = load(shallow)
    architecture = next(iter(padded.values())).architecture
    overrides = {"epochs": arguments.epochs, "seed": SEED}
    recipe = default_recipe(architecture, arguments.data, **overrides)
    deeper = architecture.name
    racers: dict[str, tuple[Path, torch.nn.Module]] = {
        f"{deeper}, {statistics}": (net_path(f"{deeper}-{statistics}", arguments), network)
        for statistics, network in padded.items()
    }
    random = resprobe.build(architecture, seed=SEED)
    racers[f"{deeper}, random"] = (random_path(deeper, arguments), random)
    racers[f"{shallow}, trained on"] = (net_path(f"{shallow}-continued", arguments), checkpoint.model)
    starts = {name: hash_tensors(network.state_dict()) for name, (_, network) in racers.items()}
    training_images, test_images = open_split("train", arguments), open_split("test", arguments)
    options = {**recipe.as_dict(), "starts": starts}

    def run() -> xr.Dataset:
        waiting = [network for path, network in racers.values() if not path.exists()]
        announce(waiting, training_images, recipe)
        splits = [Split.from_data(data, CPU) for data in (training_images, test_images)]
        runs = {}
        for name, (path, network) in racers.items():
            assert isinstance(network, ResidualNetwork)
            with progress_bar(name, "batches", quiet=False) as update:
                log = train(
                    network.architecture,
                    training_images,
                    test_images,
                    recipe=recipe,
                    out=path,
                    start=None if network is random else network.state_dict(),
                    progress=update,
                )
            before = before_training(network, *splits, recipe=recipe)
            runs[name] = Racer(network.architecture.depth, before, {str(key): log[key].values for key in log.data_vars})
        return race_dataset(
            runs,
            title=f"Race of {deeper}",
            references=REFERENCES,
            options=options,
            data=training_images,
            provenance=checkpoint.provenance,
        )

    return find_race(f"race-{deeper}", run, options, checkpoint.provenance, arguments)


def toy(arguments: argparse.Namespace) -> xr.Dataset:
    """Train 6 linear layers; then those with identity layers added, against as many layers from random weights."""
    training_images, test_images = open_split("train", arguments), open_split("test", arguments)
    # no normalisation: the recipe for networks without
    bare = resprobe.parse_architecture("plain8", in_channels=training_images.image_shape[0], norm="none")
    recipe = default_recipe(bare, arguments.data, epochs=arguments.epochs, seed=SEED)
    in_features = int(torch.tensor(training_images.image_shape).prod())
    layers = TOY_LAYERS + TOY_PADDING
    options = {**recipe.as_dict(), "layers": TOY_LAYERS, "padding": TOY_PADDING}
    shallow = build_perceptron(in_features, TOY_LAYERS, seed=SEED)
    model = {
        "architecture": f"perceptron of {TOY_LAYERS} layers",
        "checkpoint_sha256": hash_tensors(shallow.state_dict()),
    }

    def run() -> xr.Dataset:
        splits = [Split.from_data(data, CPU) for data in (training_images, test_images)]
        runs = {f"{TOY_LAYERS} layers": run_racer(shallow, TOY_LAYERS, *splits, recipe=recipe)}
        padded = deepen_perceptron(shallow, TOY_PADDING)
        for name, network in (
            (f"{layers} layers, padded", padded),
            (f"{layers} layers, random", build_perceptron(in_features, layers, seed=SEED)),
        ):
            print(f"toy: {name}", file=sys.stderr, flush=True)
            runs[name] = run_racer(network, layers, *splits, recipe=recipe)
        return race_dataset(
            runs,
            title="Race of perceptrons",
            references=REFERENCES,
            options=options,
            data=training_images,
            provenance=model,
        )

    return find_race("race-perceptron", run, options, model, arguments)


def find_race(
    name: str,
    run: Callable[[], xr.Dataset],
    options: dict[str, Any],
    model: dict[str, Any],
    arguments: argparse.Namespace,
) -> xr.Dataset:
    """Read a race's result, or run it; print its table and draw its figure."""
    dataset, _ = results.find_or_compute(
        arguments.out / f"{name}.nc",
        "race",
        run,
        options=options,
        model=model,
        data=open_split("train", arguments).provenance,
        overwrite=arguments.overwrite,
    )
    tables.show(dataset, Console())
    plots.save_figure(plots.plot(dataset), arguments.figures / f"{name}.png")
    return dataset


def net_path(name: str, arguments: argparse.Namespace) -> Path:
    """Name the file of a network that is trained."""
    arguments.nets.mkdir(parents=True, exist_ok=True)
    return Path(arguments.nets / f"construction-{name}.pt")


def random_path(name: str, arguments: argparse.Namespace) -> Path:
    """Name the file of the network from random weights: that of checkpoints/ is one, of the same recipe and seed."""
    ours = ROOT / "checkpoints" / f"{name}.pt"
    is_ours = ours.is_file() and arguments.data == "digits" and arguments.epochs == 40 and not arguments.quick
    return ours if is_ours else net_path(f"{name}-random", arguments)


def announce(waiting: list[torch.nn.Module], data: resprobe.ImageData, recipe: Recipe) -> None:
    """Say how long the trainings that are left will take, from a few steps of each."""
    seconds = 0.0
    pixels, labels = (part[: recipe.batch_size] for part in data.pixels())
    for network in waiting:
        assert isinstance(network, ResidualNetwork)
        trial = resprobe.build(network.architecture, seed=SEED).to(memory_format=torch.channels_last)
        for _ in range(2):  # the first step warms up
            start = time.perf_counter()
            F.cross_entropy(trial(data.normalisation.apply(pixels)), labels).backward()  # type: ignore[no-untyped-call]
            step = time.perf_counter() - start
        seconds += step * recipe.epochs * -(-data.num_images // recipe.batch_size)
    if waiting:
        length = f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} s"
        print(f"{len(waiting)} trainings, about {length}", flush=True)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few layers, images and epochs, into results/quick")
    parser.add_argument("--data", default="digits", help="what the networks of checkpoints/ were trained on")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--figures", type=Path, help="folder of the figures")
    parser.add_argument("--nets", type=Path, help="folder of the trained networks")
    parser.add_argument("--overwrite", action="store_true", help="compute again what is there")
    arguments = parser.parse_args()
    quick = ROOT / "results" / "quick"
    folders = {
        "out": ROOT / "notebooks" / "data",
        "figures": ROOT / "notebooks" / "figures",
        "nets": ROOT / "results" / "nets",
    }
    if arguments.out is not None and arguments.nets is None:
        arguments.nets = arguments.out / "nets"  # those of another run lie elsewhere
    for name, folder in folders.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, quick if arguments.quick else folder)
    if arguments.quick:
        arguments.epochs = QUICK["epochs"]
    return arguments


def main() -> None:
    """Deepen, compare, race."""
    arguments = parse_arguments()
    deep, residual = ("plain26", "resnet26") if arguments.quick else ("plain56", "resnet56")
    padded = {statistics: compare("plain20", deep, statistics, arguments) for statistics in ("measured", "unit")}
    compare("resnet20", residual, "measured", arguments)
    race(padded, "plain20", arguments)
    toy(arguments)


if __name__ == "__main__":
    main()
