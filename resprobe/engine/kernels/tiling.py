"""How images are cut into tiles for a convolution, and where what is known of them lies in memory."""

from dataclasses import dataclass
from functools import cached_property

LANES = 8
PLACES = 16
# The outputs of two vectors of channels and six tiles stay in 12 of 16 registers.
CHANNELS = 2 * LANES
MOST_TILES_IN_REGISTERS = 6
# Tiles at a time: as many as keep what is known of them in the processor's cache of the second level, 7 x 7 at most.
MOST_TILES = 49
# Rows of equal places in memory would compete for the same lines of a cache: a line between them.
GAP = 16


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
    def rows_together(self) -> int:
        """Rows of tiles that are computed together."""
        rows = self.height // 2
        return max(n for n in range(1, rows + 1) if rows % n == 0 and (n == 1 or n * self.tile_columns <= MOST_TILES))

    @cached_property
    def images_together(self) -> int:
        """Images that are computed together."""
        if self.rows_together < self.height // 2:
            return 1
        return max(1, MOST_TILES // (self.rows_together * self.tile_columns))

    @property
    def tiles_together(self) -> int:
        """Tiles that are computed together."""
        return self.images_together * self.rows_together * self.tile_columns

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
        return self.tiles_together * self.in_channels + GAP

    @property
    def product_stride(self) -> int:
        """From one place of summed products to the next."""
        return self.tiles_together * self.out_channels + GAP

    @property
    def workspace(self) -> int:
        """Numbers that a call needs room for, besides its output."""
        return self.images_together * self.padded_image + PLACES * (self.input_stride + self.product_stride)


def blocks(tiles: int) -> list[tuple[int, int, int]]:
    """Cut tiles into blocks for the registers, as equal as can be.

    Args:
        tiles: How many there are.

    Returns:
        Runs of blocks of equal size: that size, the first tile, and where the run ends.
    """
    number = -(-tiles // MOST_TILES_IN_REGISTERS)
    size, larger = divmod(tiles, number)
    middle = (number - larger) * size
    runs = [(size, 0, middle), (size + 1, middle, tiles)]
    return [run for run in runs if run[1] < run[2]]
