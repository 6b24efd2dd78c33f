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
    from torch import nn

    from resprobe.data import ImageData
    from resprobe.loading import Checkpoint

RESULTS_FOLDER = Path("results")


def analyse(
    analysis: str, function: str, options: Mapping[str, Any], common: Common, *, batches_count: bool = False
) -> None:
    """Run one analysis on every checkpoint, save each result and show it.

    Args:
        analysis: Name of the analysis in the schema.
        function: Name of the function in `resprobe.probes`.
        options: Its own options.
        common: The options of every analysis.
        batches_count: Whether the result depends on the size of the batches.
    """
    from resprobe.devices import pick_device, precision_dtype
    from resprobe.opening import open_settled

    device = pick_device(common.device)
    precision_dtype(common.precision)
    for name, out in zip(common.ckpt, _out_paths(analysis, common.ckpt, common), strict=True):
        checkpoint, data = open_settled(name, common, functools.partial(notify, quiet=common.quiet))
        subject = _Subject(checkpoint.path.name, checkpoint.model.to(device), checkpoint.provenance)
        settings = _batch_size(data, common) if batches_count else {}
        dataset = _run_once(analysis, function, options, settings, subject, data, out, common)
        _finish(dataset, out, common)
        _warn_of_gap(checkpoint, dataset, common.quiet)


def analyse_untrained(
    analysis: str, function: str, options: Mapping[str, Any], common: Common, start: Mapping[str, Any]
) -> None:
    """Run one analysis on the untrained network that `--arch` names, save the result and show it.

    Args:
        analysis: Name of the analysis in the schema.
        function: Name of the function in `resprobe.probes`.
        options: Its own options.
        common: The options of every analysis.
        start: Fields of `resprobe.untrained.Start`.
    """
    from resprobe.devices import pick_device
    from resprobe.untrained import Start, open_untrained

    device = pick_device(common.device)
    network, data = open_untrained(Start(**start), common)
    (out,) = _out_paths(analysis, [network.name], common)
    subject = _Subject(network.name, network.model.to(device), network.provenance)
    settings = _batch_size(data, common)
    _finish(_run_once(analysis, function, options, settings, subject, data, out, common), out, common)


class _Subject(NamedTuple):
    """A model to be analysed."""

    name: str
    model: "nn.Module"
    provenance: dict[str, Any]


def _batch_size(data: "ImageData", common: Common) -> dict[str, int]:
    """Give the size of the first batch, as a setting that the result depends on."""
    return {"batch_size": min(common.batch_size, data.num_images)}


def _finish(dataset: "xr.Dataset", out: Path, common: Common) -> None:
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


def _run_once(
    analysis: str,
    function: str,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    subject: _Subject,
    data: "ImageData",
    out: Path,
    common: Common,
) -> "xr.Dataset":
    """Run one analysis on one model, unless its result is there already."""
    from resprobe import probes, results
    from resprobe.progress import progress_bar

    run: Callable[..., xr.Dataset] = getattr(probes, function)
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
        options={**options, **settings},
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


def _out_paths(analysis: str, networks: list[str], common: Common) -> list[Path]:
    """Name the result file of each network."""
    names = [f"{analysis}-{Path(name).stem}.nc" for name in networks]
    if len(set(names)) < len(names):
        raise ResprobeError(
            f"ckpt: expected checkpoints with different names, got {', '.join(networks)}; run them one by one"
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
