"""Results as tables for the terminal, from their Datasets alone."""

from collections.abc import Callable

import numpy as np
import xarray as xr
from rich.console import Console
from rich.table import Table


def show(dataset: xr.Dataset, console: Console) -> None:
    """Print a result: what was measured, a table, and a line that sums it up.

    Args:
        dataset: The result of one of the analyses that have a table.
        console: Where to print.
    """
    table, summary = _TABLES[dataset.attrs["analysis"]](dataset)
    attrs = dataset.attrs
    network = attrs["architecture"] or "model"
    console.print(
        f"{attrs['title']}: {attrs['checkpoint'] or network} ({network}) on {attrs['data'] or 'the given data'}, "
        f"{attrs['split'] or 'given'} images, {attrs['num_images']} of them",
        highlight=False,
        soft_wrap=True,
    )
    console.print(table)
    console.print(summary, highlight=False, soft_wrap=True)


def _lesion(dataset: xr.Dataset) -> tuple[Table, str]:
    table = _table(["unit", "stage"], ["error", "change", "95 % interval"])
    baseline = float(dataset.baseline_error)
    for index in range(dataset.sizes["unit"]):
        row = dataset.isel(unit=index)
        place = [str(row.unit.item()), str(row.stage.item())]
        if str(row.status.item()) != "ok":
            table.add_row(*place, "-", "-", str(row.status.item()))
            continue
        error = float(row.error)
        table.add_row(
            *place,
            _percent(error),
            # adding 0.0 turns -0.0 into 0.0
            f"{round(100 * (error - baseline), 1) + 0.0:+.1f}",
            f"{100 * float(row.error_low):.1f} to {_percent(float(row.error_high))}",
        )
    measured = dataset.error.dropna("unit")
    if measured.size == 0:
        return table, f"baseline {_percent(baseline)}; no unit could be deleted"
    worst = measured.isel(unit=int(measured.values.argmax()))
    return table, (
        f"baseline {_percent(baseline)}, median {_percent(float(measured.median()))} over {measured.size} deletions, "
        f"worst {_percent(float(worst))} ({worst.unit.item()})"
    )


def _lesion_curve(dataset: xr.Dataset) -> tuple[Table, str]:
    table = _table(["deleted"], ["median error", "5 to 95 % of draws", "mean loss"])
    for size in dataset.num_deleted.values:
        row = dataset.sel(num_deleted=size)
        table.add_row(str(size), *_spread(row.error), f"{float(row.loss.mean()):.3f}")
    return table, _baseline_line(dataset, "sets of units")


def _reorder(dataset: xr.Dataset) -> tuple[Table, str]:
    table = _table(["swaps"], ["Kendall tau", "median error", "5 to 95 % of draws", "mean loss"])
    for swaps in dataset.num_swaps.values:
        row = dataset.sel(num_swaps=swaps)
        tau = f"{float(row.kendall_tau.mean()):.3f}"
        table.add_row(str(swaps), tau, *_spread(row.error), f"{float(row.loss.mean()):.3f}")
    return table, _baseline_line(dataset, "orders")


def _training(dataset: xr.Dataset) -> tuple[Table, str]:
    table = _table(["epoch"], ["learning rate", "train loss", "train error", "test loss", "test error"])
    epochs = dataset.epoch.values
    shown = epochs if len(epochs) <= 12 else np.unique(np.linspace(1, len(epochs), 11).round().astype(int))
    for epoch in shown:
        row = dataset.sel(epoch=epoch)
        table.add_row(
            str(epoch),
            f"{float(row.learning_rate):g}",
            f"{float(row.train_loss):.4f}",
            _percent(float(row.train_error)),
            f"{float(row.test_loss):.4f}",
            _percent(float(row.test_error)),
        )
    last = dataset.isel(epoch=-1)
    return table, (
        f"after {len(epochs)} epochs: train loss {float(last.train_loss):.4f}, train error "
        f"{_percent(float(last.train_error))}, test error {_percent(float(last.test_error))}"
    )


_TABLES: dict[str, Callable[[xr.Dataset], tuple[Table, str]]] = {
    "lesion": _lesion,
    "lesion-curve": _lesion_curve,
    "reorder": _reorder,
    "training": _training,
}


def _table(texts: list[str], numbers: list[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in texts:
        table.add_column(name, no_wrap=name != "unit", overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _spread(error: xr.DataArray) -> tuple[str, str]:
    low, median, high = error.quantile([0.05, 0.5, 0.95]).values
    return _percent(median), f"{100 * low:.1f} to {_percent(high)}"


def _baseline_line(dataset: xr.Dataset, what: str) -> str:
    return f"baseline {_percent(float(dataset.baseline_error))}; {dataset.sizes['draw']} random {what} per row"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
