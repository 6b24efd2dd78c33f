"""Parameters by the unit or stage of the network that they belong to."""

import torch
from torch import nn

from resprobe.units import Segments, Unit, find
from resprobe.units.structure.graphs import is_inside

BLOCKS = ("stage", "unit")
STEM, HEAD, REST = "stem", "head", "rest"


def parameter_blocks(model: nn.Module, example: torch.Tensor, subject: nn.Module, blocks: str) -> dict[str, list[str]]:
    """Divide the trainable parameters of a network into blocks.

    Args:
        model: The network, whose units are found; it is not touched.
        example: A few images.
        subject: The same network in another mode of its batch normalisation, whose parameters are divided.
        blocks: `unit` or `stage`.

    Returns:
        Names of parameters of `subject` for each block, in order: `stem`, the units by name or `stage 1` and so on,
        `head`, and `rest` for what belongs to none; only those that have parameters.
    """
    owner_of_name, owner_of_module = _owners(model, example, blocks)
    found: dict[str, list[str]] = {block: [] for block in (*owner_of_name.values(), REST)}
    for name, parameter in subject.named_parameters():
        if parameter.requires_grad:
            owner = owner_of_name.get(name) or owner_of_module.get(_place(name)) or REST
            found[owner].append(name)
    return {block: names for block, names in found.items() if names}


def _owners(model: nn.Module, example: torch.Tensor, blocks: str) -> tuple[dict[str, str], dict[str, str]]:
    """Give the block of each parameter and of each module that has some, in the order of the blocks."""
    units = find(model, example)
    names = [name for name, _ in model.named_parameters()]
    if isinstance(units, Segments):
        parts = [
            (STEM, [units.stem]),
            *((_label(unit, blocks), [unit.pre, unit.branch, unit.skip, unit.post]) for unit in units.units),
        ]
        members = [
            (label, [name for piece in pieces for name, _ in piece.named_parameters()]) for label, pieces in parts
        ]
        members.append((HEAD, [name for name, _ in units.head.named_parameters()]))
    else:
        members = [
            (_label(unit, blocks), [name for name in names if is_inside(name, unit.name)]) for unit in units.units
        ]
    owner_of_name: dict[str, str] = {}
    owner_of_module: dict[str, str] = {}
    for label, own in members:
        for name in own:
            owner_of_name.setdefault(name, label)
            owner_of_module.setdefault(_place(name), label)
    return owner_of_name, owner_of_module


def _place(name: str) -> str:
    """Name the module that holds a parameter, in a way that is the same for a network and the folded one."""
    # what absorbed the normalisation layer1.0.bn1 is called network.folded_layer1_0_bn1, as torch.fx writes it
    return name.rpartition(".")[0].removeprefix("network.").removeprefix("folded_").replace(".", "_")


def _label(unit: Unit, blocks: str) -> str:
    return unit.name if blocks == "unit" else f"stage {unit.stage}"
