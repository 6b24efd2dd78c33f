"""Convolutions of 3 x 3 with fewer multiplications (Lavin, Gray 2016, arXiv 1509.09308, section 4.1).

F(2 x 2, 3 x 3): a tile of 2 x 2 outputs comes from 4 x 4 inputs `d` and a kernel `g` as

    A^T [(G g G^T) * (B^T d B)] A

with 16 products for each pair of channels in place of 36, and the additions of B and A. For each of the 16 places the
products, summed over the input channels, are a product of matrices, tiles by channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from llvmlite import ir

from resprobe.kernels.compiling import LANES, Compiled, compiled
from resprobe.kernels.emitting import Emitter, Number

PLACES = 16
# The outputs of two vectors of channels and six tiles stay in 12 of 16 registers.
CHANNELS = 2 * LANES
MOST_TILES_IN_REGISTERS = 6
# Tiles at a time: as many as keep what is known of them in the processor's cache of the second level, 7 x 7 at most.
MOST_TILES = 49
# Rows of equal places in memory would compete for the same lines of a cache: a line between them.
GAP = 16
INPUT_CHANNELS_PER_TURN = 2
_NUM_POINTERS = 6


@dataclass(frozen=True)
class Shape:
    """What a kernel is made for: images `(N, in_channels, height, width)` in channels_last format.

    Attributes:
        in_channels: A multiple of 8.
        out_channels: A multiple of 16.
        height: Even.
        width: Even.
    """

    in_channels: int
    out_channels: int
    height: int
    width: int

    @property
    def is_possible(self) -> bool:
        """Whether a kernel can be made for this shape."""
        has_vectors = self.in_channels % LANES == 0 and self.out_channels % CHANNELS == 0
        return has_vectors and self.height % 2 == 0 and self.width % 2 == 0

    @property
    def num_products(self) -> int:
        """Multiplications of a direct convolution of one image."""
        return 9 * self.in_channels * self.out_channels * self.height * self.width

    @cached_property
    def tile_columns(self) -> int:
        """Tiles side by side."""
        return self.width // 2

    @cached_property
    def tile_rows(self) -> int:
        """Rows of tiles that are computed together."""
        rows = self.height // 2
        return max(n for n in range(1, rows + 1) if rows % n == 0 and (n == 1 or n * self.tile_columns <= MOST_TILES))

    @cached_property
    def images(self) -> int:
        """Images that are computed together."""
        if self.tile_rows < self.height // 2:
            return 1
        return max(1, MOST_TILES // (self.tile_rows * self.tile_columns))

    @property
    def tiles(self) -> int:
        """Tiles that are computed together."""
        return self.images * self.tile_rows * self.tile_columns

    @property
    def padded_row(self) -> int:
        """Numbers in a row of an image with its border of zeros."""
        return (self.width + 2) * self.in_channels

    @property
    def padded_image(self) -> int:
        """Numbers in an image with its border of zeros."""
        return (self.height + 2) * self.padded_row

    @property
    def input_stride(self) -> int:
        """From one place of transformed inputs to the next."""
        return self.tiles * self.in_channels + GAP

    @property
    def product_stride(self) -> int:
        """From one place of summed products to the next."""
        return self.tiles * self.out_channels + GAP

    @property
    def workspace(self) -> int:
        """Numbers that a call needs room for, besides its output."""
        return self.images * self.padded_image + PLACES * (self.input_stride + self.product_stride)


def transformed(weight: torch.Tensor) -> torch.Tensor:
    """Transform the weight of a convolution.

    Args:
        weight: `(out_channels, in_channels, 3, 3)`.

    Returns:
        `G g G^T` in float32, `(16, out_channels / 16, in_channels, 16)`: for each place and each 16 outputs a matrix.
    """
    basis = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)
    spread = torch.einsum("ai,bj,kcij->abkc", basis, basis, weight.detach().double())
    by_vector = spread.reshape(PLACES, -1, CHANNELS, weight.shape[1])
    return by_vector.transpose(2, 3).float().contiguous()


@cache
def kernel(shape: Shape, *, adds: bool, relu: bool) -> Compiled:
    """Make the function that convolves images with zeros around them.

    Args:
        shape: A possible one.
        adds: Whether a tensor of the output's shape is added.
        relu: Whether negative results become zero in the end.

    Returns:
        Takes the addresses of images, output, summand (anything without `adds`), transformed weight, bias and
        workspace, and the number of images, one at least. All are float32, the first three channels_last.
    """
    module = ir.Module()
    _Convolution(module, shape, adds, relu).write()
    return compiled(module, "convolve", _NUM_POINTERS)


class _Convolution:
    """Writes the function.

    Args:
        module: Where to.
        shape: As in `kernel`.
        adds: As in `kernel`.
        relu: As in `kernel`.
    """

    def __init__(self, module: ir.Module, shape: Shape, adds: bool, relu: bool) -> None:
        self.shape, self.adds, self.relu = shape, adds, relu
        self.code = code = Emitter(module, "convolve", _NUM_POINTERS, LANES)
        self.images, self.output, self.summand, self.weight, self.bias, self.padded = code.pointers
        self.inputs = code.at(self.padded, shape.images * shape.padded_image)
        self.products = code.at(self.inputs, PLACES * shape.input_stride)

    def write(self) -> None:
        code, shape = self.code, self.shape
        code.loop(
            shape.images * shape.padded_image,
            lambda number: code.store(code.zero, self.padded, number),
            step=LANES,
        )
        code.loop(code.count, self._convolve_images, step=shape.images)
        code.end()

    def _convolve_images(self, first: Number) -> None:
        """Convolve as many images as are computed together; fewer at the end."""
        code, shape = self.code, self.shape
        number = code.at_most(code.minus(code.count, first), shape.images)
        code.loop(number, lambda image: self._pad(code.sum(first, image), image))

        def convolve_rows(first_row: Number) -> None:
            def each_row(do: Callable[[Number, Number, Number], None]) -> None:
                """Write a loop over rows of tiles; each has an image, a row in it, and a first tile."""
                code.loop(
                    number,
                    lambda image: code.loop(
                        shape.tile_rows,
                        lambda row: do(
                            image,
                            code.sum(first_row, row),
                            code.times(code.sum(code.times(image, shape.tile_rows), row), shape.tile_columns),
                        ),
                    ),
                )

            each_row(self._transform_inputs)
            code.loop(PLACES, self._multiply)
            each_row(lambda image, row, tile: self._transform_products(code.sum(first, image), row, tile))

        code.loop(shape.height // 2, convolve_rows, step=shape.tile_rows)

    def _pad(self, image: Number, place: Number) -> None:
        """Copy an image into its border of zeros."""
        code, shape = self.code, self.shape
        size = shape.width * shape.in_channels

        def copy_row(row: Number) -> None:
            source = code.times(code.sum(code.times(image, shape.height), row), size)
            target = code.sum(
                code.times(place, shape.padded_image),
                code.times(row, shape.padded_row),
                shape.padded_row + shape.in_channels,
            )
            code.loop(
                size,
                lambda number: code.store(code.load(self.images, source, number), self.padded, target, number),
                step=LANES,
            )

        code.loop(shape.height, copy_row)

    def _transform_inputs(self, image: Number, row: Number, first_tile: Number) -> None:
        """Write `B^T d B` of a row of tiles; neighbours share two of their four columns."""
        code, shape = self.code, self.shape
        corner = code.sum(code.times(image, shape.padded_image), code.times(row, 2 * shape.padded_row))

        def columns(start: Number) -> list[list[Number]]:
            return [
                self._spread(
                    [code.load(self.padded, start, y * shape.padded_row + x * shape.in_channels) for y in range(4)]
                )
                for x in range(2)
            ]

        def transform(channel: Number) -> None:
            start = code.sum(corner, channel)

            def transform_tile(column: Number, *left: Number) -> Sequence[Number]:
                right = columns(code.sum(start, code.times(column, 2 * shape.in_channels), 2 * shape.in_channels))
                target = code.sum(code.times(code.sum(first_tile, column), shape.in_channels), channel)
                for y in range(4):
                    parts = self._spread([left[y], left[4 + y], right[0][y], right[1][y]])
                    for x, part in enumerate(parts):
                        code.store(part, self.inputs, target, (4 * y + x) * shape.input_stride)
                return [*right[0], *right[1]]

            one, other = columns(start)
            code.loop(shape.tile_columns, transform_tile, carried=[*one, *other])

        code.loop(shape.in_channels, transform, step=LANES)

    def _spread(self, d: Sequence[Number]) -> list[Number]:
        """Apply `B^T`."""
        code = self.code
        return [
            code.subtract(d[0], d[2]),
            code.add(d[1], d[2]),
            code.subtract(d[2], d[1]),
            code.subtract(d[1], d[3]),
        ]

    def _multiply(self, place: Number) -> None:
        """Write the products at one place, summed over input channels, of all tiles and output channels."""
        code, shape = self.code, self.shape

        def multiply(channel: Number) -> None:
            matrix = code.sum(
                code.times(place, shape.in_channels * shape.out_channels), code.times(channel, shape.in_channels)
            )
            for tiles, first, stop in _blocks(shape.tiles):
                code.loop(
                    stop,
                    lambda tile, tiles=tiles: self._multiply_tiles(place, channel, matrix, tile, tiles),
                    start=first,
                    step=tiles,
                )

        code.loop(shape.out_channels, multiply, step=CHANNELS)

    def _multiply_tiles(self, place: Number, channel: Number, matrix: Number, first: Number, tiles: int) -> None:
        code, shape = self.code, self.shape
        source = code.sum(code.times(place, shape.input_stride), code.times(first, shape.in_channels))

        def add_products(in_channel: Number, *sums: Number) -> list[Number]:
            for turn in range(INPUT_CHANNELS_PER_TURN):
                row = code.sum(matrix, code.times(in_channel, CHANNELS), turn * CHANNELS)
                weights = [code.load(self.weight, row, half * LANES) for half in range(2)]
                numbers = [
                    code.spread(self.inputs, source, in_channel, tile * shape.in_channels + turn)
                    for tile in range(tiles)
                ]
                pairs = [(number, weight) for number in numbers for weight in weights]
                sums = tuple(code.multiply_add(*pair, total) for pair, total in zip(pairs, sums, strict=True))
            return list(sums)

        sums = code.loop(
            shape.in_channels, add_products, step=INPUT_CHANNELS_PER_TURN, carried=[code.zero] * (2 * tiles)
        )
        target = code.sum(code.times(place, shape.product_stride), code.times(first, shape.out_channels), channel)
        for position, total in enumerate(sums):
            tile, half = divmod(position, 2)
            code.store(total, self.products, target, tile * shape.out_channels + half * LANES)

    def _transform_products(self, image: Number, row: Number, first_tile: Number) -> None:
        """Write `A^T m A` of a row of tiles, and what comes behind the convolution."""
        code, shape = self.code, self.shape
        line = shape.width * shape.out_channels
        corner = code.sum(code.times(image, shape.height * line), code.times(row, 2 * line))

        def transform_tile(column: Number) -> None:
            tile = code.sum(first_tile, column)

            def transform(channel: Number) -> None:
                source = code.sum(code.times(tile, shape.out_channels), channel)
                target = code.sum(corner, code.times(column, 2 * shape.out_channels), channel)
                bias = code.load(self.bias, channel)
                columns = [
                    self._gather(
                        [code.load(self.products, source, (4 * y + x) * shape.product_stride) for y in range(4)]
                    )
                    for x in range(4)
                ]
                for y in range(2):
                    for x, part in enumerate(self._gather([rows[y] for rows in columns])):
                        place = code.sum(target, y * line + x * shape.out_channels)
                        code.store(self._finished(code.add(part, bias), place), self.output, place)

            code.loop(shape.out_channels, transform, step=LANES)

        code.loop(shape.tile_columns, transform_tile)

    def _gather(self, m: Sequence[Number]) -> list[Number]:
        """Apply `A^T`."""
        code = self.code
        return [code.add(code.add(m[0], m[1]), m[2]), code.subtract(code.subtract(m[1], m[2]), m[3])]

    def _finished(self, vector: Number, place: Number) -> Number:
        if self.adds:
            vector = self.code.add(vector, self.code.load(self.summand, place))
        return self.code.relu(vector) if self.relu else vector


def _blocks(tiles: int) -> list[tuple[int, int, int]]:
    """Cut tiles into blocks for the registers, as equal as can be: their size, the first tile, and where they end."""
    number = -(-tiles // MOST_TILES_IN_REGISTERS)
    size, larger = divmod(tiles, number)
    middle = (number - larger) * size
    return [block for block in ((size, 0, middle), (size + 1, middle, tiles)) if block[1] < block[2]]
