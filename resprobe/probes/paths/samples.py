"""The gradient along single sets of branches, drawn at random (Veit et al. 2016)."""

from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

from resprobe.probes.paths.scaled import Scaled
from resprobe.probes.paths.tape import Tape

Step = Callable[[], None]


def draw_paths(
    lengths: Sequence[int], optional: Sequence[int], num_units: int, samples: int, seed: int
) -> list[set[int]]:
    """Draw sets of units through whose branches the gradient is to go.

    Args:
        lengths: Numbers of branches.
        optional: Positions of the units that have a shortcut; through the others every path takes the branch.
        num_units: Number of units.
        samples: Sets for each length, each drawn from `seed`, the length and its own number alone.
        seed: Seed of the draws.

    Returns:
        `samples` sets for each length, in the order of the lengths.
    """
    always = set(range(num_units)) - set(optional)
    drawn = []
    for length in lengths:
        for sample in range(samples):
            generator = np.random.default_rng([seed, length, sample])
            chosen = generator.choice(len(optional), length - len(always), replace=False)
            drawn.append(always | {optional[place] for place in chosen})
    return drawn


def norms_of_paths(tape: Tape, at: str, paths: Sequence[Collection[int]], step: Step) -> npt.NDArray[np.float64]:
    """Send the gradient back along single paths and take its norm.

    Args:
        tape: The forward pass.
        at: `input` or `first-unit`.
        paths: For each path the positions of the units whose branch it takes.
        step: Called after each path.

    Returns:
        `(paths, N)`, the norm of each image's gradient, in nats per unit of the normalised input.
    """
    norms = np.zeros((len(paths), len(tape.scale)))
    scale = tape.scale.cpu().numpy()

    def descend(index: int, members: list[int], part: Scaled | None) -> None:
        """Go on with the paths that end alike: they share their way back up to here."""
        if part is None or index < 0:
            if part is not None:
                end = part.through(tape.stem) if at == "input" else part
                norms[members] = np.ldexp(end.norms().cpu().numpy(), end.exponent) * scale
            for _ in members:
                step()
            return
        part = Scaled(tape.post(index, part.tensor), part.exponent)
        for takes in (False, True):
            group = [member for member in members if (index in paths[member]) is takes]
            if group:
                descend(index - 1, group, _step_back(tape, index, part, takes=takes))

    descend(tape.num_units - 1, list(range(len(paths))), Scaled(tape.head()))
    return norms


def _step_back(tape: Tape, index: int, part: Scaled, *, takes: bool) -> Scaled | None:
    """Send a gradient through one side of a unit; None where nothing arrives."""
    sent = tape.branch(index, part.tensor) if takes else tape.skip(index, part.tensor)
    assert sent is not None
    return Scaled(sent, part.exponent).through(lambda gradient: tape.pre(index, gradient)).settled()
