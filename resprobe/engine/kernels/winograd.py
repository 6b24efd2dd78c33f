"""Convolutions of 3 x 3 with fewer multiplications (Lavin, Gray 2016, arXiv 1509.09308, section 4.1).

F(2 x 2, 3 x 3): a tile of 2 x 2 outputs comes from 4 x 4 inputs `d` and a kernel `g` as

    A^T [(G g G^T) * (B^T d B)] A

with 16 products for each pair of channels in place of 36, and the additions of B and A. For each of the 16 places the
products, summed over the input channels, are a product of matrices, tiles by channels.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from llvmlite import ir

from resprobe.engine.kernels.compiling import Compiled, compiled
from resprobe.engine.kernels.emitting import Emitter, Number
from resprobe.engine.kernels.tiling import CHANNELS, LANES, PLACES, Shape, blocks

INPUT_CHANNELS_PER_TURN = 2
_NUM_POINTERS = 6


def transformed(weight: torch.Tensor) -> torch.Tensor:
    """Transform the weight of a convolution.

    Args:
        weight: `(out_channels, in_channels, 3, 3)`.

    Returns:
        `G g G^T` in float32, `(16, out_channels / 16, in_channels, 16)`: for each place and each 16 outputs a matrix.
    """
    weight = weight.detach().double()
    basis = weight.new_tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    spread = torch.einsum("ai,bj,kcij->abkc", basis, basis, weight)
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
        self.inputs = code.at(self.padded, shape.images_together * shape.padded_image)
        self.products = code.at(self.inputs, PLACES * shape.input_stride)

    def write(self) -> None:
        code, shape = self.code, self.shape
        code.loop(
            shape.images_together * shape.padded_image,
            lambda number: code.store(code.zero, self.padded, number),
            step=LANES,
        )
        code.loop(code.count, self._convolve_images, step=shape.images_together)
        code.end()

    def _convolve_images(self, first: Number) -> None:
        """Convolve as many images as are computed together; fewer at the end."""
        code, shape = self.code, self.shape
        number = code.at_most(code.minus(code.count, first), shape.images_together)
        code.loop(number, lambda image: self._pad(code.sum(first, image), image))

        def convolve_rows(first_row: Number) -> None:
            def each_row(do: Callable[[Number, Number, Number], None]) -> None:
                """Write a loop over rows of tiles; each has an image, a row in it, and a first tile."""
                code.loop(
                    number,
                    lambda image: code.loop(
                        shape.rows_together,
                        lambda row: do(
                            image,
                            code.sum(first_row, row),
                            code.times(code.sum(code.times(image, shape.rows_together), row), shape.tile_columns),
                        ),
                    ),
                )

            each_row(self._transform_inputs)
            code.loop(PLACES, self._multiply)
            each_row(lambda image, row, tile: self._transform_products(code.sum(first, image), row, tile))

        code.loop(shape.height // 2, convolve_rows, step=shape.rows_together)

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
            for tiles, first, stop in blocks(shape.tiles_together):
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
