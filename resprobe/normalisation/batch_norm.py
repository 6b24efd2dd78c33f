"""Which statistics the batch normalisations of a model use."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from resprobe.errors import ResprobeError

STATISTICS = ("running", "batch")


def check_bn_mode(bn_mode: str) -> None:
    """Refuse a mode that is unknown.

    Args:
        bn_mode: `running` or `batch`.

    Raises:
        ResprobeError: If it is another.
    """
    if bn_mode not in STATISTICS:
        raise ResprobeError(f"bn_mode: expected one of {', '.join(STATISTICS)}, got {bn_mode!r}; choose one of them")


def use_batch_statistics(module: nn.Module) -> nn.Module:
    """Let every batch normalisation in a module use the statistics of the batch; nothing else changes its mode.

    The stored statistics are dropped, so that nothing can update them; the module must be a private copy.

    Args:
        module: Changed in place, in evaluation mode.

    Returns:
        The same module.
    """
    for norm in batch_norms(module).values():
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return module


def has_batch_norm(module: nn.Module) -> bool:
    """Tell whether there is a batch normalisation in a module."""
    return bool(batch_norms(module))


def batch_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    """Give the batch normalisations in a module by name."""
    return {name: part for name, part in module.named_modules() if isinstance(part, _BatchNorm)}


def check_batch(num_images: int, row: int) -> None:
    """Refuse a batch whose statistics say nothing.

    Args:
        num_images: Images in the batch.
        row: Row of the dataset at which it begins.

    Raises:
        ResprobeError: If it is a single image.
    """
    if num_images < 2:
        raise ResprobeError(
            f"batch: expected 2 images or more for batch statistics, got one (image {row}); choose another batch size "
            "or number of images"
        )
