"""The facts that fix a plain or residual network, and the names that stand for them."""

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, fields
from typing import Any

from resprobe.errors import ResprobeError

SHORTCUTS = ("pad", "projection")
NORMS = ("batch", "none")
NUM_STAGES = 3
_NAME = re.compile(r"(?P<pre>pre)?(?P<family>resnet|plain)(?P<depth>[0-9]+)")
_NAME_FORMS = "resnetN, plainN, preresnetN, preplainN with N = 6n + 2 layers (20, 32, 44, 56, 110)"


@dataclass(frozen=True)
class Architecture:
    """The facts that fix a network, after He et al. 2015 (arXiv 1512.03385), section 4.2.

    Args:
        depth: Number of weight layers on the longest way through, 6n + 2: one stem convolution, three
            stages of n blocks of two convolutions, one linear layer.
        residual: Whether each block adds its shortcut; without it the same layers form a plain net.
        preactivation: Whether normalisation and ReLU come before each convolution (He et al. 2016,
            arXiv 1603.05027) and not after it.
        width: Channels of the first stage; the second and third have twice and four times as many.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        shortcut: What stands on the shortcut where the shape changes: ``pad`` (subsampling and zero
            channels, option A), ``projection`` (1x1 convolution, option B); ``none`` for plain nets.
        norm: ``batch`` (batch normalisation) or ``none`` (no normalisation, convolutions with bias).
    """

    depth: int
    residual: bool
    preactivation: bool
    _: KW_ONLY
    width: int = 16
    in_channels: int = 3
    num_classes: int = 10
    shortcut: str
    norm: str = "batch"

    def __post_init__(self) -> None:
        """Refuse what can't be built.

        Raises:
            ResprobeError: If a value is out of range or ``shortcut`` doesn't fit ``residual``.
        """
        for what in ("depth", "width", "in_channels", "num_classes"):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ResprobeError(f"{what}: expected a whole number from 1, got {value!r}; choose another")
        _check_depth(self.depth)
        valid_shortcuts = SHORTCUTS if self.residual else ("none",)
        if self.shortcut not in valid_shortcuts:
            family = "residual" if self.residual else "plain"
            raise ResprobeError(
                f"shortcut of a {family} net: expected {' or '.join(valid_shortcuts)}, "
                f"got {self.shortcut!r}; leave it out for the default"
            )
        if self.norm not in NORMS:
            raise ResprobeError(f"norm: expected {' or '.join(NORMS)}, got {self.norm!r}; choose one of them")

    @property
    def name(self) -> str:
        """The short name, such as ``resnet110``, ``plain20``, ``preresnet110`` or ``preplain20``."""
        family = "resnet" if self.residual else "plain"
        return f"{'pre' if self.preactivation else ''}{family}{self.depth}"

    @property
    def blocks_per_stage(self) -> int:
        """The n of depth = 6n + 2."""
        return (self.depth - 2) // (2 * NUM_STAGES)

    def as_dict(self) -> dict[str, bool | int | str]:
        """Plain values for a file; `from_dict` reads them back.

        Returns:
            One entry per field.
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Architecture":
        """Read what `as_dict` wrote.

        Args:
            values: One entry per field.

        Returns:
            The architecture.

        Raises:
            ResprobeError: If a field is missing or unknown, or a value is out of range.
        """
        expected = [field.name for field in fields(cls)]
        if set(values) != set(expected):
            raise ResprobeError(
                f"architecture: expected the fields {', '.join(expected)}, "
                f"got {', '.join(map(str, values))}; the file is damaged or from another version"
            )
        return cls(**values)


def parse_architecture(
    name: str,
    *,
    width: int = 16,
    in_channels: int = 3,
    num_classes: int = 10,
    shortcut: str | None = None,
    norm: str = "batch",
) -> Architecture:
    """Read a network's name.

    Args:
        name: ``resnetN``, ``plainN``, ``preresnetN`` or ``preplainN`` with N = 6n + 2 layers.
        width: Channels of the first stage.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        shortcut: ``pad`` or ``projection``; by default ``pad`` in residual nets (option A, which gives
            residual and plain nets the same parameters) and ``none`` in plain ones.
        norm: ``batch`` or ``none``.

    Returns:
        The architecture.

    Raises:
        ResprobeError: If the name has another form or a value is out of range.

    Example:
        >>> parse_architecture("resnet20").blocks_per_stage
        3
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ResprobeError(f"architecture: expected one of {_NAME_FORMS}, got {name!r}; choose one of them")
    residual = match["family"] == "resnet"
    return Architecture(
        depth=int(match["depth"]),
        residual=residual,
        preactivation=match["pre"] is not None,
        width=width,
        in_channels=in_channels,
        num_classes=num_classes,
        shortcut=shortcut if shortcut is not None else ("pad" if residual else "none"),
        norm=norm,
    )


def _check_depth(depth: int) -> None:
    """Raise unless depth is 6n + 2 with n from 1."""
    step = 2 * NUM_STAGES
    if depth >= step + 2 and (depth - 2) % step == 0:
        return
    below = (depth - 2) // step * step + 2
    nearest = [valid for valid in (below, below + step) if valid > step] or [step + 2]
    raise ResprobeError(
        f"depth: expected 6n + 2 layers, got {depth}; take {' or '.join(str(valid) for valid in nearest)}"
    )
