"""The tables of curvature."""

import xarray as xr
from rich.table import Table

from resprobe.showing.layout import empty_table


def curvature(dataset: xr.Dataset) -> tuple[list[Table], str]:
    """Make the table of eigenvalues, that of the blocks where there are some, and a summary."""
    table = empty_table(["rank"], ["eigenvalue", "residual"])
    table.add_column("converged")
    for rank in dataset["rank"].values:
        one = dataset.sel(rank=rank)
        table.add_row(str(rank), *_row(one.eigenvalue, one.residual, one.converged))
    table.add_row("lowest", *_row(dataset.lowest_eigenvalue, dataset.lowest_residual, dataset.lowest_converged))
    tables = [table]
    if "block" in dataset.dims:
        tables.append(_blocks(dataset))
    return tables, _summary(dataset)


def _blocks(dataset: xr.Dataset) -> Table:
    table = empty_table(["block"], ["parameters", "largest eigenvalue", "trace", "sem"])
    for name in dataset.block.values:
        block = dataset.sel(block=name)
        first = block.isel(rank=0)
        largest = _number(first.block_eigenvalue) + ("" if bool(first.block_converged) else " *")
        table.add_row(
            str(name),
            f"{int(block.block_num_params):,}",
            largest,
            _number(block.block_trace),
            _number(block.block_trace_sem),
        )
    return table


def _row(value: xr.DataArray, residual: xr.DataArray, converged: xr.DataArray) -> tuple[str, str, str]:
    return _number(value), f"{float(residual):.1e}", "yes" if bool(converged) else "no"


def _summary(dataset: xr.Dataset) -> str:
    sem = float(dataset.trace_sem)
    error = "exact" if sem == 0 else f"standard error {sem:.2g}"
    lines = [
        f"trace {_number(dataset.trace)} ({error}) over {int(dataset.num_params):,} parameters; loss "
        f"{_number(dataset.loss)}, norm of its gradient {_number(dataset.grad_norm)}",
        f"batch normalisation: {dataset.attrs['bn_mode']}; residual: norm of H v - lambda v",
    ]
    if "block" in dataset.dims and not bool(dataset.block_converged.isel(rank=0).all()):
        lines.append("* not converged")
    if not bool(dataset.eigenvalue.notnull().all()):
        lines.append("loss or Hessian is not finite, so that it has no eigenvalues")
    return "\n".join(lines)


def _number(value: xr.DataArray) -> str:
    return f"{float(value):.4g}"
