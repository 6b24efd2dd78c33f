"""The options that every analysis takes on the command line."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer


@dataclass(frozen=True)
class Common:
    """Options that every analysis takes."""

    ckpt: Annotated[
        list[str],
        typer.Option(metavar="FILE", help="Checkpoint, or its name under checkpoints/; repeatable."),
    ]
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="digits, cifar10, cifar100, mnist, fashion-mnist, folder:DIR or npz:FILE. "
            "Default: what the checkpoint was trained on.",
        ),
    ] = None
    data_dir: Annotated[Path, typer.Option(help="Where downloaded datasets are kept.")] = Path("data")
    download: Annotated[bool, typer.Option("--download", help="Fetch a dataset that is missing.")] = False
    split: Annotated[str | None, typer.Option(help="train or test. Default: test.")] = None
    num_images: Annotated[int | None, typer.Option(help="Use the first so many images. Default: all.")] = None
    image_size: Annotated[int | None, typer.Option(help="Resize and crop the images of folder:DIR.")] = None
    normalise: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A name such as imagenet, MEAN,../STD,..., or npz:FILE with a mean per pixel. Default: what the "
            "checkpoint says.",
        ),
    ] = None
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The network, such as resnet20, torchvision:resnet50 or timm:resnet50d, where its keys don't show it.",
        ),
    ] = None
    shortcut: Annotated[
        str | None, typer.Option(help="pad, projection, identity or none, where the file doesn't show it.")
    ] = None
    fact: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Another fact that the file doesn't show, such as padding=end; repeatable."
        ),
    ] = None
    state: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which state_dict of the file to take, where it has several.")
    ] = None
    batch_size: Annotated[
        int, typer.Option(help="Images per batch; matters to gradients, smoothness and batch statistics alone.")
    ] = 100
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto"
    precision: Annotated[str, typer.Option(help="float32, float64 or bfloat16.")] = "float32"
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Result file, or with several checkpoints a folder. Default: results/ANALYSIS-CHECKPOINT.nc.",
        ),
    ] = None
    plot: Annotated[bool, typer.Option("--plot", help="Also save a figure, beside the result.")] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Compute again and replace what is there.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and notices.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False


def with_common_options(command: Callable[..., None], *, needs_ckpt: bool = True) -> Callable[..., None]:
    """Give a command the options of `Common` after its own; it receives them as one object.

    Args:
        command: The command.
        needs_ckpt: Whether it can't do without `--ckpt`; else the list of checkpoints may be empty.

    Returns:
        The command with all of its options as parameters.
    """
    hints = get_type_hints(Common, include_extras=True)
    own = list(inspect.signature(command).parameters.values())[1:]
    common = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            **({"default": field.default} if field.name != "ckpt" else {} if needs_ckpt else {"default": []}),
        )
        for field in fields(Common)
    ]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

    @functools.wraps(command)
    def run(**options: Any) -> None:
        names = {parameter.name for parameter in own}
        shared = Common(**{name: value for name, value in options.items() if name not in names})
        command(shared, **{name: options[name] for name in names})

    parameters = [common[0], *own, *common[1:]]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
