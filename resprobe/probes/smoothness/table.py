"""The table of smoothness."""

import numpy as np
import xarray as xr
from rich.table import Table

from resprobe.showing.layout import empty_table


def smoothness(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of smoothness, one row for each network and mode, and its summary."""
    several = "checkpoint" in dataset.dims
    table = empty_table(
        [*(["network"] if several else []), "BN mode"], ["loss", "range", "gradient", "beta", "lowest to highest"]
    )
    for network in [dataset.sel(checkpoint=name) for name in dataset.checkpoint.values] if several else [dataset]:
        for mode in network.bn_mode.values:
            row = network.sel(bn_mode=mode)
            if (row.num_nonfinite < 0).all():
                continue
            beta = row.effective_beta.values
            medians = (row.loss.isel(step=0), row.loss_range, row.grad_norm, row.effective_beta)
            table.add_row(
                *([str(network.checkpoint.item())] if several else []),
                str(mode),
                *(_number(float(np.median(values))) for values in medians),
                f"{_number(beta.min())} to {_number(beta.max())}",
            )
    return table, _summary(dataset)


def _summary(dataset: xr.Dataset) -> str:
    steps = dataset.step.values
    number, images = dataset.sizes["batch"], dataset.batch_images.values
    sizes = f"{images[0]}" if len(set(images)) == 1 else f"{images.min()} to {images.max()}"
    lines = [
        f"medians over {number} batch{'es' if number > 1 else ''} of {sizes} images; steps {steps[1]:g} to "
        f"{steps[-1]:g}, rule {dataset.attrs['step_rule']}",
        "beta: largest change of the gradient for each unit that the weights move",
    ]
    bad = int(dataset.num_nonfinite.clip(min=0).sum())
    if bad:
        lines.append(f"{bad} losses or gradients along the way are not finite; they count as such in range and beta")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.3g}"
