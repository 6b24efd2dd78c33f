"""Formulas as MathML, which browsers draw themselves: no script and no font has to be fetched."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

_LOGGER = logging.getLogger(__name__)


def _write(self: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    block = isinstance(node, nodes.math_block)
    formula = node.astext()
    try:
        # names of variables come through with their escapes
        written = convert(formula, display="block" if block else "inline").replace(r"\_", "_")
    except Exception as error:
        _LOGGER.warning("formula %r: %s %s", formula, type(error).__name__, error, location=node)
        raise nodes.SkipNode from error
    if "\\" in written:
        _LOGGER.warning("formula %r: expected MathML, got commands that are left in it", formula, location=node)
    self.body.append(f'<div class="math">{written}</div>\n' if block else written)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer the renderer and choose it."""
    app.add_html_math_renderer("mathml", inline_renderers=(_write, None), block_renderers=(_write, None))
    app.connect("config-inited", lambda _, config: setattr(config, "html_math_renderer", "mathml"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
