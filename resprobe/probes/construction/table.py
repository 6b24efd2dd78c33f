"""Tables of two networks' logits, and of a race."""

import json

import numpy as np
import xarray as xr
from rich.table import Table

from resprobe.showing.layout import empty_table, percent


def comparison(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of two networks' logits, one row for each mode, and its summary."""
    table = empty_table(["BN mode"], ["identical", "change", "of up to", "other class", "error", "before"])
    for mode in dataset.bn_mode.values:
        row = dataset.sel(bn_mode=mode)
        table.add_row(
            str(mode),
            str(int(row.num_identical)),
            f"{float(row.logit_change):.3g}",
            f"{float(row.largest_logit):.3g}",
            str(int(row.num_changed)),
            percent(float(row.error)),
            percent(float(row.reference_error)),
        )
    first = dataset.isel(bn_mode=0)
    settings = json.loads(dataset.attrs["settings"])
    name = settings.get("deepened", "the other network")
    if name.startswith("plain") and "statistics" in settings:  # a residual net's new units store nothing
        name += f" ({settings['statistics']})"
    known = ", stored statistics" if str(first.bn_mode.item()) == "running" else ""
    number = int(dataset.num_images)
    if int(first.num_identical) == number:
        return table, f"{name}{known}: same to the bit on all {number} images"
    return table, (
        f"{name}{known}: logits differ by up to {float(first.logit_change):.2g}, same to the bit on "
        f"{int(first.num_identical)} of {number} images"
    )


def race(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of networks that were trained side by side: before, at their worst, and at the end."""
    table = empty_table(["network"], ["layers", "before", "worst", "error", "loss", "test error"])
    for index in range(dataset.sizes["net"]):
        row = dataset.isel(net=index)
        before = float(row.train_error[0])
        table.add_row(
            str(row.net.item()),
            str(row.layers.item()),
            "-" if np.isnan(before) else percent(before),
            percent(float(row.train_error.isel(epoch=slice(1, None)).max())),
            percent(float(row.train_error[-1])),
            f"{float(row.train_loss[-1]):.3g}",
            percent(float(row.test_error[-1])),
        )
    return table, (
        f"after {int(dataset.epoch[-1])} epochs, on the training images; before: the error before the first epoch, "
        "worst: the largest after any"
    )
