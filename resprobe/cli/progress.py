"""A progress bar on stderr, with rate and time left."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0

Update = Callable[..., None]
"""Called with what is done, the total (None where unknown) and, where there is one, a line of text."""


@contextmanager
def progress_bar(title: str, unit: str, *, quiet: bool) -> Iterator[Update | None]:
    """Show how far something is, until the block ends.

    On a terminal it is a bar; elsewhere (a log file, a batch job) a line every ten seconds.

    Args:
        title: What is being done.
        unit: What is counted, in the plural.
        quiet: Show nothing.

    Yields:
        The function to call, or None if nothing is to be shown.
    """
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as bar:
            task = bar.add_task(title, total=None, rate="")

            def update(done: int, total: int | None, text: str = "") -> None:
                speed = bar.tasks[0].speed
                rate = f"{speed:,.0f} {unit}/s" if speed else ""
                bar.update(task, completed=done, total=total, rate=rate, description=f"{title}  {text}".rstrip())

            yield update
    else:
        yield _line_printer(title, unit)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _line_printer(title: str, unit: str) -> Update:
    start = last = time.monotonic()

    def update(done: int, total: int | None, text: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _SECONDS_BETWEEN_LINES:
            return
        last = now
        rate = done / (now - start)
        parts = [title, text, f"{done:,} {unit}" if total is None else f"{done / total:.0%}"]
        parts.append(f"{rate:,.0f} {unit}/s")
        if total is not None and rate > 0:
            parts.append(f"{(total - done) / rate:.0f} s left")
        print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)

    return update
