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


class ResultFields(SphinxDirective):
    """Two tables, of the variables and of the coordinates."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the tables."""
        analysis = self.arguments[0]
        if analysis not in SCHEMA:
            raise self.error(f"result-fields: expected one of {', '.join(SCHEMA)}, got {analysis!r}")
        fields = SCHEMA[analysis]
        return [*_table("variable", fields.variables), *_table("coordinate", fields.coords)]


def _table(title: str, fields: Mapping[str, Field]) -> list[nodes.Node]:
    rows = [
        [
            [nodes.literal(text=name), nodes.inline("", _dims(field), classes=["dims"])],
            [nodes.Text(field.long_name + ("" if field.required else ", where it was asked for"))],
            [nodes.Text(_kind(field))],
        ]
        for name, field in fields.items()
    ]
    return [table([title, "meaning", "kind"], rows, widths=[32, 48, 20], kind="fields")] if rows else []


def _dims(field: Field) -> str:
    return " or ".join(f"({', '.join(dims)})" for dims in filter(None, (field.dims, *field.also)))


def _kind(field: Field) -> str:
    # what has no dimension has the unit 1
    return _KINDS[field.kind] + (f", {field.units}" if field.units not in ("", "1") else "")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("result-fields", ResultFields)
    return {"parallel_read_safe": True}
