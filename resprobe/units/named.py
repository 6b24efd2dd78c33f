"""Describes units that the caller names, by running the model once and watching them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from resprobe.errors import ResprobeError
from resprobe.units.bypass import Bypass
from resprobe.units.hooks import observed
from resprobe.units.segments import Shape, Unit
from resprobe.units.structure.choices import check_shortcut, named_deletion


def named_units(model: nn.Module, example: torch.Tensor, names: Sequence[str], shortcut: str) -> tuple[Unit, ...]:
    """Describe modules as units.

    Args:
        model: A private copy of the model, in evaluation mode.
        example: A few images `(N, C, H, W)`.
        names: The modules, in order.
        shortcut: `identity`, `pad`, `outside` or `none`.

    Returns:
        The units. What can't be deleted has the reason in `status`.

    Raises:
        ResprobeError: If there is no name, or it says nothing about the model.
    """
    if isinstance(names, str) or not names:
        raise ResprobeError(f"units: expected a list of names of modules, got {names!r}; name at least one module")
    check_shortcut(model, names, shortcut)
    with torch.inference_mode(), observed(model, names) as calls:
        model(example)
    units: list[Unit] = []
    for name in names:
        status, input_shape, output_shape = _seen(calls[name], shortcut)
        last_stage = units[-1].stage if units else 1
        is_new_stage = bool(units) and output_shape != units[-1].output_shape
        module = model.get_submodule(name)
        units.append(
            Unit(
                name=name,
                kind="plain" if shortcut == "none" else "residual",
                shortcut=shortcut,
                bypass=_bypass_kind(shortcut, input_shape, output_shape),
                depth=len(units) + 1,
                stage=last_stage + is_new_stage,
                branch_layers=_num_weighted(module),
                num_params=sum(parameter.numel() for parameter in module.parameters()),
                input_shape=input_shape,
                output_shape=output_shape,
                status=status,
                hooks=named_deletion(name, shortcut),
            )
        )
    return tuple(units)


def _seen(calls: list[tuple[Any, Any]], shortcut: str) -> tuple[str, Shape, Shape]:
    """Judge from its calls whether a module can be deleted; give its shapes for one image."""
    if len(calls) != 1:
        return f"it is called {len(calls)} times in one pass, not once", (), ()
    entry, output = calls[0]
    output = output[0] if isinstance(output, (tuple, list)) and output else output
    if not isinstance(output, torch.Tensor):
        return f"its output is no tensor but {type(output).__name__}", (), ()
    before, after = tuple(entry.shape[1:]), tuple(output.shape[1:])
    return _status(entry, output, shortcut), before, after


def _status(entry: torch.Tensor, output: torch.Tensor, shortcut: str) -> str:
    before, after = tuple(entry.shape[1:]), tuple(output.shape[1:])
    if shortcut == "outside":
        return "ok"
    if shortcut == "identity" and before != after:
        return f"no identity leads from shape {before} to {after}"
    if Bypass.between(before, after) is None:
        return f"no bypass leads from shape {before} to {after}"
    if bool((output >= 0).all()) and bool((entry < 0).any()):
        return "an activation seems to follow its addition, so its input is no possible output; name its branch"
    return "ok"


def _bypass_kind(shortcut: str, before: Shape, after: Shape) -> str:
    if shortcut == "outside":
        return "shortcut"
    if shortcut == "none":
        return "identity" if before == after else "pad"
    return "shortcut"


def _num_weighted(module: nn.Module) -> int:
    """Count the modules with a weight matrix or kernel of their own in a module."""
    return sum(any(parameter.ndim > 1 for parameter in part.parameters(recurse=False)) for part in module.modules())
