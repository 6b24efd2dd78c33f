"""The table of costs."""

import numpy as np
import xarray as xr
from rich.table import Table

from resprobe.showing.layout import empty_table


def costs(dataset: xr.Dataset) -> tuple[Table, str]:
    """Make the table of costs, one row for each network, beside the papers' numbers, and its summary."""
    networks = (
        [dataset.sel(checkpoint=name) for name in dataset.checkpoint.values]
        if "checkpoint" in dataset.dims
        else [dataset.assign_coords(checkpoint=dataset.attrs["architecture"] or "model")]
    )
    with_papers = "paper_num_params" in dataset
    papers = ["paper", "diff"] if with_papers else []
    table = empty_table(["network"], ["params", *papers, "mult-adds", *papers, "memory", "time"])
    for network in networks:
        table.add_row(
            str(network.checkpoint.item()),
            *_beside_paper(network, "num_params", 1e6),
            *_beside_paper(network, "multiply_adds", 1e9),
            _number(float(network.activation_bytes) / 1e6),
            _number(1e3 * float(network.seconds_per_image)),
        )
    lines = [
        "millions of parameters, billions of multiply-adds; per image: megabytes that a training step keeps until the",
        "backward pass, milliseconds of a forward pass",
    ]
    if with_papers:
        gaps = [(name, _largest_gap(dataset, name)) for name in ("num_params", "multiply_adds")]
        words = [f"{name.replace('_', '-').replace('num-', '')} {gap}" for name, gap in gaps if gap]
        lines.append(f"largest differences from the papers: {'; '.join(words)}")
    return table, "\n".join(lines)


def _beside_paper(network: xr.Dataset, name: str, unit: float) -> list[str]:
    measured = float(network[name])
    cells = [_number(measured / unit)]
    if f"paper_{name}" in network:
        paper = float(network[f"paper_{name}"])
        cells += ["", ""] if np.isnan(paper) else [_number(paper / unit), f"{measured / paper - 1:+.1%}"]
    return cells


def _largest_gap(dataset: xr.Dataset, name: str) -> str:
    gap = (dataset[name] / dataset[f"paper_{name}"] - 1).dropna("checkpoint")
    if not gap.size:
        return ""
    worst = gap.isel(checkpoint=int(abs(gap).values.argmax()))
    return f"{float(worst):+.1%} ({worst.checkpoint.item()})"


def _number(value: float) -> str:
    """Write three digits, without an exponent."""
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.3f}" if value < 1 else f"{value:.{decimals}f}"
