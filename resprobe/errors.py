"""The one exception that resprobe raises for bad input, the one warning, and sentences that several errors share."""

from collections.abc import Sequence
from difflib import get_close_matches


class ResprobeError(Exception):
    """Input that can't be used: the message is one line that says what, expected, got, and what to do."""


class ResprobeWarning(UserWarning):
    """Something that the user should know, though the analysis goes on: one line."""


def unknown_name(what: str, name: str, known: Sequence[str]) -> str:
    """Word the error for a name that isn't there, with the nearest names or the whole range.

    Args:
        what: The kind of thing, such as `unit`.
        name: The name that was asked for.
        known: The names that there are, in order.

    Returns:
        One line.
    """
    close = get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "choose one of them"
    span = ", ".join(known) if len(known) <= 6 else f"{', '.join(known[:3])} ... {known[-1]} ({len(known)})"
    return f"{what}: expected one of {span}, got {name!r}; {hint}"


def first_line(error: Exception) -> str:
    """Give the first line of an exception's message, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
