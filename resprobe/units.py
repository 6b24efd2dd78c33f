"""Cuts a model into segments: a stem, residual units or plain layers, and a head."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from resprobe.bypass import Bypass
from resprobe.errors import ResprobeError
from resprobe.recognition import Span, blocks, plain_spans, residual_spans, weight_layers
from resprobe.tracing import TracedModel, between, piece, private_copy, trace, without_hooks
from resprobe.wording import unknown_name

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Unit:
    """One residual unit or plain layer: a stretch of the model that can be deleted.

    A residual unit computes `a = pre(x); y = post(skip(a) + branch(a))`, where `skip` is its shortcut; deletion
    leaves out the branch (Veit et al. 2016, section 4.1). A plain layer computes `y = branch(pre(x))`; deletion
    passes its input on, `y = skip(pre(x))`, where `skip` is the bypass.

    Attributes:
        name: The module that holds the unit.
        kind: `residual` or `plain`.
        shortcut: `identity`, `projection`, `pad` or, for a plain layer, `none`.
        bypass: What a deletion leaves: `shortcut`, `identity` or `pad`.
        depth: Its place among the units, from 1.
        stage: Its place among the stretches of equal output shape, from 1.
        branch_layers: Number of weight layers on the branch.
        num_params: Number of parameters of the whole unit.
        input_shape: Shape of the unit's input for one image, without the batch dimension.
        output_shape: The same of its output.
        pre: See above.
        branch: See above.
        skip: See above.
        post: See above.
        silenced: Modules whose output becomes zero when hooks delete the unit.
        bypassed: Modules whose input takes the place of their output when hooks delete the unit.
        status: `ok`, or the reason why the unit can't be deleted.
        hook_problem: Why hooks can't delete the unit; empty where they can.
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
    pre: nn.Module
    branch: nn.Module
    skip: nn.Module
    post: nn.Module
    silenced: tuple[str, ...]
    bypassed: tuple[tuple[str, Bypass], ...]
    status: str
    hook_problem: str

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the whole unit on `(N, *input_shape)`."""
        entry = self.pre(x)
        if self.kind == "plain":
            return self.post(self.branch(entry))  # type: ignore[no-any-return]
        return self.post(self.branch(entry) + self.skip(entry))  # type: ignore[no-any-return]

    def forward_deleted(self, x: torch.Tensor) -> torch.Tensor:
        """Run what is left of the unit after its deletion on `(N, *input_shape)`."""
        return self.post(self.skip(self.pre(x)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Segments:
    """A model as a chain: `head(unit_n(... unit_1(stem(images))))`.

    Attributes:
        stem: Everything before the first unit.
        units: The units, in order.
        head: Everything after the last unit; gives the logits `(N, classes)`.
    """

    stem: nn.Module
    units: tuple[Unit, ...]
    head: nn.Module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Give the logits of the whole chain, `(N, classes)`."""
        x = self.stem(images)
        for unit in self.units:
            x = unit.forward(x)
        return self.head(x)  # type: ignore[no-any-return]

    def map(self, change: Callable[[nn.Module], nn.Module]) -> "Segments":
        """Apply a change to every piece of the chain and give the new chain."""
        units = (
            replace(
                unit,
                pre=change(unit.pre),
                branch=change(unit.branch),
                skip=change(unit.skip),
                post=change(unit.post),
            )
            for unit in self.units
        )
        return Segments(change(self.stem), tuple(units), change(self.head))

    def select(self, names: Sequence[str]) -> list[int]:
        """Find units by name.

        Args:
            names: Names of units, in any order.

        Returns:
            Their positions in `units`, in the order of the names.

        Raises:
            ResprobeError: If there is no such unit.
        """
        position = {unit.name: index for index, unit in enumerate(self.units)}
        for name in names:
            if name not in position:
                raise ResprobeError(unknown_name("unit", name, list(position)))
        return [position[name] for name in names]


def find(model: nn.Module, example: torch.Tensor, *, by: str | None = None) -> Segments:
    """Find the residual units of a model, or the plain layers of a model that has none.

    The model is copied, traced with torch.fx and cut where one tensor carries everything on. A residual unit is an
    addition whose two sides come from one point. The chain of segments is verified on the example.

    Args:
        model: A module that maps images `(N, C, H, W)` to logits `(N, classes)`; it is not touched.
        example: A few images `(N, C, H, W)` on the model's device.
        by: For a model without shortcuts: `layer` (default), or `block` for modules that hold several layers.

    Returns:
        The segments. They hold a copy of the model's weights, in evaluation mode.

    Raises:
        ResprobeError: If the model can't be traced, has nothing to delete, or its segments differ from the model.
    """
    if by not in (None, "layer", "block"):
        raise ResprobeError(f"by: expected layer or block, got {by!r}; leave it out for residual nets")
    duplicate = private_copy(model)
    example = example.to(_number_type(duplicate))
    with torch.inference_mode():
        reference = _run_example(duplicate, example)
        traced = trace(without_hooks(duplicate))
        ShapeProp(fx.GraphModule(traced.root, traced.graph)).propagate(example)
    segments = _cut(traced, _spans(traced, by, type(model).__name__))
    _verify(segments, example, reference, type(model).__name__)
    return segments


def _number_type(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _run_example(model: nn.Module, example: torch.Tensor) -> torch.Tensor:
    try:
        output = model(example)
    except (RuntimeError, ValueError, IndexError) as error:
        shape = tuple(example.shape[1:])
        first_line = str(error).splitlines()[0]
        raise ResprobeError(
            f"model {type(model).__name__}: expected to run on images of shape {shape}, got {first_line}; "
            "check that the data fit the model"
        ) from error
    if not isinstance(output, torch.Tensor) or output.ndim != 2:
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise ResprobeError(
            f"model {type(model).__name__}: expected logits (N, classes) as output, got {got}; "
            "wrap the model in a module that returns the logits alone"
        )
    return output


def _spans(traced: TracedModel, by: str | None, model_name: str) -> list[list[Span]]:
    """Give the units as groups of spans: single ones, except for blocks of plain layers."""
    residual = residual_spans(traced)
    if residual and by is not None:
        raise ResprobeError(
            f"by={by!r}: expected a net without shortcuts, got {len(residual)} residual units; leave it out"
        )
    if residual:
        return [[span] for span in residual]
    layers = plain_spans(traced)
    if by == "block":
        groups = blocks(layers)
        if not groups:
            raise ResprobeError(
                f"by='block': expected modules that hold several layers, got none in {model_name}; use by='layer'"
            )
        return groups
    if not layers:
        raise ResprobeError(
            f"model {model_name}: expected residual units or plain layers between stem and classifier, got none; "
            "give a deeper model"
        )
    return [[span] for span in layers]


def _cut(traced: TracedModel, groups: list[list[Span]]) -> Segments:
    units: list[Unit] = []
    stage = 0
    for depth, group in enumerate(groups, start=1):
        start = groups[depth - 2][-1].end if depth > 1 else group[0].start
        shape = _shape(group[-1].end)
        stage += not units or shape != units[-1].output_shape
        make = _residual_unit if group[0].skip_end is not None else _plain_unit
        units.append(make(traced, group, start, depth, stage))
    stem = piece(traced, traced.trunk[0], groups[0][0].start)
    head = piece(traced, groups[-1][-1].end, traced.trunk[-1])
    return Segments(stem, tuple(units), head)


def _residual_unit(traced: TracedModel, group: list[Span], start: fx.Node, depth: int, stage: int) -> Unit:
    (span,) = group
    assert span.skip_end is not None
    pieces = {
        "pre": piece(traced, start, span.fork),
        "branch": piece(traced, span.fork, span.branch_end),
        "skip": piece(traced, span.fork, span.skip_end),
        "post": piece(traced, span.join, span.end),
    }
    return Unit(
        name=span.name,
        kind="residual",
        shortcut=_shortcut_kind(traced, span.fork, span.skip_end),
        bypass="shortcut",
        depth=depth,
        stage=stage,
        branch_layers=weight_layers(traced, between(span.fork, span.branch_end)),
        num_params=_num_params(pieces.values()),
        input_shape=_shape(start),
        output_shape=_shape(span.end),
        silenced=span.silenced,
        bypassed=(),
        status=span.status,
        hook_problem=span.hook_problem,
        **pieces,
    )


def _plain_unit(traced: TracedModel, group: list[Span], start: fx.Node, depth: int, stage: int) -> Unit:
    first, last = group[0], group[-1]
    bypassed = tuple(pair for span in group for pair in span.bypassed)
    skip = nn.Sequential(*(bypass for _, bypass in bypassed if not bypass.is_identity))
    input_shape, output_shape = _shape(first.fork), _shape(last.end)
    status = next((span.status for span in group if span.status != "ok"), "ok")
    if status == "ok" and _skip_shape(skip, input_shape) != output_shape:
        status = f"no bypass leads from shape {input_shape} to {output_shape}"
    pieces = {"pre": piece(traced, start, first.fork), "branch": piece(traced, first.fork, last.end)}
    return Unit(
        name=first.name if len(group) == 1 else first.name.rpartition(".")[0],
        kind="plain",
        shortcut="none",
        bypass="pad" if len(skip) else "identity",
        depth=depth,
        stage=stage,
        branch_layers=len(group),
        num_params=_num_params(pieces.values()),
        input_shape=_shape(start),
        output_shape=output_shape,
        skip=skip,
        post=nn.Identity(),
        silenced=(),
        bypassed=bypassed,
        status=status,
        hook_problem=next((span.hook_problem for span in group if span.hook_problem), ""),
        **pieces,
    )


def _skip_shape(skip: nn.Sequential, shape: Shape) -> Shape:
    """Give the shape of one image's activations behind a chain of bypasses."""
    if len(skip) == 0:
        return shape
    if len(shape) != 3:
        return ()
    return tuple(skip(torch.empty(1, *shape, device="meta")).shape[1:])


def _shortcut_kind(traced: TracedModel, fork: fx.Node, end: fx.Node) -> str:
    if end is fork:
        return "identity"
    if weight_layers(traced, between(fork, end)):
        return "projection"
    return "identity" if _shape(fork) == _shape(end) else "pad"


def _num_params(pieces: Iterable[nn.Module]) -> int:
    parameters = {parameter for part in pieces for parameter in part.parameters()}
    return sum(parameter.numel() for parameter in parameters)


def _shape(node: fx.Node) -> Shape:
    return tuple(node.meta["tensor_meta"].shape[1:])


def _verify(segments: Segments, example: torch.Tensor, reference: torch.Tensor, model_name: str) -> None:
    with torch.inference_mode():
        got = segments.forward(example)
    # the same operations in the same order: only kernels chosen anew may differ, by rounding
    scale = float(reference.abs().max())
    difference = float((got - reference).abs().max())
    if difference > 1e-4 * max(scale, 1e-12):
        raise ResprobeError(
            f"model {model_name}: expected segments that give the model's own logits, got a difference of "
            f"{difference:.3g} on logits up to {scale:.3g}; hooks that change its output must be removed first"
        )
