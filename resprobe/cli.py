"""The command line: parse, load, call, save, show."""

import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resprobe.errors import ResprobeError
from resprobe.options import Common, with_common_options

if TYPE_CHECKING:
    import xarray as xr

    from resprobe.data import ImageData
    from resprobe.loading import Checkpoint

# Modules that bring PyTorch are imported inside the commands, so that --help answers at once.

app = typer.Typer(
    name="resprobe",
    help="Lesion studies of trained plain and residual networks. Each command reads a checkpoint, measures, prints a "
    "table and saves an xarray Dataset (netCDF4).",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# typer exports this subclass alone of click's usage errors
UsageError: Any = typer.BadParameter.__base__

RESULTS_FOLDER = Path("results")
INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended


By = Annotated[str | None, typer.Option(help="For nets without shortcuts: layer (default) or block.")]
Draws = Annotated[int, typer.Option(help="Random draws for each size.")]
Seed = Annotated[int, typer.Option(help="Seed of the draws.")]


@app.command()
@with_common_options
def lesion(
    common: Common,
    unit: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Delete only this unit; repeatable.")] = None,
    by: By = None,
    per_image: Annotated[bool, typer.Option("--per-image", help="Also keep the result of each image.")] = False,
) -> None:
    """Measure the error after each unit is deleted.

    A unit is a residual unit, or in a net without shortcuts a layer (or a block, with --by block).
    """
    options = {"units": unit or None, "by": by, "per_image": per_image}
    _analyse("lesion", "lesion", options, common)


@app.command("lesion-curve")
@with_common_options
def lesion_curve(
    common: Common,
    num_deleted: Annotated[
        str, typer.Option(metavar="SIZES", help="Sizes of the lesions: 1:20, 2:20:2 or 1,5,10.")
    ] = "1:20",
    draws: Draws = 30,
    seed: Seed = 0,
    by: By = None,
) -> None:
    """Measure the error after random units are deleted."""
    sizes = _sizes("num-deleted", num_deleted)
    _analyse(
        "lesion-curve",
        "lesion_curve",
        {"num_deleted": sizes, "draws": draws, "seed": seed, "by": by},
        common,
    )


@app.command()
@with_common_options
def reorder(
    common: Common,
    num_swaps: Annotated[
        str, typer.Option(metavar="SIZES", help="Numbers of swapped pairs: 1:30, 2:30:2 or 1,5,10.")
    ] = "1:30",
    draws: Draws = 30,
    seed: Seed = 0,
    by: By = None,
) -> None:
    """Measure the error after units are swapped.

    Each swap takes a random pair of units of equal shape.
    """
    swaps = _sizes("num-swaps", num_swaps)
    _analyse("reorder", "reorder", {"num_swaps": swaps, "draws": draws, "seed": seed, "by": by}, common)


@app.command()
@with_common_options
def inspect(
    common: Common,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a checkpoint is.

    Shows its architecture, how each fact about it is known, its units, parameters and multiply-adds, and with --data
    its error under each usual normalisation.
    """
    from resprobe.inspecting import inspect as inspect_checkpoint

    notify = functools.partial(_notice, quiet=common.quiet)
    reports = [inspect_checkpoint(name, common, notify, all_baselines=not as_json) for name in common.ckpt]
    if as_json:
        for report in reports:
            print(report.as_json())
        return
    from rich.console import Console

    from resprobe.inspection_tables import show_inspection

    for report in reports:
        show_inspection(report, Console())


@app.command()
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
    from resprobe.data import open_data
    from resprobe.devices import pick_device
    from resprobe.networks import parse_architecture
    from resprobe.progress import progress_bar
    from resprobe.training import default_recipe
    from resprobe.training import train as run_training

    if normalise is not None and normalise.startswith("npz:"):
        raise ResprobeError(f"normalise: expected constants per channel for training, got {normalise}; give MEAN/STD")
    open_split = functools.partial(
        open_data, normalisation=normalise, data_dir=data_dir, download=download, image_size=image_size
    )
    train_images = open_split(data, split="train" if test_data is None else None)
    test_images = open_split(test_data or data, split="test" if test_data is None else None)
    num_classes = classes or train_images.num_classes
    if num_classes is None:
        raise ResprobeError(f"{data}: expected to know the number of classes, got none; give --classes")
    architecture = parse_architecture(
        arch,
        width=width,
        in_channels=train_images.image_shape[0],
        num_classes=num_classes,
        shortcut=shortcut,
        norm=norm,
    )
    given = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "warmup_epochs": warmup_epochs,
        "schedule": schedule,
        "clip": clip,
        "precision": precision,
        "seed": seed,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    recipe = default_recipe(architecture, data, **overrides)
    chosen_device = pick_device(device)
    with progress_bar(f"{architecture.name} on {data}", "batches", quiet=quiet) as update:
        log = run_training(
            architecture,
            train_images,
            test_images,
            recipe=recipe,
            out=out,
            device=chosen_device,
            overwrite=overwrite,
            progress=update,
        )
    _show(log)
    _notice(f"saved {out} and its log {out.stem}-training.nc", quiet)
    if plot:
        _save_figure([log], out.with_name(f"{out.stem}-training.png"), quiet)


@app.command()
def plot(
    result: Annotated[list[Path], typer.Argument(help="Result files of one analysis; several are drawn together.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Figure: .png, .pdf or .svg. Default: beside the result."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No notices.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Draw the figure of a result."""
    from resprobe import results

    _save_figure([results.open(path) for path in result], out or result[0].with_suffix(".png"), quiet)


def _analyse(analysis: str, function: str, options: Mapping[str, Any], common: Common) -> None:
    """Run one analysis on every checkpoint."""
    from resprobe import probes
    from resprobe.devices import pick_device, precision_dtype
    from resprobe.opening import open_settled

    device = pick_device(common.device)
    precision_dtype(common.precision)
    run = getattr(probes, function)
    for name, out in zip(common.ckpt, _out_paths(analysis, common), strict=True):
        checkpoint, data = open_settled(name, common, functools.partial(_notice, quiet=common.quiet))
        checkpoint.model.to(device)
        dataset = _run_once(analysis, run, {**options, "precision": common.precision}, checkpoint, data, out, common)
        _show(dataset)
        _warn_of_gap(checkpoint, dataset, common.quiet)
        if common.plot:
            _save_figure([dataset], out.with_suffix(".png"), common.quiet)


def _warn_of_gap(checkpoint: "Checkpoint", dataset: "xr.Dataset", quiet: bool) -> None:
    """Warn where the measured error is far from the one that the file claims."""
    from resprobe.loading.claims import describe_gap

    if "baseline_num_correct" in dataset:
        num_images = int(dataset.attrs["num_images"])
        num_wrong = num_images - int(dataset.baseline_num_correct)
        warning = describe_gap(checkpoint.claimed_error, num_wrong, num_images)
        if warning is not None:
            _notice(f"{checkpoint.path.name}: {warning}", quiet)


def _run_once(
    analysis: str,
    run: "Callable[..., xr.Dataset]",
    options: Mapping[str, Any],
    checkpoint: "Checkpoint",
    data: "ImageData",
    out: Path,
    common: Common,
) -> "xr.Dataset":
    """Run one analysis on one checkpoint, unless its result is there already."""
    from resprobe import results
    from resprobe.progress import progress_bar

    options = results.complete_options(run, options)

    def compute() -> "xr.Dataset":
        with progress_bar(f"{analysis} of {checkpoint.path.name}", "images", quiet=common.quiet) as update:
            return run(checkpoint.model, data, provenance=checkpoint.provenance, progress=update, **options)

    dataset, found = results.find_or_compute(
        out,
        analysis,
        compute,
        options=options,
        model=checkpoint.provenance,
        data=data.provenance,
        overwrite=common.overwrite,
    )
    said = f"{out} holds this result already; --overwrite computes it again" if found else f"saved {out}"
    _notice(said, common.quiet)
    return dataset


def _out_paths(analysis: str, common: Common) -> list[Path]:
    """Name the result file of each checkpoint."""
    names = [f"{analysis}-{Path(name).stem}.nc" for name in common.ckpt]
    if len(set(names)) < len(names):
        raise ResprobeError(
            f"ckpt: expected checkpoints with different names, got {', '.join(common.ckpt)}; run them one by one"
        )
    if common.out is None:
        return [RESULTS_FOLDER / name for name in names]
    if common.out.suffix.lower() in (".png", ".pdf", ".svg"):
        raise ResprobeError(
            f"out: expected a result such as {common.out.stem}.nc, got {common.out}; --plot saves a figure beside it"
        )
    if len(names) == 1 and not common.out.is_dir():
        return [common.out]
    if common.out.suffix == ".nc":
        raise ResprobeError(f"out: expected a folder for {len(names)} results, got {common.out}; give a folder's name")
    return [common.out / name for name in names]


def _sizes(option: str, text: str) -> list[int]:
    """Read `1:20`, `2:20:2` (both ends included) or `1,5,10`."""
    try:
        if ":" not in text:
            return [int(part) for part in text.split(",")]
        first, last, *step = (int(part) for part in text.split(":"))
        (step_size,) = step or [1]
        return list(range(first, last + 1, step_size))
    except ValueError:
        raise ResprobeError(
            f"{option}: expected FIRST:LAST, FIRST:LAST:STEP or numbers with commas, got {text!r}; "
            f"write --{option} 1:20"
        ) from None


def _show(dataset: "xr.Dataset") -> None:
    from rich.console import Console

    from resprobe.tables import show

    show(dataset, Console())


def _save_figure(datasets: "list[xr.Dataset]", path: Path, quiet: bool) -> None:
    from resprobe import plots

    plots.save_figure(plots.plot(*datasets), path)
    _notice(f"saved {path}", quiet)


def _notice(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr)


def main() -> None:
    """Run the command line; every expected failure is one line on stderr."""
    try:
        code = app(standalone_mode=False)
    except ResprobeError as error:
        if "--debug" in sys.argv:
            raise
        _fail(str(error), 1)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            print(error.format_message(), file=sys.stderr)
            sys.exit(2)
        _fail(f"{error.format_message()}; see resprobe --help", 2)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; flushing at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if "--debug" in sys.argv:
            raise
        _fail(f"{error.filename or 'files'}: expected to read and write them, got {error.strerror or error}", 1)
    # depending on its version, typer turns an interruption into an exception or into this exit code
    if code == INTERRUPTED:
        _fail("interrupted; what was not finished was not written", INTERRUPTED)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> None:
    print(f"resprobe: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
