"""What the commands have in common: run an analysis on each checkpoint, save its result, show it."""

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resprobe.errors import ResprobeError, ResprobeWarning
from resprobe.options import Common

if TYPE_CHECKING:
    import xarray as xr

    from resprobe.data import ImageData
    from resprobe.loading import Checkpoint

RESULTS_FOLDER = Path("results")


class Subject(NamedTuple):
    """What an analysis is run on: a name for people, the model or several, where it came from."""

    name: str
    model: Any
    provenance: Mapping[str, Any]


def analyse(
    analysis: str, function: str, options: Mapping[str, Any], common: Common, *, batches_matter: bool = False
) -> None:
    """Run one analysis on every checkpoint, save each result and show it.

    Args:
        analysis: Name of the analysis in the schema.
        function: Name of the function in `resprobe.probes`.
        options: Its own options.
        common: The options of every analysis.
        batches_matter: The result depends on the size of the batches, and says so.
    """
    from resprobe import probes
    from resprobe.devices import pick_device, precision_dtype
    from resprobe.opening import open_settled

    device = pick_device(common.device)
    precision_dtype(common.precision)
    run = getattr(probes, function)
    for name, out in zip(common.ckpt, _out_paths(analysis, common), strict=True):
        checkpoint, data = open_settled(name, common, functools.partial(notify, quiet=common.quiet))
        checkpoint.model.to(device)
        subject = Subject(checkpoint.path.name, checkpoint.model, checkpoint.provenance)
        dataset = run_once(analysis, run, options, subject, data, out, common, batches_matter=batches_matter)
        show(dataset)
        _warn_of_gap(checkpoint, dataset, common.quiet)
        if common.plot:
            save_figure([dataset], out.with_suffix(".png"), common.quiet)


def _warn_of_gap(checkpoint: "Checkpoint", dataset: "xr.Dataset", quiet: bool) -> None:
    """Warn where the measured error is far from the one that the file claims."""
    from resprobe.loading.claims import describe_gap

    if "baseline_num_correct" in dataset:
        num_images = int(dataset.attrs["num_images"])
        num_wrong = num_images - int(dataset.baseline_num_correct)
        warning = describe_gap(checkpoint.claimed_error, num_wrong, num_images)
        if warning is not None:
            notify(f"{checkpoint.path.name}: {warning}", quiet)


def run_once(
    analysis: str,
    run: "Callable[..., xr.Dataset]",
    options: Mapping[str, Any],
    subject: Subject,
    data: "ImageData",
    out: Path,
    common: Common,
    *,
    batches_matter: bool = False,
) -> "xr.Dataset":
    """Run one analysis on a model, or on several together, unless its result is there already.

    Args:
        analysis: Name of the analysis in the schema.
        run: The function that computes it.
        options: Its own options.
        subject: What it is run on.
        data: The images.
        out: The result's file.
        common: The options of every analysis.
        batches_matter: As in `analyse`.

    Returns:
        The result.
    """
    from resprobe import results
    from resprobe.progress import progress_bar

    options = results.complete_options(run, {**options, "precision": common.precision})

    def compute() -> "xr.Dataset":
        with (
            _warnings_as_notices(common.quiet),
            progress_bar(f"{analysis} of {subject.name}", "images", quiet=common.quiet) as update,
        ):
            return run(subject.model, data, provenance=subject.provenance, progress=update, **options)

    dataset, found = results.find_or_compute(
        out,
        analysis,
        compute,
        options={**options, "batch_size": data.batch_size} if batches_matter else options,
        model=subject.provenance,
        data=data.provenance,
        overwrite=common.overwrite,
    )
    said = f"{out} holds this result already; --overwrite computes it again" if found else f"saved {out}"
    notify(said, common.quiet)
    return dataset


@contextmanager
def _warnings_as_notices(quiet: bool) -> Iterator[None]:
    """Write each of our own warnings as a line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResprobeWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, ResprobeWarning):
            notify(str(warning.message), quiet)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _out_paths(analysis: str, common: Common) -> list[Path]:
    """Name the result file of each checkpoint."""
    names = [f"{analysis}-{Path(name).stem}.nc" for name in common.ckpt]
    if len(set(names)) < len(names):
        raise ResprobeError(
            f"ckpt: expected checkpoints with different names, got {', '.join(common.ckpt)}; run them one by one"
        )
    if common.out is None:
        return [RESULTS_FOLDER / name for name in names]
    if len(names) == 1 and not common.out.is_dir():
        return [common.out]
    if common.out.suffix == ".nc":
        raise ResprobeError(f"out: expected a folder for {len(names)} results, got {common.out}; give a folder's name")
    return [common.out / name for name in names]


def joint_out_path(analysis: str, common: Common) -> Path:
    """Name the one result file of all checkpoints together."""
    stems = [Path(name).stem for name in common.ckpt]
    if len(set(stems)) < len(stems):
        raise ResprobeError(
            f"ckpt: expected checkpoints with different names, got {', '.join(common.ckpt)}; rename one of them"
        )
    name = f"{analysis}-{'-'.join(stems)}.nc"
    if common.out is None:
        return RESULTS_FOLDER / name
    return common.out / name if common.out.is_dir() else common.out


def show(dataset: "xr.Dataset") -> None:
    """Print the table of a result."""
    from rich.console import Console

    from resprobe import tables

    tables.show(dataset, Console())


def save_figure(datasets: "list[xr.Dataset]", path: Path, quiet: bool) -> None:
    """Draw results of one analysis into a file, and say so."""
    from resprobe import plots

    plots.save_figure(plots.plot(*datasets), path)
    notify(f"saved {path}", quiet)


def notify(text: str, quiet: bool) -> None:
    """Write a line for the user to stderr."""
    if not quiet:
        print(text, file=sys.stderr)
