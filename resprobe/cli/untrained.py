"""Networks that have not been trained, and the images that go with them."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from resprobe.cli.opening import open_named_images
from resprobe.cli.options import Common
from resprobe.data import ImageData
from resprobe.errors import ResprobeError
from resprobe.loading.facts import READ, Fact
from resprobe.networks import build, parse_architecture
from resprobe.networks.hashing import hash_tensors

DEFAULT_DATA = "digits"


@dataclass(frozen=True)
class Untrained:
    """A network as it is before training.

    Attributes:
        name: Its architecture with what differs from the default, such as `plain56-xavier`.
        model: The network, in evaluation mode, on the CPU.
        provenance: What a result says of its model: `architecture`, `facts`, and in place of a file's hash that of
            the weights.
    """

    name: str
    model: nn.Module
    provenance: dict[str, Any]


@dataclass(frozen=True)
class Start:
    """How a network starts.

    Attributes:
        init: Name of the initialisation.
        norm: `batch` or `none`.
        width: Channels of the first stage.
        seed: Seed of the weights.
    """

    init: str = "he"
    norm: str = "batch"
    width: int = 16
    seed: int = 0


def open_untrained(start: Start, common: Common) -> tuple[Untrained, ImageData]:
    """Build the network that `--arch` names, and open the images that it is to see.

    Args:
        start: How it starts.
        common: The options; channels and classes come from the data, which are the digits by default.

    Returns:
        The network and the images.

    Raises:
        ResprobeError: If an option says nothing about an untrained network, or the data don't tell their classes.
    """
    assert common.arch is not None
    for option in ("fact", "state"):
        if getattr(common, option):
            raise ResprobeError(f"{option}: expected none without --ckpt, got --{option}; leave it out")
    data = open_named_images(common.data or DEFAULT_DATA, common, common.normalise)
    if data.num_classes is None:
        raise ResprobeError(
            f"{data.name}: expected data that say how many classes there are, got none; choose a named dataset or a "
            "folder"
        )
    architecture = parse_architecture(
        common.arch,
        width=start.width,
        in_channels=data.image_shape[0],
        num_classes=data.num_classes,
        shortcut=common.shortcut,
        norm=start.norm,
    )
    images = next(iter(data))[0] if start.init == "lsuv" else None
    network = build(architecture, seed=start.seed, init=start.init, images=images).eval()
    known = {**architecture.as_dict(), "init": start.init, "seed": start.seed}
    unusual = [] if start.norm == "batch" else ["no norm"]
    unusual += [] if start.width == Start.width else [f"width {start.width}"]
    unusual += [] if architecture.shortcut in ("pad", "none") else [architecture.shortcut]
    unusual += [] if start.seed == 0 else [f"seed {start.seed}"]
    provenance = {
        "checkpoint_sha256": hash_tensors(network.state_dict()),
        "architecture": ", ".join([f"{architecture.name} untrained", start.init, *unusual]),
        "facts": {name: Fact(value, READ).as_dict() for name, value in known.items()},
    }
    name = "-".join([architecture.name, start.init, *(text.replace(" ", "") for text in unusual)])
    return Untrained(name, network, provenance), data
