"""Units whose convolutions of 3 x 3 run in fewer multiplications, with the ReLU and the addition that follow."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from resprobe.engine.in_place import FusedSegment, add_into
from resprobe.engine.kernels.availability import (
    CompilationError,
    notify_of_obstacle,
    obstacle,
    remember_failure,
    switched_on,
)
from resprobe.engine.kernels.tiling import Shape
from resprobe.units import Segment, Segments
from resprobe.units.random_state import kept_random_state
from resprobe.units.structure.operations import called_module, computes_as, is_known_kind, overwritten

# Products of direct convolutions from which on the time gained exceeds the second that the kernels take to compile.
WORTHWHILE = 100e9


def quicken(segments: Segments, example: torch.Tensor, runs: int) -> Segments:
    """Let the convolutions of units use Winograd's method where that is faster.

    Args:
        segments: From `work_in_place`, in float32 on a CPU.
        example: Some images, `(N, C, H, W)`.
        runs: About how many times a unit is to run on one image.

    Returns:
        Segments of the same function up to rounding, about as large as that of direct convolutions, in which
        numbers overflow from a quarter of float32's range on. The same segments where compiling costs more than it
        would gain, where `RESPROBE_KERNELS=0` asks for it, or, with a warning, where kernels can't be had.

    Raises:
        ResprobeError: If the environment variable `RESPROBE_KERNELS` is neither 0 nor 1.
    """
    if not switched_on() or torch.is_autocast_enabled(example.device.type):
        return segments
    shapes, sizes = _observed(segments, example)
    if runs * sum(shape.num_products for shape in shapes.values()) < WORTHWHILE:
        return segments
    if obstacle() is None:
        try:
            return replace(segments, units=tuple(_quickened(unit, shapes, sizes) for unit in segments.units))
        except CompilationError as error:
            remember_failure(error)
    notify_of_obstacle()
    return segments


def _observed(segments: Segments, example: torch.Tensor) -> tuple[dict[fx.Node, Shape], dict[fx.Node, torch.Size]]:
    """Give the shapes that Winograd's method is for, and the sizes of all tensors, in units that work in place."""
    shapes: dict[fx.Node, Shape] = {}
    sizes: dict[fx.Node, torch.Size] = {}
    with torch.inference_mode(), kept_random_state(example.device):
        x = segments.stem(example)
        for unit in segments.units:
            if isinstance(unit, FusedSegment):
                observer = _Observer(unit.whole)
                x = observer.run(x)
                shapes |= observer.shapes
                sizes |= observer.sizes
            else:
                x = unit.forward(x)
    return shapes, sizes


class _Observer(fx.Interpreter):
    """Runs a unit; keeps the sizes of its tensors, and the shapes of convolutions that Winograd's method is for."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.sizes: dict[fx.Node, torch.Size] = {}
        self.shapes: dict[fx.Node, Shape] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            self.sizes[n] = result.shape
        module = called_module(self.module, n)
        if isinstance(module, nn.Conv2d) and _is_suitable(module) and result.ndim == 4 and not n.kwargs:
            # the module's numbers of channels may be those before it was pruned
            shape = Shape(module.weight.shape[1], module.weight.shape[0], *result.shape[2:])
            if shape.is_possible:
                self.shapes[n] = shape
        return result


def _is_suitable(module: nn.Conv2d) -> bool:
    is_plain = computes_as(module, nn.Conv2d) and not parametrize.is_parametrized(module)
    geometry = (module.weight.shape[2:], module.stride, module.dilation, module.groups, module.padding_mode)
    is_padded = module.padding in ((1, 1), "same")
    return (
        is_plain
        and geometry == ((3, 3), (1, 1), (1, 1), 1, "zeros")
        and is_padded
        and module.weight.dtype is torch.float32
    )


def _quickened(unit: Segment, shapes: dict[fx.Node, Shape], sizes: dict[fx.Node, torch.Size]) -> Segment:
    if not isinstance(unit, FusedSegment):
        return unit
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(unit.whole.graph, copies))
    whole = fx.GraphModule(unit.whole, graph)
    for node, shape in shapes.items():
        if node in copies:
            same_size = [copies[other] for other in copies if sizes.get(other) == sizes[node]]
            _replace(whole, copies[node], shape, same_size)
    whole.delete_all_unused_submodules()
    whole.recompile()
    return replace(unit, whole=whole)


def _replace(whole: fx.GraphModule, node: fx.Node, shape: Shape, summands: Collection[fx.Node]) -> None:
    """Put the quick convolution in the place of a convolution, and of an addition and a ReLU behind it."""
    # imported only here, since it needs llvmlite, which may be missing
    from resprobe.engine.kernels.convolution import WinogradConvolution

    convolution = whole.get_submodule(str(node.target))
    assert isinstance(convolution, nn.Conv2d)
    *_, last = replaced = [node, *_followers(whole, node, summands)]
    sums = [follower for follower in replaced if follower.target is add_into]
    name = f"winograd_{node.name}"
    relu = last.target is torch.relu_
    whole.add_submodule(name, WinogradConvolution(convolution, shape, adds=bool(sums), relu=relu))
    with whole.graph.inserting_after(last):
        quick = whole.graph.call_module(name, (node.args[0], *(total.args[1] for total in sums)))
    last.replace_all_uses_with(quick)
    for follower in reversed(replaced):
        whole.graph.erase_node(follower)


def _followers(owner: fx.GraphModule, node: fx.Node, summands: Collection[fx.Node]) -> Iterator[fx.Node]:
    """Give the addition of one of some summands, and the ReLU, that a convolution may take over and itself wait for."""
    for target in (add_into, torch.relu_):
        after, *others = node.users or [node]
        if others or after.target is not target:
            continue
        if target is add_into and (after.args[1] is node or after.args[1] not in summands):
            continue
        between = node.next
        while between is not after and _leaves_alone(owner, between):
            between = between.next
        if between is after:
            yield after
            node = after


def _leaves_alone(owner: fx.GraphModule, node: fx.Node) -> bool:
    """Tell whether a node certainly writes into no tensor that another one may read."""
    module = called_module(owner, node)
    return overwritten(owner, node) is None and (module is None or is_known_kind(module))
