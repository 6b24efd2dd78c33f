"""The directive `result-figure PATH...`: results of the repository, drawn as `resprobe plot` draws them.

Its paths are those from the root of the repository, its text describes the figure to those who can't see it.
"""

import hashlib
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import resprobe
from resprobe.errors import ResprobeError

ROOT = Path(__file__).parents[2]
DRAWN = Path(__file__).parents[1] / "_figures"


class ResultFigure(SphinxDirective):
    """A figure of one result, or of several together."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Draw the figure, if it isn't drawn already."""
        paths = [ROOT / name for name in self.arguments[0].split()]
        for path in paths:
            self.env.note_dependency(str(path))
        try:
            results = [resprobe.results.open(path) for path in paths]
            figure = resprobe.plots.plot(*results)
            file = DRAWN / f"{hashlib.sha256(self.arguments[0].encode()).hexdigest()[:8]}-{paths[0].stem}.png"
            resprobe.plots.save_figure(figure, file)
        except (ResprobeError, OSError) as error:
            raise self.error(f"result-figure: {error}") from error
        described = " ".join(self.content) or "; ".join(result.attrs["title"] for result in results)
        image = nodes.image(uri=f"/{DRAWN.name}/{file.name}", alt=described)
        return [nodes.container("", image, classes=["result-figure"])]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive, and make the folder that it draws into."""
    DRAWN.mkdir(exist_ok=True)
    app.add_directive("result-figure", ResultFigure)
    return {"parallel_read_safe": True}
