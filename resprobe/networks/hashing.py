"""One number that says whether two networks hold the same tensors."""

import hashlib
from collections.abc import Mapping

import torch


def hash_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hash the names and values of tensors.

    Args:
        tensors: A state_dict.

    Returns:
        A SHA-256 in hexadecimal; the order of the names makes no difference.
    """
    content = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        content.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        content.update(value.numpy().tobytes())
    return content.hexdigest()
