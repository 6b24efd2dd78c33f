"""Lists of the functions that every analysis adds to, read from the catalogue and the package.

The directive `analysis-functions` lists those that measure, with a link to their pages; `figure-functions` holds
the docstrings of those that draw.
"""

import inspect

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import resprobe
from resprobe.results.catalogue import CATALOGUE, name_of


class AnalysisFunctions(SphinxDirective):
    """A line for each public function that is an analysis."""

    def run(self) -> list[nodes.Node]:
        """Write the list."""
        lines = []
        for analysis in CATALOGUE:
            name = name_of(analysis)
            if name in resprobe.__all__:
                said = (inspect.getdoc(getattr(resprobe, name)) or "").splitlines()[0]
                lines.append(f"- {{py:func}}`resprobe.{name}`: {said} See [{analysis}](../analyses/{analysis}.md).")
        return self.parse_text_to_nodes("\n".join(lines))


class FigureFunctions(SphinxDirective):
    """The docstrings of `resprobe.plots`, in the order of the catalogue."""

    def run(self) -> list[nodes.Node]:
        """Write the list."""
        first = ["plot", "save_figure", *map(name_of, CATALOGUE)]
        names = first + [name for name in resprobe.plots.__all__ if name not in first]
        lines = [f".. autofunction:: resprobe.plots.{name}" for name in names]
        return self.parse_text_to_nodes("\n".join(["```{eval-rst}", *lines, "```"]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("analysis-functions", AnalysisFunctions)
    app.add_directive("figure-functions", FigureFunctions)
    return {"parallel_read_safe": True}
