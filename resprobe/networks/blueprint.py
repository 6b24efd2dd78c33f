"""Everything that fixes a network that somebody else has trained, down to the names of its modules."""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Convolution:
    """A convolution: its module's name, and what the shape of its weight says."""

    name: str
    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    groups: int = 1
    has_bias: bool = False


@dataclass(frozen=True)
class Norm:
    """A batch normalisation."""

    name: str
    channels: int
    is_affine: bool = True


@dataclass(frozen=True)
class Linear:
    """A linear layer of the head; `is_convolution` where it is stored as a 1x1 convolution."""

    name: str
    in_features: int
    out_features: int
    has_bias: bool = True
    is_convolution: bool = False


@dataclass(frozen=True)
class BlockPlan:
    """One block: the modules on its branch and its shortcut.

    Attributes:
        name: The module that holds the block; the names of its parts start with it.
        stage: Its stage, from 0.
        convolutions: The branch's convolutions, in order.
        norms: The branch's normalisations, in order: none, as many as convolutions, or one more.
        projection: The shortcut's convolution, where there is one.
        projection_norm: The normalisation behind it.
        projection_pools: Whether an average pooling comes before the projection and takes over its stride.
        stride: 2 where the block halves the resolution.
    """

    name: str
    stage: int
    convolutions: tuple[Convolution, ...]
    norms: tuple[Norm, ...]
    projection: Convolution | None = None
    projection_norm: Norm | None = None
    projection_pools: bool = False
    stride: int = 1

    @property
    def in_channels(self) -> int:
        """Channels that come in."""
        return self.convolutions[0].in_channels

    @property
    def out_channels(self) -> int:
        """Channels that go out."""
        return self.convolutions[-1].out_channels

    @property
    def keeps_shape(self) -> bool:
        """Whether input and output have the same shape."""
        return self.stride == 1 and self.in_channels == self.out_channels


@dataclass(frozen=True)
class Choices:
    """What neither keys nor shapes of a checkpoint show.

    Attributes:
        shortcut: `pad`, `projection`, `identity` or `none`.
        padding: On which side option A puts its zero channels: `both`, `end` or `start`.
        subsampling: How a shortcut without projection loses resolution: `slice` (every second pixel, which is also
            a 1x1 max-pooling of stride 2) or `average` (2x2 average pooling).
        preactivation: Whether normalisation and ReLU come before each convolution.
        shortcut_input: Which blocks of a pre-activation net take their shortcut from the pre-activated input: `raw`
            (none), `projections` (those with a projection), `firsts` (the first of each stage), `first` (the first
            of all) or `all`.
        stride_place: The convolution of a block that has its stride, from 1.
        first_relu: Whether a pre-activation block has a ReLU before its first convolution.
        final_relu: Whether a ReLU follows the addition.
        head_relu: Whether a ReLU follows the last normalisation of a pre-activation net.
        stem_stride: Stride of the first convolution.
        stem_pool: Whether a 3x3 max-pooling of stride 2 follows the stem.
        first_stage_stride: Stride of the first stage.
    """

    shortcut: str
    padding: str = "both"
    subsampling: str = "slice"
    preactivation: bool = False
    shortcut_input: str = "raw"
    stride_place: int = 1
    first_relu: bool = True
    final_relu: bool = True
    head_relu: bool = True
    stem_stride: int = 1
    stem_pool: bool = False
    first_stage_stride: int = 1


@dataclass(frozen=True)
class Blueprint:
    """A network as its checkpoint describes it.

    Attributes:
        stem: Convolutions before the first block, each with its normalisation.
        blocks: The blocks, in order.
        head_norm: Normalisation after the last block.
        head: Linear layers, in order; ReLUs stand between them.
        choices: What the file doesn't show.
    """

    stem: tuple[tuple[Convolution, Norm | None], ...]
    blocks: tuple[BlockPlan, ...]
    head_norm: Norm | None
    head: tuple[Linear, ...]
    choices: Choices = field(default_factory=lambda: Choices("none"))

    @property
    def in_channels(self) -> int:
        """Channels of the images."""
        return self.stem[0][0].in_channels

    @property
    def num_classes(self) -> int:
        """Number of logits."""
        return self.head[-1].out_features

    @property
    def depth(self) -> int:
        """Weight layers on the longest way through; a stem of several counts as one, as in the usual names."""
        return 1 + sum(len(block.convolutions) for block in self.blocks) + len(self.head)

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return self.blocks[-1].stage + 1

    @property
    def is_bottleneck(self) -> bool:
        """Whether the blocks have a narrow 3x3 convolution between two 1x1 ones."""
        return len(self.blocks[0].convolutions) == 3

    @property
    def has_norm(self) -> bool:
        """Whether anything is normalised."""
        return bool(self.blocks[0].norms)

    @property
    def head_side(self) -> int:
        """Side of the map that the linear layers read: 1 after global average pooling."""
        return math.isqrt(self.head[0].in_features // self.blocks[-1].out_channels)

    @property
    def name(self) -> str:
        """Short name, such as `resnet56`, `plain56` or `preresnet20`; depth counts the weight layers."""
        family = "plain" if self.choices.shortcut == "none" else "resnet"
        return f"{'pre' if self.choices.preactivation else ''}{family}{self.depth}"

    def as_dict(self) -> dict[str, Any]:
        """Give the facts that `resprobe.networks.Architecture` also has, as plain values."""
        return {
            "depth": self.depth,
            "residual": self.choices.shortcut != "none",
            "preactivation": self.choices.preactivation,
            "width": self.blocks[0].out_channels,
            "in_channels": self.in_channels,
            "num_classes": self.num_classes,
            "shortcut": self.choices.shortcut,
            "norm": "batch" if self.has_norm else "none",
        }
