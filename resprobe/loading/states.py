"""Chooses the state_dict among what a checkpoint file holds, and checks its tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from resprobe.errors import ResprobeError
from resprobe.loading.reading import CheckpointFile
from resprobe.loading.sniffing import SAVE_AGAIN

WHOLE_FILE = "the file itself"
PREFIXES = ("module", "_orig_mod", "model", "backbone", "net")
_CONVENTIONAL = ("state_dict", "model_state_dict", "model_state", "model", "net", "network", "weights", "params", "0")
_AVERAGED = ("ema", "avg", "average", "swa", "shadow", "teacher")
_NOT_NETWORKS = ("optim", "opt", "scheduler", "scaler", "amp", "rng")
_MOST_LEVELS = 5
_MOST_CONTAINERS = 2000
# counters, which are no part of a network's function
_COUNTERS = ("num_batches_tracked", "n_averaged")


@dataclass(frozen=True)
class ChosenState:
    """The tensors of a network.

    Attributes:
        tensors: Names without shared prefixes and float32 tensors, in the order of the file.
        name: Where in the file they were, such as `state_dict` or `models.0`.
        alternatives: Where else there are some.
        prefix: What was taken off every name.
        dtype: The type of the weights in the file.
    """

    tensors: dict[str, torch.Tensor]
    name: str
    alternatives: tuple[str, ...]
    prefix: str
    dtype: str


def choose_state(file: CheckpointFile, name: str | None = None) -> ChosenState:
    """Take the tensors of a network out of a file.

    Args:
        file: What was read.
        name: Where in the file they are; by default the conventional place, and never a moving average where there is
            another.

    Returns:
        The tensors and where they were.

    Raises:
        ResprobeError: If there are none there, or they can't be a network's: wrong type, empty, not finite.
    """
    candidates = dict(_candidates(file.content))
    if not candidates:
        raise ResprobeError(f"{file.path}: expected a state_dict, got {_description(file.content)}; {SAVE_AGAIN}")
    if name is None:
        name = min(candidates, key=_rank)
    if name not in candidates:
        raise ResprobeError(
            f"{file.path}: expected as state {' or '.join(candidates)}, got {name!r}; choose one with --state"
        )
    size = file.path.stat().st_size
    for key, tensor in candidates[name].items():
        _check(file, key, tensor, size)
    stripped, prefix = strip_prefixes(candidates[name])
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for key, tensor in stripped.items() if _is_weight(key)})
    tensors = {key: tensor.float() if _is_weight(key) else tensor for key, tensor in stripped.items()}
    others = tuple(other for other in candidates if other != name)
    return ChosenState(tensors, name, others, prefix, " and ".join(dtypes))


def strip_prefixes(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], str]:
    """Take off what wrappers put before every name, or before every name inside one module.

    Args:
        tensors: A state_dict.

    Returns:
        The tensors by their names in the network, and the prefix that all of them had.
    """
    names = {key: key.split(".") for key in tensors if key not in _COUNTERS}
    prefix: list[str] = []
    while True:
        first = {parts[0] for parts in names.values() if len(parts) > 1}
        if len(first) != 1 or any(len(parts) < 2 for parts in names.values()) or not first <= set(PREFIXES):
            break
        prefix += first
        names = {key: parts[1:] for key, parts in names.items()}
    for wrapper in ("module", "_orig_mod"):
        names = _without_inner(names, wrapper)
    return {".".join(parts): tensors[key] for key, parts in names.items()}, ".".join(prefix)


def _without_inner(names: dict[str, list[str]], wrapper: str) -> dict[str, list[str]]:
    """Take a wrapper's name out of the middle of names where its parent holds nothing else."""
    parents: dict[tuple[str, ...], set[str]] = {}
    for parts in names.values():
        for depth in range(1, len(parts)):
            parents.setdefault(tuple(parts[:depth]), set()).add(parts[depth])
    wrapped = {parent for parent, children in parents.items() if children == {wrapper}}
    return {
        key: [part for depth, part in enumerate(parts) if part != wrapper or tuple(parts[:depth]) not in wrapped]
        for key, parts in names.items()
    }


def _candidates(content: Any) -> Iterator[tuple[str, Mapping[str, torch.Tensor]]]:
    """List every state_dict in a file with its place, the outer ones first; time and depth are bounded."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), content)]
    seen = 0
    while pending and seen < _MOST_CONTAINERS:
        place, container = pending.pop(0)
        seen += 1
        tensors = _as_state(container)
        if tensors is not None:
            yield ".".join(place) or WHOLE_FILE, tensors
            continue
        if len(place) < _MOST_LEVELS:
            items = container.items() if isinstance(container, Mapping) else enumerate(container)
            for key, value in items:
                is_container = isinstance(value, Mapping | list | tuple)
                if is_container and not str(key).lower().startswith(_NOT_NETWORKS):
                    pending.append(((*place, str(key)), value))


def _as_state(container: Any) -> Mapping[str, torch.Tensor] | None:
    """Give a container's tensors if they are named and some of them are weights."""
    if not isinstance(container, Mapping):
        return None
    tensors = {key: value for key, value in container.items() if isinstance(value, torch.Tensor)}
    weights = [key for key, value in tensors.items() if isinstance(key, str) and value.ndim > 0]
    if not weights or not all(isinstance(key, str) for key in tensors):
        return None
    # containers beside the tensors: rather a wrapper, unless the tensors are plainly a network's
    has_containers = any(isinstance(value, Mapping | list) and len(value) for value in container.values())
    return tensors if not has_containers or sum(key.endswith(".weight") for key in weights) > 1 else None


def _rank(place: str) -> tuple[bool, int, int]:
    """Order candidates: plain ones before averages, conventional names first, outer ones first."""
    parts = place.lower().split(".")
    is_average = any(mark in part for part in parts for mark in _AVERAGED)
    known = min((_CONVENTIONAL.index(part) for part in parts if part in _CONVENTIONAL), default=len(_CONVENTIONAL))
    return is_average, known, len(parts)


def _check(file: CheckpointFile, key: str, tensor: torch.Tensor, size: int) -> None:
    """Refuse a tensor that can't belong to a network of ours."""
    start = f"{file.path}: {key}:"
    if tensor.is_quantized:
        raise ResprobeError(
            f"{start} expected a float tensor, got a quantised one; save the network before quantisation"
        )
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise ResprobeError(f"{start} expected a dense tensor, got {tensor.layout} on {tensor.device}; {SAVE_AGAIN}")
    if tensor.numel() * tensor.element_size() > size:
        raise ResprobeError(
            f"{start} expected a tensor that fits into the file, got shape {tuple(tensor.shape)}; "
            "the file is damaged: download or copy it again"
        )
    if not _is_weight(key):
        return
    if not tensor.is_floating_point():
        raise ResprobeError(f"{start} expected floating point, got {tensor.dtype}; save the network's own weights")
    if tensor.numel() == 0:
        raise ResprobeError(f"{start} expected numbers, got shape {tuple(tensor.shape)}; {SAVE_AGAIN}")
    if not tensor.isfinite().all():
        raise ResprobeError(
            f"{file.path}: expected finite weights, got NaN or infinity in {key}; "
            "take a checkpoint from before the training diverged"
        )


def _is_weight(key: str) -> bool:
    return key.rpartition(".")[2] not in _COUNTERS


def _description(content: Any) -> str:
    if not isinstance(content, Mapping):
        return f"a {type(content).__name__} of {len(content)} entries"
    names = [str(name)[:40] for name in content]
    return "the entries " + (", ".join(names[:5]) + (" ..." if len(names) > 5 else "") if names else "none")
