"""The documentation's pages, read as they are written."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = ("_build", "_figures", "jupyter_execute")
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).parts[0] not in GENERATED)
WRITTEN = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]


def directives(name: str) -> dict[str, list[str]]:
    """What the pages give to a directive, by page."""
    pattern = re.compile(rf"^```{{{name}}} ?(.*)$", re.MULTILINE)
    found = {path.relative_to(DOCS).as_posix(): pattern.findall(path.read_text()) for path in PAGES}
    return {page: arguments for page, arguments in found.items() if arguments}
