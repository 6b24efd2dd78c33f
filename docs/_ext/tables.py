"""A docutils table from rows of inline nodes."""

from collections.abc import Sequence

from docutils import nodes


def table(
    heads: Sequence[str], rows: Sequence[Sequence[Sequence[nodes.Node]]], widths: Sequence[int], kind: str
) -> nodes.table:
    """Make a table.

    Args:
        heads: The columns' titles.
        rows: For each row and column the inline nodes of a paragraph.
        widths: Relative widths of the columns.
        kind: A class for its style.

    Returns:
        The table's node.
    """
    group = nodes.tgroup(cols=len(heads))
    group.extend(nodes.colspec(colwidth=width) for width in widths)
    head = nodes.thead("", _row([[nodes.Text(text)] for text in heads]))
    group.extend([head, nodes.tbody("", *map(_row, rows))])
    return nodes.table("", group, classes=[kind])


def _row(cells: Sequence[Sequence[nodes.Node]]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))
