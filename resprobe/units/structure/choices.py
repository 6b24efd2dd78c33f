"""Units that the caller names, for models whose structure can't be read."""

from collections.abc import Sequence
from itertools import permutations

from torch import nn

from resprobe.errors import ResprobeError, unknown_name
from resprobe.units.structure.graphs import is_inside
from resprobe.units.structure.spans import HookedDeletion

SHORTCUTS = ("identity", "pad", "outside", "none")


def check_shortcut(model: nn.Module, names: Sequence[str], shortcut: str) -> str:
    """Refuse names and shortcuts that say nothing about a model.

    Args:
        model: The model.
        names: The modules that are its units.
        shortcut: Where their shortcut is.

    Returns:
        The shortcut.

    Raises:
        ResprobeError: If the shortcut is of no known kind, there is no such module, or the modules overlap.
    """
    if shortcut not in SHORTCUTS:
        raise ResprobeError(f"shortcut: expected one of {', '.join(SHORTCUTS)}, got {shortcut!r}; choose one of them")
    known = [name for name, _ in model.named_modules() if name]
    for name in names:
        if name not in known:
            raise ResprobeError(unknown_name("units", name, known))
    for one, other in permutations(names, 2):
        if is_inside(one, other):
            raise ResprobeError(f"units: expected modules outside each other, got {one} in {other}; name one of them")
    return shortcut


def named_deletion(name: str, shortcut: str) -> HookedDeletion:
    """Say how hooks delete a module of which the caller knows where its shortcut is."""
    if shortcut == "outside":
        return HookedDeletion(silenced=(name,))
    return HookedDeletion(bypassed=((name, None),))
