"""What the tables share."""

from rich.table import Table


def empty_table(texts: list[str], numbers: list[str]) -> Table:
    """Make a table with columns of texts, then of numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in texts:
        table.add_column(name, no_wrap=name != "unit", overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def percent(fraction: float) -> str:
    """Write a fraction in percent."""
    return f"{100 * fraction:.1f} %"
