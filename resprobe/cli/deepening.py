"""The command that deepens a network without changing its function."""

from pathlib import Path
from typing import Annotated

import typer

from resprobe.cli.options import Common
from resprobe.cli.running import notify, show
from resprobe.errors import ResprobeError


def deepen(
    *,
    ckpt: Annotated[str, typer.Option(metavar="FILE", help="Checkpoint, or its name under checkpoints/.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The checkpoint to write.")],
    units: Annotated[
        int | None,
        typer.Option(metavar="N", help="Units of two layers to add; a multiple of 3, a third to each stage."),
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="NAME", help="Instead of --units: plain56, for example.")] = None,
    statistics: Annotated[
        str,
        typer.Option(
            help="What the new normalisations of a plain net store: measured (mean and variance of what comes in) or "
            "unit (0 and 1)."
        ),
    ] = "measured",
    data: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Images, as for the analyses. Default: what the checkpoint was trained on."),
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Where downloaded datasets are kept.")] = Path("data"),
    download: Annotated[bool, typer.Option("--download", help="Fetch a dataset that is missing.")] = False,
    split: Annotated[str | None, typer.Option(help="train or test. Default: train of a named dataset.")] = None,
    num_images: Annotated[int | None, typer.Option(help="Use the first so many images. Default: up to 2000.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Resize and crop the images of folder:DIR.")] = None,
    normalise: Annotated[
        str | None, typer.Option(metavar="NAME", help="A name, or MEAN,../STD,... Default: what the checkpoint says.")
    ] = None,
    arch: Annotated[
        str | None, typer.Option(metavar="NAME", help="The network, such as resnet20, where the file doesn't say.")
    ] = None,
    shortcut: Annotated[str | None, typer.Option(help="pad or projection, where the file doesn't show it.")] = None,
    state: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which state_dict of the file to take, where it has several.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images per batch; matters to batch statistics alone.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the weights inside new residual units.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and notices.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Build a deeper network with the same function.

    New units come last in each stage. In a plain net they are identity convolutions and normalisations, in a residual
    net branches that end in zero. The logits of both networks are compared on images, with stored statistics, with
    those of the batch, and folded; nothing is written unless they are the same with the stored ones. `resprobe train
    --init-from FILE` trains the deeper network on.
    """
    from resprobe import results
    from resprobe.cli.opening import open_checkpoint, open_training_images
    from resprobe.cli.progress import progress_bar
    from resprobe.probes.construction.deepening import count_units, deepen_checkpoint
    from resprobe.results.writing import check_writable, whole_file

    _check_normalisation(normalise)
    common = Common(
        ckpt=[ckpt],
        data=data,
        data_dir=data_dir,
        download=download,
        split=split,
        num_images=num_images,
        image_size=image_size,
        normalise=normalise,
        arch=arch,
        shortcut=shortcut,
        state=state,
        batch_size=batch_size,
    )
    checkpoint = open_checkpoint(ckpt, common)
    num_units = count_units(checkpoint, units, to)
    check_writable(out)
    images = open_training_images(ckpt, checkpoint, common)
    with progress_bar(f"deepening {checkpoint.path.name}", "images", quiet=quiet) as update:
        deepened = deepen_checkpoint(checkpoint, images, num_units, statistics=statistics, seed=seed, progress=update)
    comparison_path = out.with_name(f"{out.stem}-comparison.nc")
    found = out.is_file() and out.read_bytes() == deepened.content
    if not (found or overwrite):
        _check_free(out)
    results.save(deepened.comparison, comparison_path, overwrite=overwrite)
    if not found:
        with whole_file(out) as temporary:
            temporary.write_bytes(deepened.content)
    show(deepened.comparison)
    said = f"{out} holds this network already" if found else f"saved {out}"
    notify(f"{said}, {deepened.architecture.name}; its comparison is {comparison_path.name}", quiet)


def _check_normalisation(normalise: str | None) -> None:
    if normalise is not None and normalise.startswith("npz:"):
        raise ResprobeError(f"normalise: expected constants per channel, got {normalise}; give MEAN/STD")


def _check_free(out: Path) -> None:
    if out.exists():
        raise ResprobeError(
            f"{out}: expected the same network or no file, got another file; choose another --out, or replace it with "
            "--overwrite"
        )
