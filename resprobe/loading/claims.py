"""What a checkpoint says about itself beside its tensors: its error, and some of its settings."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from resprobe.networks.blueprint import Blueprint
from resprobe.results.intervals import wilson_interval

LARGEST_GAP = 0.03
# Of these weights first, of the best ones of the run after that.
_ACCURACIES = ("test_acc", "test_accuracy", "acc", "accuracy", "val_acc", "acc1", "top1", "prec1")
_BEST_ACCURACIES = ("best_prec1", "best_acc", "best_accuracy", "best_acc1", "best_top1", "best_prec")
_ERRORS = ("test_error", "test_err", "error", "err", "val_error", "best_error", "best_err", "err1")


def claimed_error(content: Any) -> float | None:
    """Read the error that a file claims.

    Args:
        content: What the file holds.

    Returns:
        A fraction, or None where it claims nothing. Numbers above 1 are taken for percent.
    """
    if not isinstance(content, Mapping):
        return None
    for names, is_error in ((_ACCURACIES, False), (_ERRORS, True), (_BEST_ACCURACIES, False)):
        for name in names:
            value = _number(content.get(name))
            if value is not None and 0 <= value <= 100:
                fraction = value / 100 if value > 1 else value
                return fraction if is_error else 1 - fraction
    return None


def describe_gap(claimed: float | None, num_wrong: int, num_images: int) -> str | None:
    """Word a warning where a measured error is far from the claimed one.

    Args:
        claimed: The claimed error, a fraction.
        num_wrong: Images that the network gets wrong.
        num_images: Images that it was measured on.

    Returns:
        One line, or None if the errors are within 3 points or within the 95 % interval of the measurement.
    """
    if claimed is None or num_images == 0:
        return None
    measured = num_wrong / num_images
    low, high = (float(bound) for bound in wilson_interval(num_wrong, num_images))
    if abs(measured - claimed) <= LARGEST_GAP or low <= claimed <= high:
        return None
    return (
        f"warning: measured an error of {100 * measured:.1f} % where the file claims {100 * claimed:.1f} %; "
        "likely causes: another normalisation (--normalise), another dataset or split (--data, --split), or a wrongly "
        "assumed fact (resprobe inspect)"
    )


def recorded_shortcut_input(content: Any, blueprint: Blueprint) -> str | None:
    """Read where a pre-activation net takes its shortcuts from, where the file keeps its settings.

    Args:
        content: What the file holds; `preact_stage` in it (hysts) says for each stage whether its first block takes the
            shortcut from the pre-activated input.
        blueprint: The network.

    Returns:
        The value of `shortcut_input`, or None where the file doesn't say.
    """
    stages = _find(content, "preact_stage", levels=3)
    firsts = [next(b for b in blueprint.blocks if b.stage == stage) for stage in range(blueprint.num_stages)]
    if not isinstance(stages, list | tuple) or len(stages) != len(firsts):
        return None
    patterns = {
        "firsts": [True for _ in firsts],
        "raw": [False for _ in firsts],
        "first": [index == 0 for index in range(len(firsts))],
        "projections": [block.projection is not None for block in firsts],
    }
    return next((name for name, pattern in patterns.items() if list(stages) == pattern), None)


def _find(content: Any, name: str, *, levels: int) -> Any:
    if not isinstance(content, Mapping) or levels == 0:
        return None
    if name in content:
        return content[name]
    return next((found for value in content.values() if (found := _find(value, name, levels=levels - 1))), None)


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else None
    value = value.item() if isinstance(value, np.generic) else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
