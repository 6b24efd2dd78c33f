"""How large the gradient of an untrained network should be: the product of random Jacobians."""

import math

import numpy as np
import numpy.typing as npt

from resprobe.errors import ResprobeError
from resprobe.networks import Architecture
from resprobe.networks.initialisation import check_init

Floats = npt.NDArray[np.float64]
KERNEL = 3
# Of a batch-normalised layer whose input went through a ReLU, squared: 1/2 / (1/2 - 1 / (2 pi)).
NORMALISED_GAIN = math.pi / (math.pi - 1)
WALKERS_PER_CHANNEL = 500


def predicted_gains(architecture: Architecture, init: str, image_side: int) -> Floats:
    """Predict how much each block amplifies the norm of the gradient, from its output to its input, before training.

    Weights are taken for independent of the activations and of the gradient that meets them, as in mean field theory,
    and widths for large. Squared, each 3x3 convolution multiplies the gradient's norm by its fan in, times the variance
    of its weights, times the mean share of the kernel that lies on the image and not on the zero padding; a ReLU behind
    a symmetric pre-activation halves it. So `he` keeps the norm but for the padding: on maps of 2x2 pixels, where
    five ninths of every kernel lie outside, each layer takes 5/9 of the squared norm away.

    - `lsuv` without batch normalisation scales the weights so that padding is made up for: gain 1 per plain layer.
    - Batch normalisation takes the mean away and divides by the standard deviation. After a ReLU the variance is
      1/2 - 1 / (2 pi) where the second moment is 1/2: for large batches a plain layer multiplies the squared norm by
      pi / (pi - 1), about 1.47, whatever the initialisation. That gradients of plain normalised networks grow
      exponentially, and that no variance of the weights helps, is the result of Yang et al. 2019.
    - A residual unit `relu(x + F(x))` adds the branch's gradient to the shortcut's: 1 + b^2, squared, less what its
      ReLU stops. b^2 is the product of the branch's two layers. With batch normalisation it is pi / (pi - 1) divided
      by the variance of x, which grows by about that of a branch in each unit: in the l-th unit b^2 is of order 1 / l
      (De and Smith 2020), and the product grows as a power of depth, not exponentially.
    - What the ReLU stops is not independent from unit to unit, so x follows a random walk that 0 reflects, of
      500 values per channel, and the gradient goes back through the same masks.

    Args:
        architecture: A post-activation network.
        init: Name of the initialisation.
        image_side: Pixels of a side of the images.

    Returns:
        `(units,)`: gain of each block, from input to output of the network. The gradient at the output of block i
        relative to the last one's is the product of the gains of the blocks behind it.

    Raises:
        ResprobeError: If the network is a pre-activation one, or the initialisation is unknown.

    References:
        Yang, Pennington, Rao, Sohl-Dickstein, Schoenholz 2019, A Mean Field Theory of Batch Normalization
        (arXiv 1902.08129). De, Smith 2020, Batch Normalization Biases Residual Blocks Towards the Identity Function in
        Deep Networks (arXiv 2002.10444). He et al. 2015 (arXiv 1502.01852), section 2.2, on plain layers.

    Example:
        >>> from resprobe.networks import parse_architecture
        >>> predicted_gains(parse_architecture("plain20", norm="none"), "lsuv", 32).round(3).tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    check_init(init)
    if architecture.preactivation:
        raise ResprobeError(
            f"architecture: expected a post-activation network, got {architecture.name}; give resnetN or plainN"
        )
    if architecture.residual:
        return _residual(architecture, init, image_side)
    return np.array([math.sqrt(_plain(block, architecture, init)) for block in _blocks(architecture, image_side)])


def relative_gradients(gains: Floats) -> Floats:
    """Turn gains into gradients at the outputs of the units, relative to the last one's.

    Args:
        gains: `(units,)`, from input to output.

    Returns:
        `(units,)`, ending with 1.
    """
    back = np.concatenate([[1.0], gains[:0:-1]])
    return np.asarray(np.cumprod(back)[::-1])


def mean_taps(side: int, stride: int) -> float:
    """Count the pixels of the image under a padded 3x3 kernel, on average over the places of the output.

    Args:
        side: Pixels of a side of the input.
        stride: The convolution's.

    Returns:
        A number up to 9.
    """
    reach = KERNEL // 2
    taps = [min(centre + reach, side - 1) - max(centre - reach, 0) + 1 for centre in range(0, side, stride)]
    return float(np.mean(taps)) ** 2


_Block = tuple[int, int, int, int]


def _blocks(architecture: Architecture, image_side: int) -> list[_Block]:
    """Give the channels in and out, the side of the input and the stride of each block."""
    blocks = []
    channels, side = architecture.width, image_side
    for stage in range(3):
        for place in range(architecture.blocks_per_stage):
            stride = 2 if stage and not place else 1
            out = channels * stride
            blocks.append((channels, out, side, stride))
            channels, side = out, math.ceil(side / stride)
    return blocks


def _spread(channels_in: int, channels_out: int, side: int, stride: int, init: str) -> float:
    """Give the sum of squared weights that an output meets, on average: the layer's squared gain without its ReLU."""
    fan_in, fan_out = KERNEL**2 * channels_in, KERNEL**2 * channels_out
    variance = {"he": 2 / fan_in, "xavier": 2 / (fan_in + fan_out)}.get(init, 1 / fan_in)
    return channels_in * mean_taps(side, stride) * variance


def _spreads(block: _Block, init: str) -> tuple[float, float]:
    channels, out, side, stride = block
    return _spread(channels, out, side, stride, init), _spread(out, out, math.ceil(side / stride), 1, init)


def _plain(block: _Block, architecture: Architecture, init: str) -> float:
    if architecture.norm == "batch":
        return NORMALISED_GAIN**2
    if init == "lsuv":
        return 1.0
    first, second = _spreads(block, init)
    return first * second / 4


def _residual(architecture: Architecture, init: str, image_side: int) -> Floats:
    """Follow the values of the shortcut forward, and the squared gradient back through the same ReLUs."""
    blocks = _blocks(architecture, image_side)
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal(WALKERS_PER_CHANNEL * architecture.width), 0)
    masks, branches = [], []
    for block in blocks:
        branch, deviation = _branch(x, block, architecture, init, len(blocks))
        channels, out, _, _ = block
        widened = np.concatenate([x, np.zeros(len(x) * (out - channels) // channels)])
        before = widened + deviation * rng.standard_normal(len(widened))
        masks.append(before > 0)
        branches.append(branch)
        x = np.maximum(before, 0)
    gradient = np.ones(len(x))
    gains = []
    for (channels, out, _, _), mask, branch in zip(blocks[::-1], masks[::-1], branches[::-1], strict=True):
        arriving = gradient * mask
        # the channels that the shortcut pads have no input
        passed = arriving[: len(arriving) * channels // out]
        back = passed + branch * arriving.sum() / len(passed)
        gains.append(math.sqrt(back.sum() / gradient.sum()))
        gradient = back / back.mean()
    return np.array(gains[::-1])


def _branch(x: Floats, block: _Block, architecture: Architecture, init: str, num_blocks: int) -> tuple[float, float]:
    """Give the branch's squared gain, and the standard deviation of what it adds."""
    second_moment = float((x**2).mean())
    if architecture.norm == "batch":
        return NORMALISED_GAIN / _variance_within_channels(x, architecture), 1.0
    if init == "lsuv":
        return 1 / second_moment, 1.0
    first, second = _spreads(block, init)
    gain = first * second / 2 / (num_blocks if init == "he" else 1)
    return gain, math.sqrt(gain * second_moment)


def _variance_within_channels(x: Floats, architecture: Architecture) -> float:
    """Give the mean variance of a channel; channels of the same age are one group."""
    ages = np.split(x, len(x) // (WALKERS_PER_CHANNEL * architecture.width))
    return float(np.mean([values.var() for values in ages]))
