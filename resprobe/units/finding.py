"""Finds the units of a model and cuts the model into segments where it is a chain of them."""

from collections.abc import Callable, Sequence

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.modules.batchnorm import _BatchNorm

from resprobe.errors import ResprobeError, first_line
from resprobe.units.cutting import segments, whole_units
from resprobe.units.named import named_units
from resprobe.units.random_state import kept_random_state
from resprobe.units.segments import Segments, WholeModel
from resprobe.units.structure.plain import blocks
from resprobe.units.structure.recognition import recognise
from resprobe.units.structure.residual import is_chain
from resprobe.units.structure.spans import Span
from resprobe.units.structure.tracing import private_copy, trace, without_hooks


def find(
    model: nn.Module,
    example: torch.Tensor,
    *,
    by: str | None = None,
    units: Sequence[str] | None = None,
    shortcut: str | None = None,
) -> Segments | WholeModel:
    """Find the residual units of a model, or the plain layers of a model that has none.

    The model is copied, traced with torch.fx and cut where one tensor carries everything on. A residual unit is an
    addition whose summands come from one point. The chain of segments is verified on the example. Where the units
    are no chain (the blocks of a U-Net), or the caller names them, deletions run the whole model with hooks.

    Args:
        model: A module that maps images `(N, C, H, W)` to logits `(N, classes)`; it is not touched.
        example: A few images `(N, C, H, W)` on the model's device.
        by: For a model without shortcuts: `layer` (default), or `block` for modules that hold several layers.
        units: For a model that torch.fx can't trace: the modules that are its units, in order; see `shortcut`.
        shortcut: What the caller knows of the named modules: `identity` (each holds its addition; deletion passes its
            input on), `pad` (likewise, subsampled and zero-padded where the shape changes), `outside` (each is only
            the branch; deletion makes it zero) or `none` (each is a plain layer or block, bypassed like `pad`).

    Returns:
        The units. They hold a copy of the model's weights, in evaluation mode.

    Raises:
        ResprobeError: If the model can't be traced, has nothing to delete, or its segments differ from the model.
    """
    if by not in (None, "layer", "block"):
        raise ResprobeError(f"by: expected layer or block, got {by!r}; leave it out for residual nets")
    if units is not None and shortcut is None:
        raise ResprobeError("units: expected shortcut= with them, got none; give identity, pad, outside or none")
    model_name = type(model).__name__
    duplicate = private_copy(model)
    _check_statistics(duplicate, model_name)
    example = example.to(_number_type(duplicate))
    with kept_random_state(example.device):
        with torch.inference_mode():
            reference = run_example(duplicate, example)
        without_hooks(duplicate)
        found: Segments | WholeModel
        if shortcut is not None:
            if by is not None or units is None:
                raise ResprobeError(f"shortcut={shortcut!r}: expected it with units= and without by=; name the modules")
            named = named_units(duplicate, example, units, shortcut)
            found = WholeModel(duplicate, named, "its units were named", is_named=True)
        else:
            found = _traced(duplicate, example, by, reference)
        _verify(found.forward, example, reference, model_name)
    return found


def as_names(units: Sequence[str] | None) -> list[str] | None:
    """Turn names of units that a caller gives into a list; None stays.

    Args:
        units: A sequence of names, or an array of them.

    Returns:
        The names.

    Raises:
        ResprobeError: If it is a text, empty, or holds something else.
    """
    if units is None:
        return None
    if isinstance(units, str):
        raise ResprobeError(f"units: expected a list of names, got the text {units!r}; write [{units!r}]")
    strange = next((name for name in units if not isinstance(name, str)), None)
    if strange is not None:
        raise ResprobeError(f"units: expected names, got {strange!r}; find them with resprobe.units.find")
    if not len(units):
        raise ResprobeError("units: expected at least one name, got none; leave units out for all")
    return [str(name) for name in units]


def run_example(model: nn.Module, example: torch.Tensor) -> torch.Tensor:
    """Run a model on a few images.

    Args:
        model: A private copy of the model.
        example: Images `(N, C, H, W)`.

    Returns:
        The logits `(N, classes)`.

    Raises:
        ResprobeError: If the model can't run on them, or gives something else.
    """
    try:
        output = model(example)
    # The model's own forward runs: anything can go wrong in there.
    except Exception as error:
        shape = tuple(example.shape[1:])
        raise ResprobeError(
            f"model {type(model).__name__}: expected to run on images of shape {shape}, got {first_line(error)}; "
            "check that the data fit the model"
        ) from error
    if not isinstance(output, torch.Tensor) or output.ndim != 2:
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise ResprobeError(
            f"model {type(model).__name__}: expected logits (N, classes) as output, got {got}; "
            "wrap the model in a module that returns the logits alone"
        )
    return output


def _traced(model: nn.Module, example: torch.Tensor, by: str | None, reference: torch.Tensor) -> Segments | WholeModel:
    """Find the units in the graph of a private copy of the model."""
    model_name = type(model).__name__
    traced = trace(model)
    spans = recognise(traced, model_name)
    if spans[0].skip and by is not None:
        raise ResprobeError(
            f"by={by!r}: expected a net without shortcuts, got {len(spans)} residual units; leave it out"
        )
    whole = fx.GraphModule(traced.root, traced.graph)
    with torch.inference_mode():
        ShapeProp(whole).propagate(example)
    groups = _grouped(spans, by, model_name)
    if not is_chain(traced, spans):
        _verify(whole, example, reference, model_name)
        return WholeModel(model, whole_units(traced, groups), "its units are no chain")
    return segments(traced, groups)


def _grouped(spans: list[Span], by: str | None, model_name: str) -> list[list[Span]]:
    """Give the units as groups of spans: single ones, except for blocks of plain layers."""
    if by != "block":
        return [[span] for span in spans]
    groups = blocks(spans)
    if not groups:
        raise ResprobeError(
            f"by='block': expected modules that hold several layers, got none in {model_name}; use by='layer'"
        )
    return groups


def _check_statistics(model: nn.Module, model_name: str) -> None:
    """Refuse a model whose logits depend on which images share a batch."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.running_mean is None or module.running_var is None):
            raise ResprobeError(
                f"model {model_name}: expected batch normalisations with stored statistics, got {name} without; "
                "its logits depend on the batch: train it with track_running_stats=True"
            )


def _number_type(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _verify(
    forward: Callable[[torch.Tensor], torch.Tensor],
    example: torch.Tensor,
    reference: torch.Tensor,
    model_name: str,
) -> None:
    """Refuse what was found if it doesn't give the logits of the model itself."""
    with torch.inference_mode():
        got = forward(example)
    # the same operations in the same order: only kernels chosen anew may differ, by rounding
    scale = float(reference.abs().max())
    difference = float((got - reference).abs().max())
    if difference > 1e-4 * max(scale, 1e-12):
        raise ResprobeError(
            f"model {model_name}: expected segments that give the model's own logits, got a difference of "
            f"{difference:.3g} on logits up to {scale:.3g}; hooks that change its output must be removed first"
        )
