"""Names that other people give to the parts of a residual network, as data.

A checkpoint's layout is composed: one way to name the stem, one to name stages and blocks, one to name what is inside a
block, one for the shortcut, one for the head. Each list below holds patterns for one part, so that any mixture is
covered. The recogniser decides by shapes; the names settle what shapes leave open, and they word the message for a
file that fits nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from resprobe.loading.patterns import compact


@dataclass(frozen=True)
class Naming:
    """One way to name a part.

    Attributes:
        pattern: A regular expression for the part's modules; `#` stands for a number.
        example: What it looks like.
        source: Where it is met.
    """

    pattern: str
    example: str
    source: str

    @property
    def expression(self) -> str:
        """The regular expression itself."""
        return self.pattern.replace("#", r"(\d+)")


STEMS = (
    Naming(r"(conv|bn)_?1?", "conv1, bn1", "akamaster, kuangliu, torchvision, hysts"),
    Naming(r"(conv|bn|norm)_?1?\.#(\.(conv|bn))?", "conv1.0, conv1.1", "weiaicunzai, deep stems"),
    Naming(r"(first_layer|bn)", "first_layer", "fattorib"),
    Naming(r"(conv_?in|in_?conv|init_conv|conv0|norm0|input_conv|input_bn)(\.#)?", "conv_in", "several"),
    Naming(
        r"(pre|prep|stem|head_conv|conv_?stem)(\.(#|conv|conv#|bn|bn#|norm|norm#))*",
        "stem.conv",
        "timm resnetv2, weiaicunzai",
    ),
    Naming(r"(\w+\.)?embedder\.embedder\.(convolution|normalization)", "embedder.embedder.convolution", "HuggingFace"),
)
BLOCKS = (
    Naming(r"layer_?#\.#", "layer1.0", "torchvision, akamaster, kuangliu"),
    Naming(r"layer_?#", "layer1", "one block per stage"),
    Naming(r"(stage|group|block|conv|res)_?#\.(#|(block|unit|layer)_?#)", "stage1.block1", "hysts, ehanw"),
    Naming(r"conv#_x\.#", "conv2_x.0", "weiaicunzai"),
    Naming(r"(block|group|stage)_?#\.(layers?|blocks?)\.#", "block1.layer.0", "xternalz, d2l"),
    Naming(
        r"(\w+\.)*(stages?|layers?|groups?|blocks?)\.#(\.(layers?|blocks?|#)(\.#)?)?",
        "stages.0.blocks.0",
        "timm, HuggingFace, flat lists",
    ),
    Naming(
        r"(first|second|third|fourth)_block\.(residual_block\.#|final_block)",
        "first_block.residual_block.0",
        "fattorib",
    ),
    Naming(r"#\.#", "4.0", "torchvision's children in a Sequential"),
)
INSIDES = (
    Naming(r"(conv|bn|norm|bnorm|batch_?norm)_?#", "conv1, bn1", "torchvision, hysts, ehanw, timm"),
    Naming(r"conv_?#\.#", "conv1.0, conv1.1", "convolution and normalisation in a Sequential"),
    Naming(r"(conv|bn|norm)_?#\.(conv|bn|norm)", "conv1.conv, conv1.bn", "convolution and normalisation in a module"),
    Naming(
        r"(residual_function|residual|f|left|block|net|body|branch|main|convs?|layers?|conv_block)\.#",
        "residual_function.0",
        "Sequential",
    ),
    Naming(r"layer\.#\.(convolution|normalization)", "layer.0.convolution", "HuggingFace"),
    Naming(r"#", "0, 1", "the block is a Sequential itself"),
)
SHORTCUTS = (
    Naming(
        r"(shortcut|downsample|skip|short_?cut|proj(ection)?|down|match|adjust|right|identity)",
        "shortcut",
        "one convolution",
    ),
    Naming(r"(shortcut|downsample|skip|proj(ection)?|down|match|adjust|right|identity)\.#", "shortcut.0", "Sequential"),
    Naming(
        r"(shortcut|downsample|skip|proj(ection)?|down)\.(conv|bn|norm|convolution|normalization|conv#|bn#)",
        "shortcut.conv",
        "hysts, timm resnetv2, HuggingFace",
    ),
    Naming(r"(conv_?shortcut|shortcut_?conv|conv_?skip|skip_?conv|conv_?res|id_?conv)", "convShortcut", "xternalz"),
    Naming(r"(bn_?shortcut|shortcut_?bn|bn_?skip|skip_?bn|shortcut_?norm)", "shortcut_bn", "several"),
)
HEADS = (
    Naming(r"(fc|linear|classifier|head|output|out|logits?|dense)_?#?", "fc", "most"),
    Naming(
        r"(fc|linear|classifier|head|output)\.(#|fc|linear)", "classifier.1", "HuggingFace, timm resnetv2, MMPretrain"
    ),
    Naming(
        r"(bn|norm|final_?bn|bn_?final|bn_?last|last_?bn|norm_final|post_?bn)_?#?",
        "bn",
        "normalisation of pre-activation nets",
    ),
)

SHORTCUT_NAME = re.compile(
    r"short_?cut|down_?sample|skip|proj(ection)?$|^down$|^match|^adjust|^right$|^identity|^id_?conv|^conv_?res$",
    re.IGNORECASE,
)
"""A component of a module's name, inside its block, that marks the shortcut."""

BRANCH_NAME = re.compile(
    r"residual(_function|_branch|_path)?|f|left|branch\d?|net|body|main|layers?|conv_block|convs?|seq(uential)?",
    re.IGNORECASE,
)
"""The name of a module, inside a block, that holds the branch alone."""

NO_HEAD_RELU = ("init_conv", re.compile(r"conv2\.\d+\.residual\.\d+"))
"""Stem and first convolution of the pre-activation nets whose last norm has no ReLU behind it (weiaicunzai, wide)."""


def describe_mismatch(keys: Iterable[str]) -> str:
    """Name the nearest convention, and the keys that it doesn't cover.

    Args:
        keys: The names of all tensors.

    Returns:
        Half a sentence for an error.
    """
    names = {key: key.rpartition(".")[0] for key in keys}
    best: tuple[list[str], str, str] | None = None
    for blocks in BLOCKS:
        for insides in INSIDES:
            covered = _cover(blocks, insides)
            uncovered = [key for key, name in names.items() if not covered.fullmatch(name)]
            if best is None or len(uncovered) < len(best[0]):
                best = (uncovered, f"{blocks.example} ({blocks.source})", f"{insides.example} ({insides.source})")
    assert best is not None
    uncovered, block_text, inside_text = best
    nearest = f"the nearest convention has blocks like {block_text} with {inside_text} in them"
    if not uncovered:
        return f"{nearest}, which covers the names but not the shapes"
    return f"{nearest}; it doesn't cover {compact(uncovered, most=6)}"


def _cover(blocks: Naming, insides: Naming) -> "re.Pattern[str]":
    """Compile one expression for every module of a layout."""
    shortcuts = "|".join(naming.expression for naming in SHORTCUTS)
    ends = "|".join(naming.expression for naming in (*STEMS, *HEADS))
    return re.compile(rf"(\w+\.)?(({blocks.expression})\.({insides.expression}|{shortcuts})|{ends})")
