"""The construction argument, carried out: can a deeper network learn to be no worse than the shallower one inside it?

    python analyses/construction.py            the digits networks of checkpoints/, about half an hour of one CPU core
    python analyses/construction.py --data cifar10 --device cuda  the same with networks that are trained first
    python analyses/construction.py --quick    a few layers, images and epochs, to see that everything works

He, Zhang, Ren and Sun (2015, arXiv 1512.03385, section 1): a deeper network has a solution that is no worse than that
of the shallower one, since the added layers may be the identity, so that its higher training error is a matter of
optimisation. Here that solution is built and checked (a plain-20 becomes a plain-56, a ResNet-20 a ResNet-56). Then the
race: the padded plain-56 is trained on, with new normalisations that store the statistics of what comes in or those
of nothing (`deepen`), against the same network from random weights and against the plain-20 itself, all for the same
epochs. At last the toy: a perceptron of 6 layers padded with 42 identity layers, against 48 layers from random weights.

Results go to `--out` as netCDF files, figures to `--figures`, networks below `--work`. What is there already is kept,
and a training that was interrupted goes on. PyTorch's sums depend on the number of threads: OMP_NUM_THREADS=1 repeats a
training to the bit.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import study_results
import torch
import trained_nets
import xarray as xr
from rich.console import Console
from studies import run_study
from trained_nets import Net, Options

import resprobe
from resprobe import plots, results
from resprobe.cli.progress import progress_bar
from resprobe.errors import ResprobeError
from resprobe.networks import Architecture, ResidualNetwork
from resprobe.networks.construction import units_to_reach
from resprobe.networks.hashing import hash_tensors
from resprobe.networks.perceptrons import build_perceptron, deepen_perceptron
from resprobe.showing.tables import show
from resprobe.training.loop import Split
from resprobe.training.races import Racer, before_training, race_dataset, run_racer
from resprobe.training.recipe import Recipe, default_recipe
from resprobe.training.runs import train

REFERENCES = "He, Zhang, Ren, Sun 2015, arXiv 1512.03385, section 1"
QUICK = {"epochs": 2, "train": 96, "test": 30}
TOY_LAYERS, TOY_PADDING, SEED = 6, 42, 0
SHALLOW, DEEP, QUICK_DEEP = 20, 56, 26


def open_split(split: str, study: Options) -> resprobe.ImageData:
    """Open the training or test images."""
    return trained_nets.images(study, split, QUICK[split] if study.quick else None)


def compare(checkpoint: resprobe.Checkpoint, deeper: str, statistics: str, study: Options) -> ResidualNetwork:
    """Deepen a network, compare the logits on test images, and save and print what came out."""
    assert isinstance(checkpoint.architecture, Architecture)
    num_units = units_to_reach(checkpoint.architecture, deeper)
    training_images, test_images = open_split("train", study), open_split("test", study)
    deep = resprobe.deepen(checkpoint.model, num_units, batches=training_images, statistics=statistics, seed=SEED)
    settings = {
        "deepened": deeper,
        "deepened_sha256": hash_tensors(deep.state_dict()),
        "num_units": num_units,
        "statistics": statistics,
        "seed": SEED,
    }
    dataset, _ = results.find_or_compute(
        study.out / f"comparison-{deeper}-{statistics}.nc",
        "comparison",
        lambda: resprobe.compare_logits(
            checkpoint.model.to(study.device),
            deep.to(study.device),
            test_images,
            provenance=checkpoint.provenance,
            settings=settings,
        ),
        options={"batch_size": min(test_images.batch_size, test_images.num_images), **settings},
        model=checkpoint.provenance,
        data=test_images.provenance,
        overwrite=study.overwrite,
    )
    show(dataset, Console())
    return deep


def race(
    padded: dict[str, ResidualNetwork], checkpoint: resprobe.Checkpoint, epochs: dict[str, int], study: Options
) -> xr.Dataset:
    """Train the padded networks on, one from random weights, and the shallow one, for the same epochs."""
    architecture = next(iter(padded.values())).architecture
    recipe = default_recipe(architecture, study.data, seed=SEED, **epochs)
    racers = racers_of(padded, checkpoint, recipe, study)
    starts = {name: hash_tensors(racer.network.state_dict()) for name, racer in racers.items()}
    options = {**recipe.as_dict(), "starts": starts}
    training_images, test_images = open_split("train", study), open_split("test", study)

    def run() -> xr.Dataset:
        waiting = [racer.network for racer in racers.values() if not racer.path.exists()]
        announce(waiting, training_images, recipe, study)
        splits = [Split.from_data(data, study.device) for data in (training_images, test_images)]
        runs = {}
        for name, (path, network, start) in racers.items():
            with progress_bar(name, "batches", quiet=False) as update:
                log = train(
                    network.architecture,
                    training_images,
                    test_images,
                    recipe=recipe,
                    out=path,
                    start=start,
                    device=study.device,
                    progress=update,
                )
            before = before_training(network.to(study.device), *splits, recipe=recipe)
            runs[name] = Racer(network.architecture.depth, before, {str(key): log[key].values for key in log.data_vars})
        return race_dataset(
            runs,
            title=f"Race of {architecture.name}",
            references=REFERENCES,
            options=options,
            data=training_images,
            provenance=checkpoint.provenance,
            device=study.device,
        )

    return find_race(f"race-{architecture.name}", run, options, checkpoint.provenance, study)


class Starter(NamedTuple):
    """A network of the race: where it is kept, as it starts, and the weights it starts from, None for random ones."""

    path: Path
    network: ResidualNetwork
    start: dict[str, torch.Tensor] | None


def racers_of(
    padded: dict[str, ResidualNetwork], checkpoint: resprobe.Checkpoint, recipe: Recipe, study: Options
) -> dict[str, Starter]:
    """List the networks of the race, by the names that the result gives them."""
    architecture = next(iter(padded.values())).architecture
    assert isinstance(checkpoint.architecture, Architecture)
    assert isinstance(checkpoint.model, ResidualNetwork)
    deeper, shallow = architecture.name, checkpoint.architecture.name
    racers = {
        f"{deeper}, {statistics}": Starter(
            net_path(f"{deeper}-{statistics}", study), network, dict(network.state_dict())
        )
        for statistics, network in padded.items()
    }
    random = resprobe.build(architecture, seed=SEED)
    racers[f"{deeper}, random"] = Starter(random_path(architecture, recipe, study), random, None)
    racers[f"{shallow}, trained on"] = Starter(
        net_path(f"{shallow}-continued", study), checkpoint.model, dict(checkpoint.model.state_dict())
    )
    return racers


def toy(epochs: dict[str, int], study: Options) -> xr.Dataset:
    """Train 6 linear layers; then those with identity layers added, against as many layers from random weights."""
    training_images, test_images = open_split("train", study), open_split("test", study)
    # no normalisation: the recipe for networks without
    bare = resprobe.parse_architecture("plain8", in_channels=training_images.image_shape[0], norm="none")
    recipe = default_recipe(bare, study.data, seed=SEED, **epochs)
    in_features = int(torch.tensor(training_images.image_shape).prod())
    layers = TOY_LAYERS + TOY_PADDING
    options = {**recipe.as_dict(), "layers": TOY_LAYERS, "padding": TOY_PADDING}
    shallow = build_perceptron(in_features, TOY_LAYERS, seed=SEED)
    model = {
        "architecture": f"perceptron of {TOY_LAYERS} layers",
        "checkpoint_sha256": hash_tensors(shallow.state_dict()),
    }

    def run() -> xr.Dataset:
        splits = [Split.from_data(data, study.device) for data in (training_images, test_images)]
        runs = {f"{TOY_LAYERS} layers": run_racer(shallow.to(study.device), TOY_LAYERS, *splits, recipe=recipe)}
        padded = deepen_perceptron(shallow, TOY_PADDING)
        for name, network in (
            (f"{layers} layers, padded", padded),
            (f"{layers} layers, random", build_perceptron(in_features, layers, seed=SEED)),
        ):
            print(f"toy: {name}", file=sys.stderr, flush=True)
            runs[name] = run_racer(network.to(study.device), layers, *splits, recipe=recipe)
        return race_dataset(
            runs,
            title="Race of perceptrons",
            references=REFERENCES,
            options=options,
            data=training_images,
            provenance=model,
            device=study.device,
        )

    return find_race("race-perceptron", run, options, model, study)


def find_race(
    name: str,
    run: Callable[[], xr.Dataset],
    options: dict[str, Any],
    model: dict[str, Any],
    study: Options,
) -> xr.Dataset:
    """Read a race's result, or run it; print its table and draw its figure."""
    dataset, _ = results.find_or_compute(
        study.out / f"{name}.nc",
        "race",
        run,
        options=options,
        model=model,
        data=open_split("train", study).provenance,
        overwrite=study.overwrite,
    )
    show(dataset, Console())
    study_results.save_figure(plots.plot(dataset), name, study)
    return dataset


def net_path(name: str, study: Options) -> Path:
    """Name the file of a network that is trained."""
    return study.nets / f"construction-{name}.pt"


def random_path(architecture: Architecture, recipe: Recipe, study: Options) -> Path:
    """Name the file of the network from random weights: the one of `stored_or_trained`, if its recipe is the same."""
    net = Net(architecture.depth, "plain")
    same = not study.quick and recipe == net.recipe(open_split("train", study), study)
    return trained_nets.stored_or_trained([net], study)[0] if same else net_path(f"{net.name}-random", study)


def announce(waiting: list[ResidualNetwork], data: resprobe.ImageData, recipe: Recipe, study: Options) -> None:
    """Say how long the trainings that are left will take."""
    seconds = 0.0
    for network in waiting:
        trial = resprobe.build(network.architecture, seed=SEED).to(study.device).to(memory_format=torch.channels_last)
        seconds += trained_nets.seconds_of_pass(trial, data, recipe.batch_size) * recipe.epochs * data.num_images
    if waiting:
        print(f"{len(waiting)} trainings: about {trained_nets.duration(seconds)}", flush=True)


def main() -> None:
    """Deepen, compare, race."""
    parser = trained_nets.parser(__doc__, seeds=False)
    parser.add_argument("--epochs", type=int, help="of each training in the races (default: those of the recipe)")
    arguments = parser.parse_args()
    study = trained_nets.read(arguments)
    if arguments.epochs is not None and arguments.epochs < 1:
        raise ResprobeError(f"epochs: expected 1 or more, got {arguments.epochs}; leave it out for the recipe's")
    epochs = QUICK["epochs"] if study.quick else arguments.epochs
    given = {} if epochs is None else {"epochs": epochs}
    depth = QUICK_DEEP if study.quick else DEEP
    nets = [Net(SHALLOW, "plain"), Net(SHALLOW, "resnet")]
    plain, residual = (resprobe.load(file) for file in trained_nets.stored_or_trained(nets, study))
    padded = {statistics: compare(plain, f"plain{depth}", statistics, study) for statistics in ("measured", "unit")}
    compare(residual, f"resnet{depth}", "measured", study)
    race(padded, plain, given, study)
    toy(given, study)


if __name__ == "__main__":
    run_study(main)
