"""What a deleted plain layer leaves behind: its input, brought to the shape of its output."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn


class Bypass(nn.Module):
    """Pass the input on, subsampled and zero-padded on both channel sides where the shape changes.

    This is the parameter-free shortcut of He et al. 2015, section 4.1, option A:
    `y = pad(x[:, :, ::s, ::s])`, with half of the new channels before the old ones and half after.

    Args:
        stride: Subsampling of height and width.
        new_channels: How many zero channels to add; an odd one goes to the end.

    Example:
        >>> Bypass(2, 16)(torch.ones(1, 16, 8, 8)).shape
        torch.Size([1, 32, 4, 4])
    """

    def __init__(self, stride: int | Sequence[int], new_channels: int) -> None:
        super().__init__()
        self.stride = (stride, stride) if isinstance(stride, int) else tuple(stride)
        self.before = new_channels // 2
        self.after = new_channels - new_channels // 2

    @classmethod
    def between(cls, before: Sequence[int], after: Sequence[int]) -> "Bypass | None":
        """Fit a bypass to the shapes of one image's activations.

        Args:
            before: Shape of the input, such as `(C, H, W)`.
            after: Shape of the output.

        Returns:
            The bypass, or None where none leads from the one to the other.
        """
        if tuple(before) == tuple(after):
            return cls(1, 0)
        if len(before) != 3 or len(after) != 3 or after[0] < before[0] or 0 in after:
            return None
        stride = [round(old / new) for old, new in zip(before[1:], after[1:], strict=True)]
        if any(-(-old // max(step, 1)) != new for old, new, step in zip(before[1:], after[1:], stride, strict=True)):
            return None
        return cls(stride, after[0] - before[0])

    @property
    def is_identity(self) -> bool:
        """Whether the input is passed on as it is."""
        return not (self.before or self.after) and all(step == 1 for step in self.stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `(N, C, H, W)` to `(N, C + new_channels, ceil(H / s), ceil(W / s))`."""
        if any(step != 1 for step in self.stride):
            x = x[:, :, :: self.stride[0], :: self.stride[1]]
        if self.before or self.after:
            x = F.pad(x, (0, 0, 0, 0, self.before, self.after))
        return x

    def extra_repr(self) -> str:
        """Show the geometry in `print(model)`."""
        return f"stride={self.stride}, before={self.before}, after={self.after}"
