"""What the studies share that train networks: their options, the networks, and their training."""

import argparse
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from studies import DEFAULT_DATA, ROOT, add_data_options, fill_in, keep_apart, study_parser
from torch import nn

import resprobe
from resprobe.engine.devices import device_of
from resprobe.errors import ResprobeError
from resprobe.training.recipe import Recipe

QUICK_EPOCHS, QUICK_IMAGES = 2, 120
WORTH_A_WORKER = 20  # seconds of training; starting one takes some
DEFAULT_SEEDS = 3


@dataclass(frozen=True)
class Options:
    """What every study is told.

    Attributes:
        quick: Measure little, to see that everything works.
        data: Name of a dataset.
        data_dir: Where downloaded datasets are kept.
        download: Whether to fetch one that is missing.
        device: Where to train and measure.
        nets: Folder of the trained networks; one that is there is not trained again.
        out: Folder of the results.
        figures: Folder of the figures.
        overwrite: Measure again what is there.
        seeds: Of the networks.
        given: What of this was given on the command line and decides the numbers.
    """

    quick: bool
    data: str
    data_dir: Path
    download: bool
    device: torch.device
    nets: Path
    out: Path
    figures: Path
    overwrite: bool
    seeds: tuple[int, ...]
    given: str


def parser(description: str | None, *, seeds: bool = True) -> argparse.ArgumentParser:
    """Make the parser of a study that trains networks, of one or more seeds."""
    made = study_parser(description)
    add_data_options(made)
    if seeds:
        made.add_argument("--seeds", type=int, help=f"number of seeds (default: {DEFAULT_SEEDS}; with --quick 1)")
    return made


def read(arguments: argparse.Namespace) -> Options:
    """Read the options of every study that trains networks, and make its folders; a quick one has its own."""
    keep_apart(arguments)
    fill_in(arguments)
    given = getattr(arguments, "seeds", 1)
    if given is not None and given < 1:
        raise ResprobeError(f"seeds: expected 1 or more, got {given}; leave it out for {DEFAULT_SEEDS}")
    seeds = given or (1 if arguments.quick else DEFAULT_SEEDS)
    nets = arguments.work / ("quick-nets" if arguments.quick else "nets")
    for folder in (nets, arguments.out, arguments.figures):
        folder.mkdir(parents=True, exist_ok=True)
    words = ["--quick"] if arguments.quick else []
    words += ["--data", arguments.data] if arguments.data != DEFAULT_DATA else []
    words += ["--seeds", str(given)] if getattr(arguments, "seeds", None) else []
    return Options(
        quick=arguments.quick,
        data=arguments.data,
        data_dir=arguments.data_dir,
        download=arguments.download,
        device=arguments.device,
        nets=nets,
        out=arguments.out,
        figures=arguments.figures,
        overwrite=arguments.overwrite,
        seeds=tuple(range(seeds)),
        given=shlex.join(words),
    )


@dataclass(frozen=True, order=True)
class Net:
    """A network of a study.

    Attributes:
        depth: Weight layers.
        kind: `plain` or `resnet`.
        norm: `batch` or `none`.
        seed: Of its weights and its training.
    """

    depth: int
    kind: str
    norm: str = "batch"
    seed: int = 0

    @property
    def name(self) -> str:
        """Its architecture, with what differs from the default."""
        return f"{self.kind}{self.depth}{'' if self.norm == 'batch' else '-nonorm'}"

    def file(self, study: Options) -> Path:
        """Name its checkpoint."""
        return study.nets / f"{self.name}-seed{self.seed}.pt"

    def architecture(self, data: resprobe.ImageData) -> resprobe.Architecture:
        """Give its facts, for the channels and classes of some images."""
        assert data.num_classes is not None
        return resprobe.parse_architecture(
            f"{self.kind}{self.depth}",
            in_channels=data.image_shape[0],
            num_classes=data.num_classes,
            norm=self.norm,
        )

    def recipe(self, data: resprobe.ImageData, study: Options) -> Recipe:
        """Give its recipe: the default one of the dataset."""
        quick = {"epochs": QUICK_EPOCHS, "warmup_epochs": 0} if study.quick else {}
        return resprobe.default_recipe(self.architecture(data), study.data, seed=self.seed, **quick)


def images(study: Options, split: str, num_images: int | None = None) -> resprobe.ImageData:
    """Open the images of a study."""
    return resprobe.open_data(
        study.data, split=split, num_images=num_images, data_dir=study.data_dir, download=study.download
    )


def train(net: Net, study: Options) -> Path:
    """Train one network, or go on with it, or do nothing where it is there."""
    count = QUICK_IMAGES if study.quick else None
    train_images, test_images = images(study, "train", count), images(study, "test", count)
    resprobe.train(
        net.architecture(train_images),
        train_images,
        test_images,
        recipe=net.recipe(train_images, study),
        out=net.file(study),
        device=study.device,
    )
    return net.file(study)


def train_all(nets: Sequence[Net], study: Options) -> None:
    """Train what isn't there yet, on a CPU one network per core and with one thread each.

    PyTorch's sums depend on the number of threads, so that one thread each is also what makes a training repeatable.
    What takes seconds only is trained in this process: starting another would take longer.
    """
    missing = sorted({net for net in nets if not net.file(study).exists()}, reverse=True)
    if not missing:
        return
    seconds = sum(_estimate(missing, study))
    parallel = study.device.type == "cpu" and seconds > WORTH_A_WORKER
    workers = min(len(missing), os.cpu_count() or 1) if parallel else 1
    print(f"{len(missing)} networks to train, {workers} at a time: about {duration(seconds / workers)}", flush=True)
    start = time.perf_counter()
    for done, file in enumerate(_train_in_parallel(missing, study, workers) if parallel else _train(missing, study), 1):
        left = duration((time.perf_counter() - start) / done * (len(missing) - done))
        print(f"{file.stem}: {done} of {len(missing)} trained, about {left} left", flush=True)


def _train(nets: Sequence[Net], study: Options) -> Iterator[Path]:
    return (train(net, study) for net in nets)


def _train_in_parallel(nets: Sequence[Net], study: Options, workers: int) -> Iterator[Path]:
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(train, net, study) for net in nets]):
            yield future.result()


def _estimate(nets: Sequence[Net], study: Options) -> Iterator[float]:
    """Time two steps of each network's shallowest like and scale them by depth, in seconds for its whole training."""
    data = images(study, "train", QUICK_IMAGES if study.quick else None)
    per_layer: dict[tuple[str, str], float] = {}
    for net in sorted(nets):
        recipe = net.recipe(data, study)
        if (net.kind, net.norm) not in per_layer:
            model = resprobe.build(net.architecture(data), seed=0).to(study.device).train()
            per_layer[net.kind, net.norm] = seconds_of_pass(model, data, recipe.batch_size) / net.depth
        yield per_layer[net.kind, net.norm] * net.depth * recipe.epochs * data.num_images


def seconds_of_pass(model: nn.Module, data: resprobe.ImageData, batch_size: int | None = None) -> float:
    """Time the forward and backward pass of a batch, and divide by its images."""
    pixels, labels = next(iter(data))
    count = min(batch_size or len(pixels), len(pixels))
    pixels, labels = pixels[:count].to(device_of(model)), labels[:count].to(device_of(model))
    for _ in range(2):  # the first warms up
        start = time.perf_counter()
        F.cross_entropy(model(pixels), labels).backward()  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - start
    return seconds / count


def duration(seconds: float) -> str:
    """Write a time for people."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def stored_or_trained(nets: Sequence[Net], study: Options) -> list[Path]:
    """Give the files of networks of seed 0: of digits those in checkpoints/, of other data trained ones."""
    if study.data == DEFAULT_DATA:
        return [ROOT / "checkpoints" / f"{net.name}.pt" for net in nets]
    train_all(nets, study)
    return [net.file(study) for net in nets]
