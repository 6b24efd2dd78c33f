"""A module that convolves with a kernel where it can, and as before where it can't."""

import torch
import torch.nn.functional as F
from torch import nn

from resprobe.engine.in_place import add_into
from resprobe.engine.kernels.tiling import Shape
from resprobe.engine.kernels.winograd import kernel, transformed


class WinogradConvolution(nn.Module):
    """A convolution of 3 x 3 by Winograd's method, in one thread, for inference.

    Args:
        convolution: What it computes; images of another shape or type are left to it.
        shape: What images the method is for.
        adds: Whether a second input is added to the result.
        relu: Whether a ReLU comes last.
    """

    def __init__(self, convolution: nn.Conv2d, shape: Shape, *, adds: bool, relu: bool) -> None:
        super().__init__()
        self.convolution = convolution
        self.shape = shape
        self.adds = adds
        self.relu = relu
        self._kernel = kernel(shape, adds=adds, relu=relu)
        weight, bias = convolution.weight.detach(), convolution.bias
        assert weight.shape == (shape.out_channels, shape.in_channels, 3, 3)
        self._weight = transformed(weight)
        self._bias = weight.new_zeros(shape.out_channels) if bias is None else bias.detach().contiguous()

    def forward(self, images: torch.Tensor, summand: torch.Tensor | None = None) -> torch.Tensor:
        """Map `(N, C, H, W)` to `(N, out_channels, H, W)`, plus a summand that is broadcast to it."""
        assert self.adds is (summand is not None)
        shape = self.shape
        output_shape = (len(images), shape.out_channels, shape.height, shape.width)
        fits = images.shape[1:] == (shape.in_channels, shape.height, shape.width) and len(images) > 0
        is_float = images.dtype is torch.float32 and (summand is None or summand.dtype is torch.float32)
        if not (fits and is_float and (summand is None or summand.shape == output_shape)):
            output = self.convolution(images)
            output = output if summand is None else add_into(output, summand)
            return F.relu(output) if self.relu else output
        images = images.contiguous(memory_format=torch.channels_last)
        summand = images if summand is None else summand.contiguous(memory_format=torch.channels_last)
        # of the images' type, whatever the default type is: the kernel writes no other
        output = torch.empty_permuted(output_shape, (0, 2, 3, 1), dtype=images.dtype, device=images.device)
        workspace = images.new_empty(shape.workspace)
        tensors = (images, output, summand, self._weight, self._bias, workspace)
        self._kernel.call(*(tensor.data_ptr() for tensor in tensors), len(images))
        return output
