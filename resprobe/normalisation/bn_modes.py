"""Which statistics batch normalisation uses: a model as a private copy in one of the modes."""

import torch
from torch import nn

from resprobe.errors import ResprobeError
from resprobe.normalisation.batch_norm import batch_norms, use_batch_statistics
from resprobe.normalisation.norm_folding import fold_norm
from resprobe.units.structure.tracing import trainable_copy

BN_MODES = ("running", "batch", "folded", "none")


def modes_of(model: nn.Module) -> tuple[str, ...]:
    """Give the modes in which a model can be measured: `none` where it has no batch normalisation."""
    return BN_MODES[:3] if batch_norms(model) else BN_MODES[3:]


def in_mode(model: nn.Module, mode: str, dtype: torch.dtype, example: torch.Tensor) -> nn.Module:
    """Copy a model into a mode of its batch normalisation.

    Args:
        model: Any module; it is not touched.
        mode: `running` (stored statistics), `batch` (those of the batch; none are stored), `folded` (the affine map of
            `running`, absorbed as in `resprobe.fold_norm`), or `none` for a model without.
        dtype: Of the copy's parameters.
        example: A few images, on which the folded network is compared with the model.

    Returns:
        A private copy in evaluation mode, whose parameters need a gradient where the model's do.

    Raises:
        ResprobeError: If `running` is asked for and there are no stored statistics, or it can't be folded.
    """
    private = trainable_copy(model).to(dtype)
    if mode == "folded":
        # cast before folding, so that the folded weights have all their digits
        return fold_norm(private, example.to(dtype))
    if mode == "batch":
        return use_batch_statistics(private)
    for name, norm in batch_norms(private).items():
        if norm.running_mean is None:
            raise ResprobeError(
                f"normalisation {name}: expected stored statistics for the mode running, got "
                "track_running_stats=False; use the mode batch alone"
            )
    return private
