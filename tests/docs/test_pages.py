"""The documentation has a place for every public name, analysis and command, and shows results that are there."""

import re
from collections import Counter

import typer

import resprobe
from resprobe.cli.app import app
from resprobe.results.catalogue import CATALOGUE
from tests.docs.pages import DOCS, PAGES, ROOT, directives

_NAME = re.compile(r"^\.\. (?:auto\w+|py:\w+):: (resprobe\.[\w.]+)$", re.MULTILINE)


def public_names():
    """Every public name, once: `resprobe.Unit` is also `resprobe.units.Unit`."""
    modules = [name for name in resprobe.__all__ if type(getattr(resprobe, name)).__name__ == "module"]
    names = {f"resprobe.{name}" for name in set(resprobe.__all__) - set(modules)}
    return names | {
        f"resprobe.{module}.{name}"
        for module in modules
        for name in getattr(resprobe, module).__all__
        if f"resprobe.{name}" not in names or getattr(resprobe, name) is not getattr(getattr(resprobe, module), name)
    }


def test_every_public_name_is_documented_once():
    documented = Counter(name for page in PAGES for name in _NAME.findall(page.read_text()))
    assert list(directives("figure-functions")) == ["reference/figures.md"]
    documented.update(f"resprobe.plots.{name}" for name in resprobe.plots.__all__)
    assert public_names() - set(documented) == set()
    assert [name for name, count in documented.items() if count > 1] == []


def test_every_analysis_has_a_page_with_what_its_result_holds():
    pages = {f"analyses/{analysis}.md": [analysis] for analysis in CATALOGUE}
    assert directives("result-fields") == pages
    assert set(pages) <= set(directives("result-figure"))


def test_every_page_of_an_analysis_has_the_same_parts():
    expected = ["Definition", "Cost", "Command", "Call", "Variables", "Figure", "How to read it", "What misleads"]
    for analysis in CATALOGUE:
        text = re.sub(
            r"^```.*?^```$", "", (DOCS / f"analyses/{analysis}.md").read_text(), flags=re.MULTILINE | re.DOTALL
        )
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == expected, analysis


def test_options_are_those_of_commands_that_exist():
    commands = set(typer.main.get_command(app).commands)
    shown = {name for names in directives("command-options").values() for name in names}
    assert shown <= commands
    # these measure nothing, and stand in the reference alone
    assert commands - shown == {"inspect", "plot"}
    assert list(directives("command-reference")) == ["reference/commands.md"]


def test_figures_are_those_of_results_that_exist():
    for page, arguments in directives("result-figure").items():
        for path in " ".join(arguments).split():
            assert resprobe.results.open(ROOT / path).attrs["analysis"] in CATALOGUE, page
