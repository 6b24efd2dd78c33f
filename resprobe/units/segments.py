"""The units of a model: what can be deleted from it, and the model cut into them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from resprobe.errors import ResprobeError, unknown_name
from resprobe.units.hooks import delete_through
from resprobe.units.structure.spans import HookedDeletion

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One residual unit or plain layer that can be deleted.

    A residual unit computes `a = pre(x); y = post(shortcut(a) + branch(a))`; deletion leaves out the branch (Veit et
    al. 2016, section 4.1). Where gates that add up to 1 weight the two sides, as in a Highway unit
    `y = T * H + (1 - T) * x`, deletion forces T to 0, so `y = x` (as Srivastava, Greff, Schmidhuber 2015, arXiv
    1507.06228, lesion their layers). A plain layer computes `y = f(x)`; deletion passes its input on, subsampled and
    zero-padded where the shape changes.

    Attributes:
        name: The module that holds the unit; `@1`, `@2`, ... are the calls of a module that is called repeatedly.
        kind: `residual` or `plain`.
        shortcut: `identity` (up to scale and offset), `projection`, `pad`, `gated` (multiplied by what depends on the
            input), or `none` for a plain layer; `outside` for a branch that the caller named.
        bypass: What a deletion leaves: `shortcut`, `identity` or `pad`.
        depth: Its place among the units, from 1.
        stage: Its place among the stretches of equal output shape, from 1.
        branch_layers: Number of weight layers on the branch.
        num_params: Number of parameters of the whole unit.
        input_shape: Shape of the unit's input for one image, without the batch dimension.
        output_shape: The same of its output.
        status: `ok`, or the reason why the unit can't be deleted.
        hooks: How hooks delete it, or why they can't.
    """

    name: str
    kind: str
    shortcut: str
    bypass: str
    depth: int
    stage: int
    branch_layers: int
    num_params: int
    input_shape: Shape
    output_shape: Shape
    status: str
    hooks: HookedDeletion

    @property
    def hook_problem(self) -> str:
        """Why hooks can't delete the unit; empty where they can."""
        return self.hooks.problem


@dataclass(frozen=True, kw_only=True)
class Segment(Unit):
    """A unit as a stretch of the model: one tensor in, one tensor out.

    Attributes:
        pre: What comes before branch and shortcut part.
        branch: The branch; all of a plain layer.
        skip: The shortcut, as it stands in the sum; the bypass of a plain layer.
        remains: What a deletion leaves of the sum: the shortcut, without its gate where the gates are coupled.
        post: What comes after the sum.
    """

    pre: nn.Module
    branch: nn.Module
    skip: nn.Module
    remains: nn.Module
    post: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the whole unit on `(N, *input_shape)`."""
        entry = self.pre(x)
        if self.kind == "plain":
            return self.post(self.branch(entry))  # type: ignore[no-any-return]
        return self.post(self.branch(entry) + self.skip(entry))  # type: ignore[no-any-return]

    def forward_deleted(self, x: torch.Tensor) -> torch.Tensor:
        """Run what is left of the unit after its deletion on `(N, *input_shape)`."""
        return self.post(self.remains(self.pre(x)))  # type: ignore[no-any-return]

    def map(self, change: Callable[[nn.Module], nn.Module]) -> "Segment":
        """Apply a change to every piece and give the new segment."""
        skip = change(self.skip)
        return replace(
            self,
            pre=change(self.pre),
            branch=change(self.branch),
            skip=skip,
            remains=skip if self.remains is self.skip else change(self.remains),
            post=change(self.post),
        )


@dataclass(frozen=True)
class Segments:
    """A model as a chain: `head(unit_n(... unit_1(stem(images))))`.

    Attributes:
        stem: Everything before the first unit.
        units: The units, in order.
        head: Everything after the last unit; gives the logits `(N, classes)`.
    """

    stem: nn.Module
    units: tuple[Segment, ...]
    head: nn.Module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Give the logits of the whole chain, `(N, classes)`."""
        x = self.stem(images)
        for unit in self.units:
            x = unit.forward(x)
        return self.head(x)  # type: ignore[no-any-return]

    def map(self, change: Callable[[nn.Module], nn.Module]) -> "Segments":
        """Apply a change to every piece of the chain and give the new chain."""
        return Segments(change(self.stem), tuple(unit.map(change) for unit in self.units), change(self.head))

    def select(self, names: Sequence[str]) -> list[int]:
        """Find units by name.

        Args:
            names: Names of units, in any order.

        Returns:
            Their positions in `units`, in the order of the names.
        """
        return _select(self.units, names)


@dataclass(frozen=True)
class WholeModel:
    """A model that is no chain of its units, or can't be traced: deletions run it as a whole, with hooks.

    Attributes:
        model: A private copy of the model, in evaluation mode.
        units: The units, in order.
        reason: Why the model was not cut into segments.
        is_named: Whether the caller named the units, so that each is a module.
    """

    model: nn.Module
    units: tuple[Unit, ...]
    reason: str
    is_named: bool = False

    def forward(self, images: torch.Tensor, *, deleted: Sequence[int] = ()) -> torch.Tensor:
        """Give the logits `(N, classes)` of the model without the units at some positions."""
        with delete_through(self.model, [self.units[index].hooks for index in deleted]):
            return self.model(images)  # type: ignore[no-any-return]

    def map(self, change: Callable[[nn.Module], nn.Module]) -> "WholeModel":
        """Apply a change to the model."""
        return replace(self, model=change(self.model))

    def select(self, names: Sequence[str]) -> list[int]:
        """Find units by name.

        Args:
            names: Names of units, in any order.

        Returns:
            Their positions in `units`, in the order of the names.
        """
        return _select(self.units, names)


def _select(units: Sequence[Unit], names: Sequence[str]) -> list[int]:
    position = {unit.name: index for index, unit in enumerate(units)}
    for name in names:
        if name not in position:
            raise ResprobeError(unknown_name("unit", name, list(position)))
    twice = [name for name in position if list(names).count(name) > 1]
    if twice:
        raise ResprobeError(f"units: expected different names, got {twice[0]} more than once; name it once")
    return [position[name] for name in names]
