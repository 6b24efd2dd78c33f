"""The directive `result-fields`: what the result of an analysis holds, read from its `fields.py`.

    ```{result-fields} lesion
    ```
"""

from collections.abc import Mapping

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from tables import table

from resprobe.results import SCHEMA, Field

_KINDS = {"int": "integer", "float": "float", "bool": "true or false", "text": "text", "count": "integer or text"}
_UNITS = {"1": "fraction"}


class ResultFields(SphinxDirective):
    """Two tables, of the variables and of the coordinates."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the tables."""
        analysis = self.arguments[0]
        if analysis not in SCHEMA:
            raise self.error(f"result-fields: expected one of {', '.join(SCHEMA)}, got {analysis!r}")
        fields = SCHEMA[analysis]
        return [*self._table("variable", fields.variables), *self._table("coordinate", fields.coords)]

    def _table(self, title: str, fields: Mapping[str, Field]) -> list[nodes.Node]:
        rows = [
            [
                [nodes.literal(text=name)],
                _dimensions(field),
                [nodes.Text(_kind(field))],
                [nodes.Text(field.long_name + ("" if field.required else " (where it was measured)"))],
            ]
            for name, field in fields.items()
        ]
        return [table([title, "dimensions", "kind", "meaning"], rows, widths=[24, 22, 14, 40])] if rows else []


def _dimensions(field: Field) -> list[nodes.Node]:
    found: list[nodes.Node] = []
    for dims in filter(None, (field.dims, *field.also)):
        found += [nodes.Text(" or ")] if found else []
        found.append(nodes.literal(text=", ".join(dims)))
    return found


def _kind(field: Field) -> str:
    unit = _UNITS.get(field.units, field.units) if field.units else ""
    return ", ".join(filter(None, [_KINDS[field.kind], unit]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("result-fields", ResultFields)
    return {"parallel_read_safe": True}
