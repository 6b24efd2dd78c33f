"""Every link within the project leads somewhere, and every page is reached."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, WRITTEN

_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def target(page: Path, link: str) -> Path:
    """The file that a link of a page leads to; the studies' pages are the notebooks."""
    path = (page.parent / link).resolve()
    return ROOT / "notebooks" / path.name if path.parent == DOCS / "studies" and path.suffix == ".ipynb" else path


def broken(page: Path, text: str) -> list[str]:
    found = []
    for link in _LINK.findall(_CODE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        path = target(page, name) if name else page
        # as GitHub and MyST write them
        anchors = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in _HEADING.findall(text_of(path))]
        if not path.exists() or (anchor and anchor not in anchors):
            found.append(link)
    return found


def text_of(path: Path) -> str:
    return path.read_text() if path.suffix == ".md" and path.is_file() else ""


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    assert broken(page, page.read_text()) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# A head, *and* more\n")
    links = "[a](other.md#a-head-and-more) [b](other.md#no) [c](none.md) [d](https://example.org) `[e](no)` [f](#here)"
    text = f"{links}\n# Here"
    page.write_text(text)
    assert broken(page, text) == ["other.md#no", "none.md"]


def test_every_page_is_in_a_table_of_contents():
    listed = {DOCS / "index.md"}
    for page in PAGES:
        for block in re.findall(r"^```{toctree}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            files = [page.parent / f"{name}.md" for name in names]
            notebooks = [target(page, f"{name}.ipynb") for name in names]
            assert [
                name for name, *paths in zip(names, files, notebooks, strict=True) if not any(map(Path.exists, paths))
            ] == []
            listed |= {*files, *notebooks}
    assert set(PAGES) - listed == set()
    assert set((ROOT / "notebooks").glob("*.ipynb")) - listed == set()
