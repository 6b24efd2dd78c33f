"""What the commands have in common: run an analysis on each checkpoint, save its result, show it."""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resprobe.cli.options import Common
from resprobe.cli.resuming import told, with_estimate
from resprobe.errors import ResprobeError, ResprobeWarning

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
    analysis: str, function: str, options: Mapping[str, Any], common: Common, *, batches_count: bool = False
) -> None:
    """Run one analysis on every checkpoint, save each result and show it.

    Args:
        analysis: Name of the analysis in the schema.
        function: Name of the function in `resprobe`.
        options: Its own options.
        common: The options of every analysis.
        batches_count: Whether the result depends on the size of the batches.
    """
    from resprobe.cli.opening import open_settled
    from resprobe.engine.devices import pick_device, precision_dtype

    device = pick_device(common.device)
    precision_dtype(common.precision)
    for name, out in zip(common.ckpt, out_paths(analysis, common.ckpt, common), strict=True):
        checkpoint, data = open_settled(name, common, functools.partial(notify, quiet=common.quiet))
        subject = Subject(checkpoint.path.name, checkpoint.model.to(device), checkpoint.provenance)
        settings = batch_size(data, common) if batches_count else {}
        dataset = run_once(analysis, function, _with_mode(options, subject.model), settings, subject, data, out, common)
        finish(dataset, out, common)
        _warn_of_gap(checkpoint, dataset, common.quiet)


def _with_mode(options: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Name the mode of batch normalisation where it was left out: that is the same question, and the same file."""
    from resprobe.normalisation.bn_modes import modes_of

    chosen = dict(options)
    if "bn_mode" in chosen and chosen["bn_mode"] is None:
        chosen["bn_mode"] = modes_of(model)[0]
    return chosen


def analyse_untrained(
    analysis: str, function: str, options: Mapping[str, Any], common: Common, start: Mapping[str, Any]
) -> None:
    """Run one analysis on the untrained network that `--arch` names, save the result and show it.

    Args:
        analysis: Name of the analysis in the schema.
        function: Name of the function in `resprobe`.
        options: Its own options.
        common: The options of every analysis.
        start: Fields of `resprobe.cli.untrained.Start`.
    """
    from resprobe.cli.untrained import Start, open_untrained
    from resprobe.engine.devices import pick_device

    device = pick_device(common.device)
    network, data = open_untrained(Start(**start), common)
    (out,) = out_paths(analysis, [network.name], common)
    subject = Subject(network.name, network.model.to(device), network.provenance)
    settings = batch_size(data, common)
    finish(run_once(analysis, function, options, settings, subject, data, out, common), out, common)


def batch_size(data: "ImageData", common: Common) -> dict[str, int]:
    """Give the size of the first batch, as a setting that the result depends on."""
    return {"batch_size": min(common.batch_size, data.num_images)}


def finish(dataset: "xr.Dataset", out: Path, common: Common) -> None:
    """Print the table of a result, and save its figure where that is asked for."""
    show(dataset)
    if common.plot:
        save_figure([dataset], out.with_suffix(".png"), common.quiet)


def _warn_of_gap(checkpoint: "Checkpoint", dataset: "xr.Dataset", quiet: bool) -> None:
    """Warn where the measured error is far from the one that the file claims."""
    from resprobe.loading.claims import describe_gap

    if "baseline_num_correct" in dataset and dataset.attrs["bn_mode"] == "running":
        num_images = int(dataset.attrs["num_images"])
        num_wrong = num_images - int(dataset.baseline_num_correct)
        warning = describe_gap(checkpoint.claimed_error, num_wrong, num_images)
        if warning is not None:
            notify(f"{checkpoint.path.name}: {warning}", quiet)


def run_once(
    analysis: str,
    function: str,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    subject: Subject,
    data: "ImageData",
    out: Path,
    common: Common,
) -> "xr.Dataset":
    """Run one analysis on a model, or on several together, unless its result is there already.

    Args:
        analysis: Name of the analysis in the schema.
        function: Name of the function in `resprobe`.
        options: Its own options.
        settings: What else the result depends on, such as the size of the batches.
        subject: What it is run on.
        data: The images.
        out: The result's file.
        common: The options of every analysis.

    Returns:
        The result.
    """
    import resprobe
    from resprobe import results
    from resprobe.cli.progress import progress_bar

    run: Callable[..., xr.Dataset] = getattr(resprobe, function)
    tell = functools.partial(notify, quiet=common.quiet)
    resumable = "resume" in inspect.signature(run).parameters
    options = results.complete_options(run, {**options, "precision": common.precision})

    def compute(**resuming: Any) -> "xr.Dataset":
        with (
            _warnings_as_notices(common.quiet),
            progress_bar(f"{analysis} of {subject.name}", "images", quiet=common.quiet) as update,
            told(out, resuming, tell, overwrite=common.overwrite) as given,
        ):
            progress = (
                with_estimate(update, tell, overwrite=common.overwrite) if update is not None and resumable else update
            )
            return run(subject.model, data, provenance=subject.provenance, progress=progress, **options, **given)

    dataset, found = results.find_or_compute(
        out,
        analysis,
        compute,
        options={**options, **settings},
        model=subject.provenance,
        data=data.provenance,
        overwrite=common.overwrite,
        resumable=resumable,
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


def out_paths(analysis: str, networks: list[str], common: Common) -> list[Path]:
    """Name the result file of each network."""
    names = [f"{analysis}-{stem}.nc" for stem in _stems(networks, "run them one by one")]
    if common.out is None:
        return [RESULTS_FOLDER / name for name in names]
    _refuse_figure(common.out)
    if len(names) == 1 and not common.out.is_dir():
        return [common.out]
    if common.out.suffix == ".nc" and not common.out.is_dir():
        raise ResprobeError(f"out: expected a folder for {len(names)} results, got {common.out}; give a folder's name")
    return [common.out / name for name in names]


def joint_out_path(analysis: str, common: Common) -> Path:
    """Name the one result file of all checkpoints together."""
    name = f"{analysis}-{'-'.join(_stems(common.ckpt, 'rename one of them'))}.nc"
    if common.out is None:
        return RESULTS_FOLDER / name
    _refuse_figure(common.out)
    return common.out / name if common.out.is_dir() else common.out


def _stems(networks: list[str], advice: str) -> list[str]:
    stems = [Path(name).stem for name in networks]
    if len(set(stems)) < len(stems):
        raise ResprobeError(f"ckpt: expected checkpoints with different names, got {', '.join(networks)}; {advice}")
    return stems


def _refuse_figure(out: Path) -> None:
    if out.suffix.lower() in (".png", ".pdf", ".svg"):
        raise ResprobeError(f"out: expected a result such as {out.stem}.nc, got {out}; --plot saves a figure beside it")


def show(dataset: "xr.Dataset") -> None:
    """Print the table of a result."""
    from rich.console import Console

    from resprobe.showing.tables import show as show_table

    show_table(dataset, Console())


def save_figure(datasets: "list[xr.Dataset]", path: Path, quiet: bool) -> None:
    """Draw results of one analysis into a file, and say so."""
    from resprobe.showing.figures import plot
    from resprobe.showing.saving import save_figure as save

    save(plot(*datasets), path)
    notify(f"saved {path}", quiet)


def notify(text: str, quiet: bool) -> None:
    """Write a line for the user to stderr."""
    if not quiet:
        print(text, file=sys.stderr)
