from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from resprobe.engine.kernels import tiling
from resprobe.engine.kernels.availability import obstacle
from resprobe.engine.kernels.tiling import Shape, blocks

if obstacle() is not None:
    pytest.skip(f"no kernels: {obstacle()}", allow_module_level=True)

from resprobe.engine.kernels.winograd import kernel, transformed

GUARD = 1000
SHAPES = [Shape(16, 16, 8, 8), Shape(8, 32, 2, 4), Shape(32, 16, 14, 14), Shape(16, 16, 32, 32), Shape(24, 48, 6, 20)]


def images_of(shape, number, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = (number, shape.in_channels, shape.height, shape.width)
    return torch.randn(size, generator=generator).to(memory_format=torch.channels_last)


def weights_of(shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape.out_channels, shape.in_channels, 3, 3, generator=generator)
    return weight, torch.randn(shape.out_channels, generator=generator)


def convolve(shape, images, weight, bias, summand=None, *, relu=False, guarded=False):
    """Call a kernel; with guards, memory around all that it may write must stay as it was."""
    number = len(images)
    function = kernel(shape, adds=summand is not None, relu=relu)
    guard = GUARD if guarded else 0
    size = number * shape.out_channels * shape.height * shape.width
    output, workspace = (torch.full((length + 2 * guard,), 7.0) for length in (size, shape.workspace))
    inside = output[guard : guard + size], workspace[guard : guard + shape.workspace]
    summand = images if summand is None else summand
    spread = transformed(weight)
    tensors = images, inside[0], summand, spread, bias, inside[1]
    function.call(*(tensor.data_ptr() for tensor in tensors), number)
    for memory in (output, workspace):
        assert (memory[:guard] == 7).all()
        assert (memory[len(memory) - guard :] == 7).all()
    return inside[0].view(number, shape.height, shape.width, shape.out_channels).permute(0, 3, 1, 2)


def exact(images, weight, bias):
    return F.conv2d(images.double(), weight.double(), bias.double(), padding=1)


@settings(max_examples=25)
@given(
    st.integers(1, 4).map(lambda n: 8 * n),
    st.integers(1, 3).map(lambda n: 16 * n),
    st.integers(1, 10).map(lambda n: 2 * n),
    st.integers(1, 10).map(lambda n: 2 * n),
    st.integers(1, 7),
    st.booleans(),
    st.booleans(),
)
def test_convolution_in_double_precision(in_channels, out_channels, height, width, number, adds, relu):
    shape = Shape(in_channels, out_channels, height, width)
    images = images_of(shape, number)
    weight, bias = weights_of(shape)
    summand = images_of(Shape(out_channels, out_channels, height, width), number, seed=2) if adds else None
    kept = images.clone()
    result = convolve(shape, images, weight, bias, summand, relu=relu, guarded=True)
    expected = exact(images, weight, bias) + (summand if adds else 0)
    torch.testing.assert_close(
        result.double(), expected.relu() if relu else expected, rtol=1e-5, atol=1e-5 * in_channels**0.5
    )
    assert torch.equal(images, kept)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rounding_is_about_that_of_a_direct_convolution(shape):
    images = images_of(shape, 50).relu()
    weight, bias = weights_of(shape)
    expected = exact(images, weight, bias)
    ours = (convolve(shape, images, weight, bias) - expected).square().mean().sqrt()
    direct = (F.conv2d(images, weight, bias, padding=1) - expected).square().mean().sqrt()
    # 0.8 to 1.0 of it; more where most of the nine products of a direct one are with the border
    assert ours <= (1.6 if shape.height == 2 else 1.05) * direct


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_image_has_the_same_result_in_any_company_bit_for_bit(shape):
    images = images_of(shape, 11)
    weight, bias = weights_of(shape)
    together = convolve(shape, images, weight, bias)
    alone = [convolve(shape, images[row : row + 1], weight, bias) for row in range(11)]
    assert torch.equal(together, torch.cat(alone))


def test_threads_do_not_disturb_each_other():
    shape = SHAPES[0]
    weight, bias = weights_of(shape)
    batches = [images_of(shape, 40, seed) for seed in range(20)]
    expected = [convolve(shape, images, weight, bias) for images in batches]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda images: convolve(shape, images, weight, bias), batches))
    assert all(torch.equal(result, one) for result, one in zip(results, expected, strict=True))


def test_relu_is_that_of_pytorch_for_what_is_no_number():
    shape = SHAPES[0]
    weight, bias = weights_of(shape)
    images = images_of(shape, 3)
    images[1] = float("nan")
    result = convolve(shape, images, weight, bias, relu=True)
    assert result[1].isnan().all()
    assert result[[0, 2]].isfinite().all()


def test_zeros_around_the_image_after_other_images():
    shape = SHAPES[0]
    weight, _ = weights_of(shape)
    images = torch.ones(5, shape.in_channels, shape.height, shape.width).to(memory_format=torch.channels_last)
    result = convolve(shape, images, weight, torch.zeros(shape.out_channels))
    torch.testing.assert_close(result, F.conv2d(images, weight, padding=1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "is_possible"),
    [
        (Shape(16, 16, 8, 8), True),
        (Shape(8, 16, 2, 2), True),
        (Shape(3, 16, 8, 8), False),
        (Shape(16, 24, 8, 8), False),
        (Shape(16, 16, 7, 8), False),
        (Shape(16, 16, 8, 7), False),
    ],
    ids=str,
)
def test_possible_shapes(shape, is_possible):
    assert shape.is_possible is is_possible


@pytest.mark.parametrize("tiles", range(1, 70))
def test_blocks_are_all_tiles_once(tiles):
    runs = blocks(tiles)
    covered = [
        tile for size, first, stop in runs for start in range(first, stop, size) for tile in range(start, start + size)
    ]
    assert covered == list(range(tiles))
    assert max(size for size, _, _ in runs) <= tiling.MOST_TILES_IN_REGISTERS
