"""Runs many altered versions of one chain of units and computes what they share once."""

from collections.abc import Iterator, Sequence

import torch

from resprobe.units import Segments, WholeModel

Step = tuple[int, bool]
"""A unit's position in the model, and whether it is kept (True) or deleted (False)."""

Plan = tuple[Step, ...]
"""The units in the order in which they run."""


def intact(num_units: int) -> Plan:
    """Give the plan of the unaltered model."""
    return tuple((index, True) for index in range(num_units))


def deleting(num_units: int, deleted: Sequence[int]) -> Plan:
    """Give the plan in which some units are deleted."""
    gone = set(deleted)
    return tuple((index, index not in gone) for index in range(num_units))


def run_plans(
    segments: Segments | WholeModel, plans: Sequence[Plan], images: torch.Tensor
) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Run every plan on one batch.

    Plans that begin with the same steps share their activations up to where they part, so deleting each of n units
    once costs (n + 1) / 2 + 1 forward passes instead of n + 1. At most one activation is held for every point at
    which plans part on the way to the current one. A model that was not cut is run as a whole for each plan.

    Args:
        segments: The model's segments, or the whole model; that one can't change the order of its units.
        plans: What to run; each is a sequence of steps of equal length.
        images: One batch, `(N, C, H, W)`.

    Yields:
        Positions of plans that are one and the same, and their logits `(N, classes)`.
    """
    if isinstance(segments, WholeModel):
        yield from _run_whole(segments, plans, images)
    else:
        yield from _run(segments, plans, list(range(len(plans))), 0, segments.stem(images))


def _run(
    segments: Segments, plans: Sequence[Plan], members: list[int], position: int, x: torch.Tensor
) -> Iterator[tuple[list[int], torch.Tensor]]:
    while position < len(plans[members[0]]):
        groups: dict[Step, list[int]] = {}
        for member in members:
            groups.setdefault(plans[member][position], []).append(member)
        # The largest group goes on in this loop, so the recursion is at most log2(plans) deep.
        *smaller, (step, members) = sorted(groups.items(), key=lambda group: len(group[1]))
        for other_step, others in smaller:
            yield from _run(segments, plans, others, position + 1, _take(segments, other_step, x))
        x = _take(segments, step, x)
        position += 1
    yield members, segments.head(x)


def _take(segments: Segments, step: Step, x: torch.Tensor) -> torch.Tensor:
    index, kept = step
    return segments.units[index].forward(x) if kept else segments.units[index].forward_deleted(x)


def _run_whole(
    model: WholeModel, plans: Sequence[Plan], images: torch.Tensor
) -> Iterator[tuple[list[int], torch.Tensor]]:
    members: dict[Plan, list[int]] = {}
    for position, plan in enumerate(plans):
        members.setdefault(plan, []).append(position)
    for plan, positions in members.items():
        yield positions, model.forward(images, deleted=[index for index, kept in plan if not kept])
