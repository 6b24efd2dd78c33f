"""Options of the command line, read from the program itself.

The directive `command-options COMMAND` shows a command's usage and its own options; `command-reference` shows every
command, and the options that all analyses take once.
"""

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import typer
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from tables import table

from resprobe.cli.app import app as program
from resprobe.cli.options import Common

COMMANDS: dict[str, Any] = typer.main.get_command(program).commands
SHARED = {field.name for field in fields(Common)} - {"ckpt"}
PAGE, ANCHOR = "reference/commands", "options-of-every-analysis"


class CommandOptions(SphinxDirective):
    """How a command is called, and what it takes."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the usage and the table."""
        name = self.arguments[0]
        if name not in COMMANDS:
            raise self.error(f"command-options: expected one of {', '.join(COMMANDS)}, got {name!r}")
        return [*_usage(name), _options(_own(name)), *_note(name, to=None if self.env.docname == PAGE else PAGE)]


class CommandReference(SphinxDirective):
    """All commands with all their options."""

    def run(self) -> list[nodes.Node]:
        """Make a section for each command, and one for what they share."""
        sections = [self._section(name, f"resprobe {name}", _described(name)) for name in COMMANDS]
        analyses = [name for name in COMMANDS if _shares(name)]
        shared = _options(record for record in _records(analyses[0]) if record[0] in SHARED)
        return [*sections, self._section(ANCHOR, "Options of every analysis", [shared])]

    def _section(self, name: str, title: str, content: list[nodes.Node]) -> nodes.section:
        section = nodes.section("", nodes.title("", title), *content, ids=[nodes.make_id(name)], names=[name])
        self.state.document.note_explicit_target(section)
        return section


def _described(name: str) -> list[nodes.Node]:
    texts = (COMMANDS[name].help or "").split("\n\n")
    paragraphs = [nodes.paragraph("", "", *_words(" ".join(text.split()))) for text in texts]
    return [*paragraphs, *_usage(name), _options(_own(name)), *_note(name, to=None)]


def _usage(name: str) -> list[nodes.Node]:
    pieces = COMMANDS[name].collect_usage_pieces(_context(name))
    required = [option for _, option, _, parameter in _records(name) if parameter.required]
    text = " ".join(["resprobe", name, *required, *pieces])
    return [nodes.literal_block(text, text, language="none")]


def _note(name: str, to: str | None) -> list[nodes.Node]:
    """Point to the options that a command shares with the others, if it does."""
    if not _shares(name):
        return []
    words = nodes.inline("", "options of every analysis")
    if to is None:
        link: nodes.Node = nodes.reference("", "", words, internal=True, refid=ANCHOR)
    else:
        link = addnodes.pending_xref(
            "", words, refdomain="std", reftype="ref", reftarget=ANCHOR, refexplicit=True, refwarn=True
        )
    return [nodes.paragraph("", "", nodes.Text("And the "), link, nodes.Text("."))]


def _shares(name: str) -> bool:
    return {record[0] for record in _records(name)} >= SHARED


def _own(name: str) -> list[tuple[str, str, str, Any]]:
    skipped = SHARED if _shares(name) else set()
    return [record for record in _records(name) if record[0] not in skipped]


def _options(records: Iterable[tuple[str, str, str, Any]]) -> nodes.table:
    rows = [[[nodes.literal(text=option)], _words(meaning)] for _, option, meaning, _ in records]
    return table(["option", "meaning"], rows, widths=[30, 70], kind="options")


def _words(text: str) -> list[nodes.Node]:
    """Set options apart, whose `--` would be taken for a dash."""
    parts = re.split(r"(--[a-z][a-z-]*)", text)
    return [nodes.literal(text=part) if part.startswith("--") else nodes.Text(part) for part in parts if part]


def _records(name: str) -> list[tuple[str, str, str, Any]]:
    """List a command's options: the parameter's name, how it is written, its help, the parameter."""
    context = _context(name)
    found = []
    for parameter in COMMANDS[name].params:
        record = parameter.get_help_record(context)
        if record is not None:
            found.append((parameter.name, *record, parameter))
    return found


def _context(name: str) -> Any:
    return COMMANDS[name].make_context(f"resprobe {name}", [], resilient_parsing=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("command-options", CommandOptions)
    app.add_directive("command-reference", CommandReference)
    return {"parallel_read_safe": True}
