"""Changes of what a model does, as context managers that always undo them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx, nn

from resprobe.errors import ResprobeError, unknown_name
from resprobe.units.bypass import Bypass
from resprobe.units.structure.choices import check_shortcut, named_deletion
from resprobe.units.structure.plain import blocks
from resprobe.units.structure.recognition import recognise
from resprobe.units.structure.spans import HookedDeletion, Span
from resprobe.units.structure.tracing import structural_copy, trace


@contextmanager
def deleted(model: nn.Module, units: Sequence[str], *, shortcut: str | None = None) -> Iterator[nn.Module]:
    """Delete residual units or plain layers of a model while the block runs.

    The model itself is changed, through forward hooks, so that any use of it sees the deletion: predictions, a
    gradient, somebody else's tool. A residual unit's branch gives zeros, so that `y = post(shortcut(a))` remains. A
    plain layer or block passes its input on, subsampled and zero-padded where the shape changes. Where a branch
    ends in no module, the module that holds the unit computes what is left of it, as in evaluation mode. The hooks
    are removed at the end, after an exception too; nothing else of the model is touched.

    Args:
        model: Any model whose forward pass torch.fx can trace; with `shortcut`, any model.
        units: Names of residual units, or of layers or blocks of a model without shortcuts; none changes nothing.
        shortcut: With names of modules that the caller knows to be units: `identity`, `pad`, `outside` or `none`, as
            in `resprobe.units.find`. The model is not traced then.

    Yields:
        The model.

    Raises:
        ResprobeError: If there is no such unit, or hooks can't delete it.

    References:
        Veit, Wilber, Belongie 2016 (arXiv 1605.06431), section 4.1.

    Example:
        >>> import resprobe
        >>> net = resprobe.build(resprobe.parse_architecture("resnet20")).eval()
        >>> with resprobe.deleted(net, ["layer1.1", "layer3.2"]):
        ...     logits = net(torch.zeros(1, 3, 32, 32))
    """
    if isinstance(units, str):
        raise ResprobeError(f"units: expected a list of names, got the text {units!r}; write [{units!r}]")
    if shortcut is not None:
        known = check_shortcut(model, units, shortcut)
        deletions = [named_deletion(name, known) for name in units]
    else:
        deletions = _deletions(model, units) if units else []
    with delete_through(model, deletions):
        yield model


@contextmanager
def delete_through(model: nn.Module, deletions: Sequence[HookedDeletion]) -> Iterator[None]:
    """Put the hooks of some deletions on a model while the block runs.

    Args:
        model: The model, or a copy with modules of the same names.
        deletions: What to delete, and how.

    Yields:
        Nothing.
    """
    with ExitStack() as hooks:
        for deletion in deletions:
            for name in deletion.silenced:
                hooks.enter_context(model.get_submodule(name).register_forward_hook(_give_zeros))
            for name, bypass in deletion.bypassed:
                hooks.enter_context(_replaced(model.get_submodule(name), _passing(name, bypass)))
            for name, graph in deletion.rerouted:
                remains = fx.GraphModule(model, graph)
                hooks.enter_context(_replaced(model.get_submodule(name), _computing(remains)))
        yield


@contextmanager
def observed(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, list[tuple[Any, Any]]]]:
    """Note what some modules read and give while the block runs.

    Args:
        model: Any model.
        names: Names of its modules.

    Yields:
        For each name one pair for each call so far: the first tensor that it read (None without one), detached, and
        its output.
    """
    seen: dict[str, list[tuple[Any, Any]]] = {name: [] for name in names}
    with ExitStack() as hooks:
        for name in names:

            def note(entry: torch.Tensor, output: Any, calls: list[tuple[Any, Any]] = seen[name]) -> Any:
                calls.append((entry, output))
                return output

            hooks.enter_context(_replaced(model.get_submodule(name), note))
        yield seen


@contextmanager
def tapped(
    model: nn.Module,
    names: Sequence[str],
    *,
    before: Callable[[str, torch.Tensor | None], None] | None = None,
    after: Callable[[str, Any], None] | None = None,
) -> Iterator[None]:
    """Show functions what some modules read and give while the block runs; the model does what it does without them.

    The tensors are the model's own: a function that keeps values must copy them, since a later operation may work in
    place on them.

    Args:
        model: Any model.
        names: Names of its modules.
        before: Called before each call of a module, with its name and the first tensor that it reads (None without
            one).
        after: Called after each call of a module, with its name and its output.

    Yields:
        Nothing.
    """
    with ExitStack() as hooks:
        for name in names:
            module = model.get_submodule(name)
            if before is not None:
                hooks.enter_context(module.register_forward_pre_hook(_showing_input(name, before), with_kwargs=True))
            if after is not None:
                hooks.enter_context(module.register_forward_hook(_showing_output(name, after)))
        yield


def first_tensor(values: Any) -> torch.Tensor | None:
    """Give the tensor that a module's output is, or the first one that it begins with; None without one."""
    first = values[0] if isinstance(values, (tuple, list)) and values else values
    return first if isinstance(first, torch.Tensor) else None


def _showing_input(name: str, show: Callable[[str, torch.Tensor | None], None]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        show(name, next((arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)), None))

    return hook


def _showing_output(name: str, show: Callable[[str, Any], None]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        show(name, output)

    return hook


def _deletions(model: nn.Module, names: Sequence[str]) -> list[HookedDeletion]:
    """Trace a copy of the model and give the deletions of units by name; a block of a plain net is its layers'."""
    spans = recognise(trace(structural_copy(model)), type(model).__name__)
    deletable: dict[str, list[Span]] = {span.name: [span] for span in spans}
    if not spans[0].skip:
        deletable = {group[0].name.rpartition(".")[0]: group for group in blocks(spans)} | deletable
    found = []
    for name in names:
        if name not in deletable:
            raise ResprobeError(unknown_name("unit", name, list(deletable)))
        for span in deletable[name]:
            if span.status != "ok":
                raise ResprobeError(f"unit {name}: expected one that can be deleted, got: {span.status}; leave it out")
            if span.hooks.problem:
                raise ResprobeError(
                    f"unit {name}: expected one that hooks can delete, got: {span.hooks.problem}; "
                    "resprobe.lesion deletes it without hooks where the units are a chain"
                )
            found.append(span.hooks)
    return found


@contextmanager
def _replaced(module: nn.Module, make: Callable[[torch.Tensor, Any], Any]) -> Iterator[None]:
    """Let a module give something else, made of its input (as it was before the call) and its output."""
    entries: list[torch.Tensor] = []

    def keep_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # a copy, since the module may work in place on its input
        entries.append(next(arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)).clone())

    def replace(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return make(entries.pop(), output)

    with (
        module.register_forward_pre_hook(keep_input, with_kwargs=True),
        module.register_forward_hook(replace),
    ):
        yield


def _give_zeros(module: nn.Module, args: Any, output: Any) -> Any:
    return _with_tensor(output, torch.zeros_like(_tensor(output)))


def _passing(name: str, bypass: Bypass | None) -> Callable[[torch.Tensor, Any], Any]:
    def passed_on(entry: torch.Tensor, output: Any) -> Any:
        before, after = tuple(entry.shape[1:]), tuple(_tensor(output).shape[1:])
        fitted = bypass if bypass is not None else Bypass.between(before, after)
        if fitted is None:
            raise ResprobeError(
                f"module {name}: expected a unit that can be bypassed, got shapes {before} and {after}; leave it out"
            )
        return _with_tensor(output, fitted(entry))

    return passed_on


def _computing(remains: nn.Module) -> Callable[[torch.Tensor, Any], Any]:
    def computed(entry: torch.Tensor, output: Any) -> Any:
        return remains(entry)

    return computed


def _tensor(output: Any) -> torch.Tensor:
    """Give the tensor that a module's output is, or begins with: attention gives (values, weights)."""
    first = first_tensor(output)
    if first is None:
        raise ResprobeError(
            f"a deleted module's output: expected a tensor, alone or first, got {type(output).__name__}; name another"
        )
    return first


def _with_tensor(output: Any, tensor: torch.Tensor) -> Any:
    return type(output)((tensor, *output[1:])) if isinstance(output, (tuple, list)) else tensor
