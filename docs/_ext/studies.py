"""The notebooks of the studies as pages: copied with the outputs that are stored in them, and run by nobody."""

from pathlib import Path

from sphinx.application import Sphinx

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PAGES = Path(__file__).parents[1] / "studies"


def copy_notebooks(*_: object) -> None:
    """Lay a copy of each notebook beside the page that lists them, and take away those that are no more."""
    wanted = {path.name: path for path in NOTEBOOKS.glob("*.ipynb")}
    for page in PAGES.glob("*.ipynb"):
        if page.name not in wanted:
            page.unlink()
    for name, path in wanted.items():
        # a page lies one folder deeper than its notebook
        text = path.read_text().replace("](../", "](../../")
        page = PAGES / name
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Copy before Sphinx looks for pages."""
    app.connect("config-inited", copy_notebooks)
    return {"parallel_read_safe": True}
