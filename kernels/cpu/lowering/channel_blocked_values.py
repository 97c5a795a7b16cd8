"""Blocked values: the channel-blocked layout inside a program of convolutions.

A value ``[N, C, H, W]`` (``[N, C, W]`` has H = 1) is stored as ``[N, Cb, Hp, Wp, 16]``,
Cb = ⌈C/16⌉, with a border of zeros, the halo that its readers need: Hp = top + H + bottom,
Wp = left + W + right.  It may be a range of blocks of a larger buffer, as the parts of a
concatenation are.
Lanes past C of the last block are undefined.  In bf16 a value may be stored in nchw32c, full
blocks of 32 channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.cpu.filters import BLOCK, blocks
from tracea_graph.kernels.cpu.lowering.region_writer import Shape, Slot
from tracea_graph.kernels.program import Buffer, View
from tracea_graph.ops.conv_windows import add_constant
from tracea_graph.ops.index_map import dense_strides

__all__ = [
    "NCHW32C",
    "BlockedValue",
    "Halo",
    "channel_tail",
    "matching_views",
    "per_channel",
    "spatial",
    "through_blocks",
]

NCHW32C = 2 * BLOCK
"""Channels of an nchw32c block."""
Halo = tuple[int, int, int, int]
"""Rows above, columns before, rows below, columns behind."""


def spatial(shape: Shape) -> tuple[Extent, Extent]:
    """Height and width of ``[N, C, H, W]`` or ``[N, C, W]``."""
    return (1, shape[2]) if len(shape) == 3 else (shape[2], shape[3])


def channel_tail(channels: int) -> int:
    """Channels in the last block: 1 to 16."""
    return (channels - 1) % BLOCK + 1


@dataclass(frozen=True)
class BlockedValue:
    """A value in channel blocks: ``channels`` channels from block ``first`` of a buffer on.

    The buffer has ``capacity`` blocks.
    """

    buffer: Buffer
    batch: Extent
    channels: int
    height: Extent
    width: Extent
    halo: Halo
    capacity: int
    first: int = 0
    dtype: DType = DType.F32
    numbers: int = BLOCK
    """Elements of a block per pixel: two per channel for bf16x2."""
    block: int = BLOCK
    """Channels of a block."""

    @property
    def shape(self) -> Shape:
        """Shape of the whole buffer."""
        top, left, bottom, right = self.halo
        tall, wide = (
            add_constant(self.height, top + bottom),
            add_constant(self.width, left + right),
        )
        return (self.batch, self.capacity, tall, wide, self.numbers)

    @property
    def count(self) -> Extent:
        """Elements of the whole buffer."""
        return product(self.shape)

    def part(self, first: int, channels: int) -> BlockedValue:
        """Return the value's channels [first, first + channels); ``first`` must begin a block."""
        return replace(self, channels=channels, first=self.first + first // self.block)

    def with_block(self, block: int) -> BlockedValue:
        """View the value in blocks of ``block`` channels; the buffer stays the same."""
        capacity = self.capacity * self.block // block
        return replace(self, capacity=capacity, numbers=block, block=block)

    @property
    def padded(self) -> View:
        """Return the view of the value and its whole halo."""
        return self.view(self.halo)

    def view(self, pads: Halo = (0, 0, 0, 0)) -> View:
        """Return the view that includes ``pads`` of the value's halo."""
        strides = dense_strides(self.shape)
        dims = (
            self.batch, -(-self.channels // self.block),
            add_constant(self.height, pads[0] + pads[2]),
            add_constant(self.width, pads[1] + pads[3]), self.numbers,
        )  # fmt: skip
        starts = (0, self.first, self.halo[0] - pads[0], self.halo[1] - pads[1], 0)
        offset: Extent = 0
        for start, stride in zip(starts, strides, strict=True):
            offset = combine("add", offset, combine("mul", stride, start))
        return View(self.buffer, dims, strides, offset)


def matching_views(
    source: BlockedValue, target: BlockedValue, pads: Halo = (0, 0, 0, 0)
) -> tuple[View, View]:
    """Return views of two values of equal size, with equal dims even if their blocks differ.

    Both views include ``pads`` of the halo.
    """
    views = source.view(pads), target.view(pads)
    if source.block == target.block:
        return views
    return _as_half_blocks(views[0], source.block), _as_half_blocks(views[1], target.block)


def _as_half_blocks(view: View, block: int) -> View:
    """View an nchw16c or nchw32c value as ``[N, C/32, 2, H, W, 16]``."""
    (n, count, h, w, _), (sn, sb, sh, sw, sl) = view.dims, view.strides
    assert isinstance(count, int)
    dims: Shape = (n, count * block // NCHW32C, 2, h, w, BLOCK)
    if block == NCHW32C:
        return View(view.buffer, dims, (sn, sb, BLOCK, sh, sw, sl), view.offset)
    return View(view.buffer, dims, (sn, combine("mul", sb, 2), sb, sh, sw, sl), view.offset)


def through_blocks(view: View, channels: int) -> View | None:
    """View a plain value ``[N, C, H, W]`` as ``[N, Cb, H, W, 16]``; None if C % 16 != 0."""
    if channels % BLOCK or len(view.dims) != 4:
        return None
    n, _, h, w = view.dims
    sn, sc, sh, sw = view.strides
    dims = (n, channels // BLOCK, h, w, BLOCK)
    return View(view.buffer, dims, (sn, combine("mul", sc, BLOCK), sh, sw, sc), view.offset)


def per_channel(slot: Slot, batches: bool, channels: int, full: View) -> View:
    """View one number per channel (and per image, if ``batches``) with the dims of ``full``."""
    step = BLOCK * blocks(channels) if batches else 0
    return View(slot.buffer, full.dims, (step, BLOCK, 0, 0, 1))
