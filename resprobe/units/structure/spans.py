"""Where units lie in a model's graph, and how hooks delete them."""

from dataclasses import dataclass, field

from torch import fx

from resprobe.units.bypass import Bypass
from resprobe.units.structure.operations import Term


@dataclass(frozen=True)
class HookedDeletion:
    """How forward hooks on modules delete a unit.

    Attributes:
        silenced: Modules whose output becomes zero.
        bypassed: Modules whose output becomes their input, and the bypass that it passes; None fits one to the
            shapes of the tensors.
        rerouted: Modules whose output is computed anew, by a graph of what is left of them.
        problem: Why hooks can't delete the unit; empty where they can.
    """

    silenced: tuple[str, ...] = ()
    bypassed: tuple[tuple[str, Bypass | None], ...] = ()
    rerouted: tuple[tuple[str, fx.Graph], ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Span:
    """Where a unit lies in the graph: `start -> fork -> (branch + skip = join) -> end`.

    A plain layer has no join: its branch leads from the fork to the end, and `skip` is empty.

    Attributes:
        name: The module that holds the unit.
        start: The unit's input.
        fork: Where branch and shortcut part; the start of a plain layer's own operations.
        branch: The summands of the branch.
        skip: The summand that is the shortcut; the fork itself for an identity.
        remains: What a deletion leaves in place of the sum: the shortcut, without its gate where that is coupled.
        join: The addition.
        end: The unit's output.
        is_gated: Whether the shortcut is multiplied by something that depends on the input.
        gate: The coupled gate of the branch, if there is one; a deletion forces it to 0.
        status: `ok`, or why the unit can't be deleted.
        hooks: How hooks delete it.
    """

    name: str
    start: fx.Node
    fork: fx.Node
    branch: tuple[Term, ...]
    skip: tuple[Term, ...]
    remains: tuple[Term, ...]
    join: fx.Node
    end: fx.Node
    is_gated: bool = False
    gate: fx.Node | None = None
    status: str = "ok"
    hooks: HookedDeletion = field(default_factory=HookedDeletion)
