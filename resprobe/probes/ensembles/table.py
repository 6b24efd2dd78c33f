"""The table of what Veit et al. say beside what was measured."""

from collections.abc import Sequence

from rich.table import Table

from resprobe.probes.ensembles.ensembles import Statement


def statements(rows: Sequence[Statement], *, residual: str, plain: str) -> Table:
    """Make the table of statements, which wraps to the width of the terminal.

    Args:
        rows: From `resprobe.probes.ensembles.ensembles.ensemble_statements`.
        residual: Name of the residual network.
        plain: Name of the plain one.

    Returns:
        The table.
    """
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 1, 0))
    for name, ratio in (
        ("statement", 5),
        ("Veit et al.", 4),
        (f"residual: {residual}", 5),
        (f"plain: {plain}", 5),
        ("holds", 2),
    ):
        table.add_column(name, ratio=ratio, overflow="fold")
    for row in rows:
        table.add_row(row.text, row.paper, row.residual, row.plain, "yes" if row.holds else "no")
    return table
