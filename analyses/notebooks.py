"""Runs the notebooks of the studies and stores what they show in them, to be read without running anything.

    python analyses/notebooks.py              run all, and write them with their outputs
    python analyses/notebooks.py lesions      only this one
    python analyses/notebooks.py --check      change nothing; fail where one would print something else than is stored

The same results and libraries give the same files, byte for byte.
"""

import argparse
import base64
import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image
from studies import ROOT, run_study

from resprobe.errors import ResprobeError
from resprobe.results.writing import whole_file

NOTEBOOKS = ROOT / "notebooks"
NAMES = tuple(sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")))
TIMEOUT = 120
# outputs that differ from run to run, or that a reader has no use for
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


@contextlib.contextmanager
def kernel() -> Iterator[KernelManager]:
    """Give a kernel that isn't started yet, and end it.

    Yields:
        The kernel, reached through files where the system has such sockets, which lie in a folder of their own.
    """
    with tempfile.TemporaryDirectory() as folder:
        address = {"transport": "ipc", "ip": str(Path(folder) / "kernel")} if os.name == "posix" else {}
        manager = KernelManager(**address)
        try:
            yield manager
        finally:
            if manager.has_kernel:
                manager.shutdown_kernel(now=True)


def executed(path: Path, folder: Path = NOTEBOOKS, manager: KernelManager | None = None) -> Any:
    """Run a notebook.

    Args:
        path: The notebook.
        folder: Where it is run; it reads `data/` and `../analyses` there.
        manager: A kernel to run it in, from which other notebooks' names are taken; by default one of its own.

    Returns:
        The notebook with its outputs, tidied.

    Raises:
        ResprobeError: If a cell fails, or writes to stderr.
    """
    notebook = nbformat.read(path, as_version=4)
    prepare = f"%reset -f\nimport os\nos.chdir({str(folder)!r})\nos.environ['COLUMNS'] = '80'"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(prepare, id="prepare"))
    with contextlib.nullcontext(manager) if manager else kernel() as used:
        client = NotebookClient(notebook, km=used, timeout=TIMEOUT)
        try:
            client.execute()
        except CellExecutionError as error:
            raise ResprobeError(f"{path.name}: a cell failed with {error.ename}: {error.evalue}") from error
        finally:
            if client.kc is not None:
                client.kc.stop_channels()
    del notebook.cells[0]
    return tidied(notebook, path)


def tidied(notebook: Any, path: Path) -> Any:
    """Leave nothing in a notebook that would be different when it is run again.

    Args:
        notebook: With its outputs; it is changed.
        path: Names its cells, and the notebook in errors.

    Returns:
        The same notebook.

    Raises:
        ResprobeError: If a cell has written to stderr.
    """
    notebook.metadata = nbformat.from_dict(_METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"{path.stem}-{number}", nbformat.from_dict({})
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.get("name") == "stderr":
                raise ResprobeError(
                    f"{path.name}: a cell wrote to stderr: {output.text.strip().splitlines()[0]}; mend that"
                )
            if "execution_count" in output:
                output.execution_count = count
            if "data" in output:
                output.data, output.metadata = _tidied_data(output.data), nbformat.from_dict({})
    return notebook


def _tidied_data(data: Any) -> Any:
    # xarray's HTML has random identifiers and needs styles that code hosts take away; its text says the same
    kinds = {kind: value for kind, value in data.items() if kind != "text/html"}
    kinds["text/plain"] = _ADDRESS.sub("", kinds["text/plain"])
    if "image/png" in kinds:
        kinds["image/png"] = _plain_png(kinds["image/png"])
    return nbformat.from_dict(kinds)


def _plain_png(encoded: str) -> str:
    """Write a PNG anew, without the names and times that its writer has put in."""
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
        plain = Image.frombytes("RGBA", image.size, image.convert("RGBA").tobytes()).convert("RGB")
    buffer = io.BytesIO()
    plain.save(buffer, format="png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def as_written(notebook: Any) -> str:
    """Give the text of a notebook's file."""
    split = nbformat.v4.rwbase.split_lines(nbformat.from_dict(notebook))
    return json.dumps(split, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def texts(notebook: Any) -> list[tuple[str, str]]:
    """List what each code cell shows in letters, with the number of its figures, by the cell's id."""

    def shown(cell: Any) -> Iterator[str]:
        for output in cell.outputs:
            data = output.get("data", {})
            yield output.get("text", "") or data.get("text/markdown", "") or data.get("text/plain", "")
            yield "[figure]\n" if "image/png" in data else ""

    return [(cell.id, "".join(shown(cell))) for cell in notebook.cells if cell.cell_type == "code"]


def differences(stored: Any, new: Any) -> list[str]:
    """Compare what two notebooks of the same cells show.

    Args:
        stored: As it is in the repository.
        new: As it is when it is run.

    Returns:
        A line for each cell that shows something else: the first line in which they differ.
    """
    lines = []
    for (name, old), (_, now) in zip(texts(stored), texts(new), strict=True):
        if old != now:
            pairs = [*zip(old.splitlines(), now.splitlines(), strict=False), ("less or more lines",) * 2]
            before, after = next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])
            lines.append(f"cell {name}: stored {before!r}, now {after!r}")
    return lines


def write_or_check(names: Sequence[str], *, check: bool) -> None:
    """Run notebooks, and store what they show or compare it with what is stored.

    Args:
        names: Of the notebooks, without `.ipynb`.
        check: Whether to compare and to write nothing.

    Raises:
        ResprobeError: If a name is unknown, a notebook fails, or, with `check`, one shows something else.
    """
    for name in names:
        if name not in NAMES:
            raise ResprobeError(f"notebook: expected one of {', '.join(NAMES)}, got {name!r}; choose among these")
    changed = []
    for name in names:
        path = NOTEBOOKS / f"{name}.ipynb"
        new = executed(path)
        if check:
            changed += [f"{name}, {line}" for line in differences(nbformat.read(path, as_version=4), new)]
        else:
            with whole_file(path) as temporary:
                temporary.write_text(as_written(new))
            print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size / 1e6:.2f} MB")
    if changed:
        raise ResprobeError(f"{'; '.join(changed)}; run python analyses/notebooks.py")
    if check:
        print(f"{len(names)} notebooks show what is stored")


def main() -> None:
    """Write the notebooks, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)} (default: all)")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail where a notebook shows something else"
    )
    arguments = parser.parse_args()
    write_or_check(arguments.names or NAMES, check=arguments.check)


if __name__ == "__main__":
    run_study(main)
