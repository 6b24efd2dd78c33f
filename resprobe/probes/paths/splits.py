"""The gradient of each image, split by the number of branches that its paths take."""

from collections.abc import Callable, Collection

import torch

from resprobe.probes.paths.scaled import Scaled
from resprobe.probes.paths.tape import Tape

ByLength = dict[int, Scaled]
"""For each number of branches the sum over all paths that take so many; lengths without a path are left out."""

Step = Callable[[], None]


def split_by_length(
    tape: Tape,
    at: str,
    *,
    counted: Collection[int] | None = None,
    signs: torch.Tensor | None = None,
    step: Step = lambda: None,
) -> ByLength:
    """Send the gradient back and keep it apart by path length.

    At fixed activations the backward pass is linear. From the last unit to the first, `G_k <- post' G_k`, then
    `G_k <- skip' G_k + branch' G_(k - 1)`, then `G_k <- pre' G_k`, where `f'` is the transposed Jacobian; n (n + 1) / 2
    products with branches in place of the 2^n of single paths.

    Args:
        tape: The forward pass.
        at: `input` or `first-unit`.
        counted: Positions of the units whose branches count; through the others the gradient goes as a whole. All by
            default.
        signs: Factors 1 or -1 of each image's branches, `(N, units)`. Independent random signs make the expected
            square norm of each length the sum of the square norms of its paths.
        step: Called after each unit.

    Returns:
        The gradients, divided by the tape's `scale`.
    """
    gradients: ByLength = {0: Scaled(tape.head())}
    for index in reversed(range(tape.num_units)):
        if counted is not None and index not in counted:
            moved = {length: part.through(_whole(tape, index)) for length, part in gradients.items()}
        else:
            moved = _split(tape, index, gradients, None if signs is None else signs[:, index])
        # each look at the size of the numbers costs a pass through them; one unit alone can't leave their range
        gradients = _without_zeros(moved) if index % 2 == 0 else moved
        step()
    if at == "input":
        gradients = {length: part.through(tape.stem) for length, part in gradients.items()}
    return gradients


def _split(tape: Tape, index: int, gradients: ByLength, signs: torch.Tensor | None) -> ByLength:
    moved: ByLength = {}
    for length in sorted(gradients, reverse=True):
        part = gradients[length].through(lambda gradient: tape.post(index, gradient))
        branch = part.through(lambda gradient: tape.branch(index, gradient))
        if signs is not None:
            branch = branch.through(lambda gradient: gradient * _per_image(signs, gradient))
        # the product with a branch is new memory, unless the branch only rearranges
        spare = branch.tensor.untyped_storage().data_ptr() != part.tensor.untyped_storage().data_ptr()
        moved[length + 1] = branch.plus(moved[length + 1], spare=spare) if length + 1 in moved else branch
        skip = tape.skip(index, part.tensor)
        if skip is not None:
            moved[length] = Scaled(skip, part.exponent)
    return {length: part.through(lambda gradient: tape.pre(index, gradient)) for length, part in moved.items()}


def _whole(tape: Tape, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda gradient: tape.unit(index, gradient)


def _without_zeros(gradients: ByLength) -> ByLength:
    settled = {length: part.settled() for length, part in gradients.items()}
    return {length: part for length, part in settled.items() if part is not None}


def _per_image(factors: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return factors.to(like).reshape(-1, *(1,) * (like.ndim - 1))
