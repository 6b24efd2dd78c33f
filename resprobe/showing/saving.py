"""Figures as files."""

import os
from pathlib import Path

from matplotlib.figure import Figure

from resprobe.errors import ResprobeError
from resprobe.results.writing import whole_file
from resprobe.showing.theme import themed


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure in the format that the suffix names, at 150 dots per inch; a file there is replaced.

    Args:
        figure: A figure.
        path: Where to write; missing parent folders are made, and the file appears only when it is complete.

    Returns:
        The path.

    Raises:
        ResprobeError: The suffix names no format that matplotlib writes, or the folder can't be written.
    """
    path = Path(path)
    format_name = path.suffix[1:].lower()
    formats = sorted(figure.canvas.get_supported_filetypes())
    if format_name not in formats:
        raise ResprobeError(
            f"{path}: expected one of the suffixes {', '.join(formats)}, got {path.suffix or 'none'}; "
            "choose another name for the figure"
        )
    with themed(), whole_file(path) as temporary:
        figure.savefig(temporary, format=format_name, dpi=150)
    return path
