"""The command that trains a network."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resprobe.cli.running import notify, save_figure, show
from resprobe.errors import ResprobeError

if TYPE_CHECKING:
    from torch import Tensor

    from resprobe.networks import Architecture


def train(
    *,
    arch: Annotated[
        str, typer.Option(metavar="NAME", help="resnetN, plainN, preresnetN or preplainN; N = 6n + 2 layers.")
    ],
    data: Annotated[str, typer.Option(metavar="NAME", help="Dataset, as for the analyses.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The checkpoint to write.")],
    test_data: Annotated[
        str | None, typer.Option(metavar="NAME", help="Test images. Default: the test split of --data.")
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Where downloaded datasets are kept.")] = Path("data"),
    download: Annotated[bool, typer.Option("--download", help="Fetch a dataset that is missing.")] = False,
    normalise: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A name, or MEAN,../STD,... Default: the dataset's own."),
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Resize and crop the images of folder:DIR.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes, where the data don't say.")] = None,
    width: Annotated[int, typer.Option(help="Channels of the first stage.")] = 16,
    shortcut: Annotated[str | None, typer.Option(help="pad (default) or projection.")] = None,
    norm: Annotated[str, typer.Option(help="batch or none.")] = "batch",
    init_from: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Checkpoint of the same architecture whose weights the training starts from."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Default: by dataset.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Default: by dataset.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: by network.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Default: 0.9.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Default: 0.0001.")] = None,
    warmup_epochs: Annotated[int | None, typer.Option(help="Epochs at a tenth of the rate.")] = None,
    schedule: Annotated[str | None, typer.Option(help="step (default) or cosine.")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm; 0: none.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 (default) or bfloat16 (mixed).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and augmentation.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    plot: Annotated[bool, typer.Option("--plot", help="Also save a figure of the log.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew and replace what is there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and notices.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train a network, or go on with it.

    An interrupted training goes on from its last epoch when the same command is run again.
    """
    from resprobe.cli.progress import progress_bar
    from resprobe.data import open_data
    from resprobe.engine.devices import pick_device
    from resprobe.networks import parse_architecture
    from resprobe.training.recipe import default_recipe
    from resprobe.training.runs import train as run_training

    _check_normalisation(normalise)
    open_split = functools.partial(
        open_data, normalisation=normalise, data_dir=data_dir, download=download, image_size=image_size
    )
    train_images = open_split(data, split="train" if test_data is None else None)
    test_images = open_split(test_data or data, split="test" if test_data is None else None)
    num_classes = classes or _known_classes(data, train_images.num_classes)
    channels = train_images.image_shape[0]
    architecture = parse_architecture(
        arch, width=width, in_channels=channels, num_classes=num_classes, shortcut=shortcut, norm=norm
    )
    given = {
        **{"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate, "momentum": momentum},
        **{"weight_decay": weight_decay, "warmup_epochs": warmup_epochs, "schedule": schedule, "clip": clip},
        **{"precision": precision, "seed": seed},
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    recipe = default_recipe(architecture, data, **overrides)
    start = None if init_from is None else _weights_of(init_from, architecture)
    run = functools.partial(
        run_training, architecture, train_images, test_images, recipe=recipe, out=out, start=start, overwrite=overwrite
    )
    chosen_device = pick_device(device)
    with progress_bar(f"{architecture.name} on {data}", "batches", quiet=quiet) as update:
        log = run(device=chosen_device, progress=update)
    show(log)
    notify(f"saved {out} and its log {out.stem}-training.nc", quiet)
    if plot:
        save_figure([log], out.with_name(f"{out.stem}-training.png"), quiet)


def _check_normalisation(normalise: str | None) -> None:
    if normalise is not None and normalise.startswith("npz:"):
        raise ResprobeError(f"normalise: expected constants per channel for training, got {normalise}; give MEAN/STD")


def _weights_of(name: str, architecture: "Architecture") -> "dict[str, Tensor]":
    """Read the weights that a training starts from."""
    from resprobe.loading import load

    found = load(name).architecture
    if found != architecture:
        raise ResprobeError(
            f"init-from: expected a network {architecture}, got {found} in {name}; give --arch {found.name} and the "
            "options that fit it"
        )
    return load(name).model.state_dict()


def _known_classes(data: str, num_classes: int | None) -> int:
    if num_classes is None:
        raise ResprobeError(f"{data}: expected to know the number of classes, got none; give --classes")
    return num_classes
