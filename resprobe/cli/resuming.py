"""What the commands say of measurements that can be interrupted and gone on with."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr

_SECONDS_BEFORE_ESTIMATE = 3.0
_SECONDS_NOT_WORTH_A_WORD = 20.0

Tell = Callable[[str], None]


@contextmanager
def told(out: Path, resuming: dict[str, Any], tell: Tell, *, overwrite: bool = False) -> Iterator[dict[str, Any]]:
    """Say with what a measurement goes on, and after an interruption what of it is kept.

    Args:
        out: The result's file.
        resuming: What `find_or_compute` gives to a resumable analysis, `resume` and `keep`; else nothing.
        tell: Writes a line for the user.
        overwrite: Whether the command replaces what is there, so that another one must go on with it.

    Yields:
        What to give to the analysis.

    Raises:
        KeyboardInterrupt: As it came.
    """
    if not resuming:
        yield {}
        return
    kept: xr.Dataset | None = resuming["resume"]
    if kept is not None:
        tell(f"{out} holds {_progress(kept)}; going on with it")

    def keep(part: "xr.Dataset") -> None:
        nonlocal kept
        resuming["keep"](part)
        kept = part

    try:
        yield {"resume": resuming["resume"], "keep": keep}
    except KeyboardInterrupt:
        if kept is not None:
            tell(f"{out} keeps {_progress(kept)}; {_command(overwrite)} goes on with it")
        raise


def with_estimate(update: Callable[..., None], tell: Tell, *, overwrite: bool = False) -> Callable[..., None]:
    """Say once, a few seconds after the start, how long the whole will take."""
    start: tuple[float, int] | None = None
    said = False

    def told_update(done: int, total: int | None) -> None:
        nonlocal start, said
        update(done, total)
        if said or total is None:
            return
        if start is None:
            start = time.monotonic(), done
        seconds = time.monotonic() - start[0]
        if seconds > _SECONDS_BEFORE_ESTIMATE:
            said = True
            whole = seconds * (total - start[1]) / (done - start[1])
            if whole > _SECONDS_NOT_WORTH_A_WORD:
                length = f"{whole / 60:.0f} min" if whole > 90 else f"{whole:.0f} s"
                tell(f"this takes about {length}; Ctrl-C keeps what is done, and {_command(overwrite)} goes on with it")

    return told_update


def _command(overwrite: bool) -> str:
    return "the same command without --overwrite" if overwrite else "the same command"


def _progress(part: "xr.Dataset") -> str:
    return f"{int(part['done'].sum()):,} of {part['done'].size:,} points"
