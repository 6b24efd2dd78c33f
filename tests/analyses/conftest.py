"""How the scripts of analyses/ and their notebooks are run."""

import contextlib
import io
import os
import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPTS, NOTEBOOKS = ROOT / "analyses", ROOT / "notebooks"
# the client of a notebook's kernel leaves loops and sockets to the garbage collector
CLIENT_WARNINGS = ("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning")


def pytest_collection_modifyitems(items):
    for item in items:
        if "run_notebook" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings(*CLIENT_WARNINGS))


@contextlib.contextmanager
def as_for_a_script():
    """Let the modules of analyses/ be found as Python does for a script, and undo what one changes in a process."""
    modules, environment, threads = set(sys.modules), dict(os.environ), torch.get_num_threads()
    try:
        with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng([]):
            patch.syspath_prepend(str(SCRIPTS))
            patch.chdir(ROOT)
            yield patch
    finally:
        torch.set_num_threads(threads)
        os.environ.clear()
        os.environ.update(environment)
        for name in set(sys.modules) - modules:
            if SCRIPTS in Path(getattr(sys.modules[name], "__file__", None) or ".").parents:
                del sys.modules[name]


@pytest.fixture(scope="session")
def run_script():
    """Run a script of analyses/ as its own command line would, but in this process; gives what it printed."""

    def run(name, *options):
        script = SCRIPTS / f"{name}.py"
        with as_for_a_script() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
            patch.setattr(sys, "argv", [str(script), *map(str, options)])
            runpy.run_path(str(script), run_name="__main__")
        return printed.getvalue()

    return run


@pytest.fixture
def imported():
    """Import a module of analyses/ as one of its scripts does."""
    with as_for_a_script():
        yield __import__


@pytest.fixture
def error_of(run_script):
    """Run a script on options that it refuses; gives the one line that it ends with."""

    def run(name, *options):
        with pytest.raises(SystemExit) as exit_:
            run_script(name, "--quick", *options)
        # what Python prints, before it exits with 1
        message = str(exit_.value)
        assert message.startswith(f"{name}.py: error: ")
        assert "\n" not in message
        return message

    return run


@pytest.fixture(scope="session")
def quick_study(run_script, tmp_path_factory):
    """Run a script of analyses/ with --quick; gives the folder that it has filled, and what it printed."""

    def run(name):
        folder = tmp_path_factory.mktemp(name)
        options = ["--out", folder / "data", "--figures", folder, "--work", folder / "work"]
        return folder, run_script(name, "--quick", *options)

    return run


@pytest.fixture(scope="session")
def kernel():
    """One kernel for all notebooks of a process: starting it and importing what they use takes most of their time."""
    with as_for_a_script():
        notebooks = __import__("notebooks")
    with notebooks.kernel() as manager:
        yield manager


@pytest.fixture
def run_notebook(kernel, imported, tmp_path):
    """Run a notebook beside some result files; gives its number of figures and its text."""

    def run(name, files):
        folder = tmp_path / "notebooks"
        (folder / "data").mkdir(parents=True)
        (tmp_path / "analyses").symlink_to(SCRIPTS)
        for file in files:
            shutil.copy(file, folder / "data")
        notebooks = imported("notebooks")
        shown = "".join(
            text for _, text in notebooks.texts(notebooks.executed(NOTEBOOKS / f"{name}.ipynb", folder, kernel))
        )
        return shown.count("[figure]"), shown

    return run
