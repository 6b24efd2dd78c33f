"""Changes of what a model does, as context managers that always undo them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from resprobe.bypass import Bypass
from resprobe.errors import ResprobeError
from resprobe.recognition import Span, blocks, plain_spans, residual_spans
from resprobe.tracing import private_copy, trace, without_hooks
from resprobe.wording import unknown_name


@contextmanager
def deleted(model: nn.Module, units: Sequence[str]) -> Iterator[nn.Module]:
    """Delete residual units or plain layers of a model while the block runs.

    The model itself is changed, through forward hooks, so that any use of it sees the deletion: predictions, a
    gradient, somebody else's tool. A residual unit's branch gives zeros, so that `y = post(shortcut(a))` remains. A
    plain layer or block passes its input on, subsampled and zero-padded where the shape changes. The hooks are
    removed at the end, after an exception too; nothing else of the model is touched.

    Args:
        model: Any model whose forward pass torch.fx can trace.
        units: Names of residual units, or of layers or blocks of a model without shortcuts; none changes nothing.

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
    deletable = _deletable(model) if units else {}
    with ExitStack() as hooks:
        for name in units:
            if name not in deletable:
                raise ResprobeError(unknown_name("unit", name, list(deletable)))
            for span in deletable[name]:
                problem = span.hook_problem if span.status == "ok" else span.status
                if problem:
                    raise ResprobeError(
                        f"unit {name}: expected one that hooks can delete, got: {problem}; "
                        "resprobe.lesion deletes it without hooks"
                        if span.status == "ok"
                        else f"unit {name}: expected one that can be deleted, got: {problem}; leave it out"
                    )
                for module in span.silenced:
                    hooks.enter_context(model.get_submodule(module).register_forward_hook(_give_zeros))
                for module, bypass in span.bypassed:
                    hook = _give_input(bypass)
                    hooks.enter_context(model.get_submodule(module).register_forward_hook(hook))
        yield model


def _deletable(model: nn.Module) -> dict[str, list[Span]]:
    """List what can be deleted by name; a block of a plain net stands for its layers."""
    traced = trace(without_hooks(private_copy(model)))
    spans = residual_spans(traced)
    if spans:
        return {span.name: [span] for span in spans}
    layers = plain_spans(traced)
    named_blocks = {group[0].name.rpartition(".")[0]: group for group in blocks(layers)}
    return named_blocks | {span.name: [span] for span in layers}


def _give_zeros(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(output)


def _give_input(bypass: Bypass) -> Any:
    def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        passed_on = bypass(inputs[0])
        # the activation that follows may work in place, on what is another layer's output
        return passed_on.clone() if passed_on is inputs[0] else passed_on

    return hook
