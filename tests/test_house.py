"""The rules of the house that no linter knows: who registers hooks, what shows a result, which checks are run."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "resprobe"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _registers_hooks(module: Path) -> bool:
    calls = (node.func for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Attribute) and re.fullmatch(r"register_\w*hook", call.attr) for call in calls)


def test_hooks_are_registered_in_one_file():
    assert [module.relative_to(PACKAGE).as_posix() for module in _modules() if _registers_hooks(module)] == [
        "units/hooks.py"
    ]


def test_the_contract_of_tables_and_figures_names_every_one_of_them():
    (sources,) = [contract["source_modules"] for contract in CONTRACTS if contract["type"] == "forbidden"]
    named = [re.compile(source.replace(".", r"\.").replace("*", r"\w+")) for source in sources]
    showing = [
        ".".join(module.relative_to(ROOT).with_suffix("").parts)
        for folder in ("probes", "training")
        for module in (PACKAGE / folder).rglob("*.py")
        if re.match(r"fields|tables?($|_)|figures?($|_)", module.stem)
    ]
    assert len(showing) > 30
    assert [name for name in showing if not any(pattern.fullmatch(name) for pattern in named)] == []


@pytest.mark.parametrize("module", ["resprobe", "resprobe.cli.app", "resprobe.results", "resprobe.plots"])
def test_torch_is_not_imported_before_it_is_needed(module):
    code = f"import sys, {module}; print('torch' in sys.modules, 'llvmlite' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_a_commit_is_checked_as_the_project_is():
    before_commits = re.findall(r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    (line,) = re.findall(r"^for check in (.+); do$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert before_commits == re.findall(r'"([^"]+)"', line)
