"""Sentences that several errors share."""

from collections.abc import Sequence
from difflib import get_close_matches


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
