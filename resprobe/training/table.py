"""The table of a training."""

import numpy as np
import xarray as xr
from rich.table import Table

from resprobe.showing.layout import empty_table, percent


def training(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of a training's log and its summary."""
    table = empty_table(["epoch"], ["learning rate", "train loss", "train error", "test loss", "test error"])
    epochs = dataset.epoch.values
    shown = epochs if len(epochs) <= 12 else np.unique(np.linspace(1, len(epochs), 11).round().astype(int))
    for epoch in shown:
        row = dataset.sel(epoch=epoch)
        table.add_row(
            str(epoch),
            f"{float(row.learning_rate):g}",
            f"{float(row.train_loss):.4f}",
            percent(float(row.train_error)),
            f"{float(row.test_loss):.4f}",
            percent(float(row.test_error)),
        )
    last = dataset.isel(epoch=-1)
    return table, (
        f"after {len(epochs)} epochs: train loss {float(last.train_loss):.4f}, train error "
        f"{percent(float(last.train_error))}, test error {percent(float(last.test_error))}"
    )
