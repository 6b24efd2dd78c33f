"""From the tensors of a state_dict to the modules that they belong to, told apart by their shapes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

_COUNTER = "num_batches_tracked"
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class StoredModule:
    """One module of a checkpoint.

    Attributes:
        name: Its dotted name.
        kind: `convolution`, `norm`, `linear`, or `unknown` with a set of tensors that fits none of them.
        shape: Shape of its weight; of a normalisation the number of channels.
        has_bias: Whether it has a bias; of a normalisation, whether it is affine.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    has_bias: bool

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a 1x1 convolution."""
        return self.kind == "convolution" and self.shape[2:] == (1, 1)


def stored_modules(tensors: Mapping[str, torch.Tensor]) -> list[StoredModule]:
    """Group tensors by module.

    Args:
        tensors: A state_dict.

    Returns:
        The modules, in the order of the file; where the keys are sorted by the alphabet (as safetensors does), in
        natural order, so that `layer1.10` follows `layer1.9`.
    """
    leaves: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, tensor in tensors.items():
        name, _, leaf = key.rpartition(".")
        leaves.setdefault(name, {})[leaf] = tuple(tensor.shape)
    modules = [_classified(name, shapes) for name, shapes in leaves.items()]
    return sorted(modules, key=lambda module: natural_key(module.name)) if [*tensors] == sorted(tensors) else modules


def is_alphabetical(modules: Iterable[StoredModule]) -> bool:
    """Tell whether the order of modules says nothing, being that of their names."""
    names = [module.name for module in modules]
    return names == sorted(names, key=natural_key) and len(names) > 1


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key in which numbers count as numbers: `block2` comes before `block10`."""
    pieces = re.findall(r"\d+|[^\d.]+|\.", name)
    return [(0, 0, "") if p == "." else (1, int(p), "") if p.isdigit() else (2, 0, p) for p in pieces]


def dead_modules(tensors: Mapping[str, torch.Tensor], modules: Iterable[StoredModule]) -> set[str]:
    """Name the modules that no image has ever passed through.

    A normalisation whose counter of batches is 0 while others have counted has never run in training. A convolution
    is dead where every normalisation of the module that holds it is.

    Args:
        tensors: The state_dict.
        modules: Its modules.

    Returns:
        The names of the dead modules.
    """
    counts = {
        key.removesuffix(f".{_COUNTER}"): int(tensor) for key, tensor in tensors.items() if key.endswith(f".{_COUNTER}")
    }
    idle = {name for name, count in counts.items() if count == 0 and _is_untouched(tensors, name)}
    if not idle or not any(counts.values()):
        return set()
    dead = set(idle)
    norms = [module.name for module in modules if module.kind == "norm"]
    for module in modules:
        parent = module.name.rpartition(".")[0]
        neighbours = [norm for norm in norms if parent and norm.startswith(f"{parent}.")]
        if module.kind == "convolution" and neighbours and set(neighbours) <= idle:
            dead.add(module.name)
    return dead


def _is_untouched(tensors: Mapping[str, torch.Tensor], name: str) -> bool:
    mean, var = tensors.get(f"{name}.running_mean"), tensors.get(f"{name}.running_var")
    return mean is not None and var is not None and not bool(mean.any()) and bool((var == 1).all())


def _classified(name: str, shapes: Mapping[str, tuple[int, ...]]) -> StoredModule:
    weight = shapes.get("weight", ())
    leaves = set(shapes) - {_COUNTER}
    if {"running_mean", "running_var"} <= leaves <= {"weight", "bias", "running_mean", "running_var"}:
        sizes = {shapes[leaf] for leaf in leaves}
        is_affine = {"weight", "bias"} <= leaves
        if len(sizes) == 1 and len(next(iter(sizes))) == 1 and is_affine == bool({"weight", "bias"} & leaves):
            return StoredModule(name, "norm", next(iter(sizes)), is_affine)
    if {"weight"} <= leaves <= {"weight", "bias"} and shapes.get("bias", weight[:1]) == weight[:1]:
        kind = {4: "convolution", 2: "linear"}.get(len(weight), "unknown")
        return StoredModule(name, kind, weight, "bias" in leaves)
    return StoredModule(name, "unknown", weight, "bias" in leaves)
