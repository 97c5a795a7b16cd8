"""The values of a region during lowering: plain, blocked, or both.

A value has the layout its producer writes.  The other layout is made at most once, when a step
reads it, by a ``reorder_to_nchw16c`` or ``reorder_to_nchw`` call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracea_graph.ir import DType, TensorSpec, combine
from tracea_graph.kernels.cpu.filters import BLOCK, blocks
from tracea_graph.kernels.cpu.lowering.channel_blocked_values import (
    NCHW32C,
    BlockedValue,
    Halo,
    channel_tail,
    matching_views,
    per_channel,
    spatial,
    through_blocks,
)  # fmt: skip
from tracea_graph.kernels.cpu.lowering.choose_bf16_storage import StoredTypes
from tracea_graph.kernels.cpu.lowering.choose_layouts import RegionLayout
from tracea_graph.kernels.cpu.lowering.region_writer import RegionWriter, Shape, Slot
from tracea_graph.kernels.program import Buffer, View
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.passes.pointwise.bound_expressions import IDENTITY

__all__ = ["ChannelShuffle", "DeferredChain", "RegionValues", "copy", "with_four_axes"]


@dataclass(frozen=True)
class ChannelShuffle:
    """A range of channels of a concatenation, after a channel shuffle.

    The concatenated ``parts`` are shuffled in ``groups``; the range starts at channel ``first``.
    """

    parts: tuple[int, ...]
    groups: int = 1
    first: int = 0


@dataclass(frozen=True)
class DeferredChain:
    """An elementwise ``chain`` of a blocked value and per-channel vectors, not yet computed.

    ``rows`` has each vector, and whether it differs from image to image.
    """

    source: int
    chain: Chain
    rows: tuple[tuple[Slot, bool], ...]


@dataclass
class RegionValues:
    """The values of a region during lowering, each in one or more layouts.

    * ``dense``: contiguous tensors; ``views``: other strided views ``[N, C, …]``
    * ``blocks``, ``bf16``, ``int16``, ``bf16x2``, ``fp16``: blocked values, by element type
    * ``targets``: the region's results; ``dsts``: destinations of blocked values
    * ``shuffled``, ``shifted``: values that are computed when a step first reads them
    * ``written_by_pad``: values that their only consumer, a pad, computes as ``spread`` describes
    """

    w: RegionWriter
    layout: RegionLayout
    specs: Sequence[TensorSpec]
    rounding: StoredTypes
    dense: dict[int, Slot] = field(default_factory=dict)
    views: dict[int, View] = field(default_factory=dict)
    blocks: dict[int, BlockedValue] = field(default_factory=dict)
    targets: dict[int, Slot] = field(default_factory=dict)
    dsts: dict[int, BlockedValue] = field(default_factory=dict)
    channel_vectors: dict[int, Slot] = field(default_factory=dict)
    bf16: dict[tuple[int, int], BlockedValue] = field(default_factory=dict)
    int16: dict[int, BlockedValue] = field(default_factory=dict)
    bf16x2: dict[int, BlockedValue] = field(default_factory=dict)
    fp16: dict[int, BlockedValue] = field(default_factory=dict)
    scales: dict[int, Slot] = field(default_factory=dict)
    shuffled: dict[int, ChannelShuffle] = field(default_factory=dict)
    shifted: dict[int, DeferredChain] = field(default_factory=dict)
    written_by_pad: frozenset[int] = frozenset()
    reads: Mapping[int, int] = field(default_factory=dict)
    spread: dict[int, tuple[LayoutParams, tuple[int, ...]]] = field(default_factory=dict)

    def shape(self, value: int) -> Shape:
        return self.specs[value].shape or ()

    # ---- reading -----------------------------------------------------------------------

    def slot(self, value: int) -> Slot:
        """The value as a dense plain tensor."""
        if value not in self.dense:
            slot = self.targets.get(value) or self.w.temp(self.specs[value])
            if value in self.views or value in self.shuffled or value in self.shifted:
                self.block(value)
            self._unblock(value, slot.view)
            self.dense[value] = slot
        return self.dense[value]

    def alias(self, value: int, result: int) -> None:
        """Make ``result`` an alias of ``value`` with the result's shape."""
        source = self.slot(value)
        spec = TensorSpec(source.spec.dtype, self.specs[result].shape)
        self.dense[result] = dataclasses.replace(source, spec=spec)

    def view(self, value: int) -> View:
        """The value as a plain view ``[N, C, …]`` of any strides."""
        return self.views[value] if value in self.views else self.slot(value).view

    def unblocked(self, value: int, order: Sequence[int]) -> Slot:
        """A blocked value ``[N, C, H, W]`` as a dense tensor with permuted axes."""
        shape = tuple(self.shape(value)[a] for a in order)
        slot = self.w.temp(TensorSpec(DType.F32, shape))
        strides = dense_strides(shape)
        back = tuple(strides[order.index(axis)] for axis in range(len(order)))
        self._unblock(value, View(slot.buffer, self.shape(value), back))
        return slot

    def unblock_into(self, value: int, place: View) -> bool:
        """Reorder a blocked value with a single consumer straight into ``place``.

        Returns False if the value is not blocked, has other consumers, or does not match the view.
        """
        shape = self.shape(value)
        alone = self.reads.get(value) == 1 and value not in self.targets
        if not alone or value in self.dense or not self.is_blocked(value):
            return False
        strides = place.strides
        if place.dims != shape:
            if len(place.dims) != 3 or place.dims[:2] != shape[:2]:
                return False
            inner = (combine("mul", s, strides[2]) for s in dense_strides(shape[2:]))
            strides = (*strides[:2], *inner)
        self.block(value)
        self._unblock(value, View(place.buffer, shape, strides, place.offset))
        return True

    def _unblock(self, value: int, target: View) -> None:
        source = self.blocks[value]
        tail = channel_tail(source.channels)
        self.w.call("reorder_to_nchw", x=source.view(), y=with_four_axes(target), tail=tail)

    def block(self, value: int) -> BlockedValue:
        """The value in the blocked layout, with the element type it is stored in."""
        if value not in self.blocks:
            dst = self.dst(value)
            if value in self.shuffled:
                self._write_shuffle(self.shuffled.pop(value), dst)
            elif value in self.shifted:
                self._shift(value, dst)
            else:
                self.block_into(value, dst)
            self.blocks[value] = dst
        return self.blocks[value]

    def is_blocked(self, value: int) -> bool:
        """Whether the value is blocked, or will be when a step reads it."""
        return value in self.blocks or value in self.shuffled or value in self.shifted

    def _write_shuffle(self, shuffle: ChannelShuffle, dst: BlockedValue) -> None:
        channels = tuple(self.layout.channels(part) for part in shuffle.parts)
        views = [self.block(part).view() for part in shuffle.parts]
        self.w.call(
            "channel_shuffle", parts=views, y=dst.padded,
            groups=shuffle.groups, first=shuffle.first,
            channels=dst.channels, halo=dst.halo, part_channels=channels,
        )  # fmt: skip

    def _shift(self, value: int, dst: BlockedValue) -> None:
        """Write a shifted value for consumers other than elementwise chains."""
        shifted, inner = self.shifted[value], dst.view()
        chain = dataclasses.replace(shifted.chain, stores=(dst.dtype,))
        source = self.block(shifted.source).view()
        views = (per_channel(*row, dst.channels, inner) for row in shifted.rows)
        self.w.call("elementwise", x=[source, *views], y=inner, chain=chain)
        self.finish(value, dst)

    def block_in_bf16(self, value: int, block: int = BLOCK) -> BlockedValue:
        """The value in bf16 and blocks of ``block`` channels; converted once if needed."""
        source = self.block(value)
        if source.dtype is DType.BF16 and source.block == block:
            return source
        if (value, block) not in self.bf16:
            made = self._like(source, DType.BF16, block)
            self.copy_blocked(source, made, source.halo)
            self.bf16[value, block] = made
        return self.bf16[value, block]

    def copy_blocked(
        self, source: BlockedValue, place: BlockedValue, pads: Halo = (0, 0, 0, 0)
    ) -> None:
        """Copy a value, ``pads`` of its halo included; round if the destination is bf16."""
        copy(self.w, *matching_views(source, place, pads))

    def block_in_bf16x2(self, value: int) -> BlockedValue:
        """Return a value in channel blocks, every element as bf16x2 (hi + lo)."""
        if value not in self.bf16x2:
            made = self._like(self.block(value), DType.BF16, BLOCK, 2 * BLOCK)
            self.bf16x2[value] = self._rounded_images(value, made, "bf16x2")
        return self.bf16x2[value]

    def block_in_fp16(self, value: int) -> BlockedValue:
        """Return a value in channel blocks, every element in fp16."""
        if value not in self.fp16:
            made = self._like(self.block(value), DType.F16)
            self.fp16[value] = self._rounded_images(value, made, "f16")
        return self.fp16[value]

    def _rounded_images(self, value: int, made: BlockedValue, dtype: str) -> BlockedValue:
        source = self.block(value)
        self.w.call(
            "round_images", dtype, x=source.view(), y=made.padded,
            tail=channel_tail(source.channels), halo=made.halo,
        )  # fmt: skip
        return made

    def block_in_int16(self, value: int) -> tuple[BlockedValue, Slot]:
        """Return the value in blocks of int16, and the scale of each image."""
        source = self.block(value)
        if value not in self.int16:
            made = self._like(source, DType.I16)
            self.scales[value] = self._round_images(source, made)
            self.int16[value] = made
        return self.int16[value], self.scales[value]

    def image_scales(self, value: int) -> Slot:
        """The int16 scale of each image of a blocked value."""
        if value not in self.scales:
            self.scales[value] = self._round_images(self.block(value), None)
        return self.scales[value]

    def _round_images(self, source: BlockedValue, made: BlockedValue | None) -> Slot:
        scale = self.w.temp(TensorSpec(DType.F32, (source.batch,)))
        self.w.call(
            "round_images", "int16", x=source.view(), y=made.padded if made else None,
            scales=scale.view, tail=channel_tail(source.channels),
            halo=made.halo if made else (0, 0, 0, 0),
        )  # fmt: skip
        return scale

    def _like(
        self, source: BlockedValue, dtype: DType, block: int = BLOCK, numbers: int | None = None
    ) -> BlockedValue:
        """Allocate a buffer for the value of ``source`` in another type and block size."""
        made = dataclasses.replace(
            source, capacity=-(-source.channels // block), first=0, dtype=dtype, block=block,
            numbers=numbers or block,
        )  # fmt: skip
        slot = self.w.temp(TensorSpec(dtype, (made.count,)))
        return dataclasses.replace(made, buffer=slot.buffer)

    def block_into(self, value: int, place: BlockedValue) -> None:
        """Reorder a plain value into blocks."""
        tail = channel_tail(place.channels)
        self.w.call(
            "reorder_to_nchw16c",
            x=with_four_axes(self.view(value)),
            y=place.padded,
            tail=tail,
            halo=place.halo,
        )

    def over(self, value: int, full: int, target: View, lanes: bool = False) -> View:
        """View an operand of a chain over the interior ``target`` of the blocked value ``full``.

        If ``lanes``, the channels of an operand as large as ``full`` are contiguous, as
        convolutions need.
        """
        kind = self.layout.lies_over(value, full)
        if kind == "full" and self.shape(value) != self.shape(full):
            return self.block(value).view().stretched(target.dims)
        if kind == "full":
            if not self.is_blocked(value) and not lanes:
                seen = through_blocks(self.view(value), self.layout.channels(value))
                if seen is not None:
                    return seen
            return self.block(value).view()
        if kind == "row":
            return self._rows(value, full, target)
        slot, shape = self.slot(value), self.shape(value)
        if kind == "scalar":
            return View(slot.buffer, target.dims, (0,) * 5)
        height, width = dense_strides((1, *shape))[-2:]
        batch = (
            0 if len(shape) < len(self.shape(full)) or shape[0] == 1 else dense_strides(shape)[0]
        )
        return View(slot.buffer, target.dims, (batch, 0, height, width, 0))

    def _rows(self, value: int, full: int, target: View) -> View:
        """View one number per channel over ``target``."""
        slot, batches = self.by_channel(value, full)
        return per_channel(slot, batches, self.layout.channels(full), target)

    def by_channel(self, value: int, full: int) -> tuple[Slot, bool]:
        """Return a per-channel vector in whole blocks, and whether it differs per image."""
        channels, shape = self.layout.channels(full), self.shape(value)
        batches = len(shape) == len(self.shape(full)) and shape[0] != 1
        slot = self.slot(value)
        if channels % BLOCK:
            if value not in self.channel_vectors:
                batch = shape[0] if batches else 1
                wide = (batch, blocks(channels), 1, 1, BLOCK)
                made = self.w.temp(TensorSpec(DType.F32, wide))
                plain = View(slot.buffer, (batch, channels, 1, 1), (channels, 1, 1, 1))
                tail = channel_tail(channels)
                self.w.call(
                    "reorder_to_nchw16c", x=plain, y=made.view, tail=tail, halo=(0, 0, 0, 0)
                )
                self.channel_vectors[value] = made
            slot = self.channel_vectors[value]
        return slot, batches

    # ---- writing -----------------------------------------------------------------------

    def dst(self, value: int) -> BlockedValue:
        """The destination of a blocked value: its own buffer, or a part of its root's."""
        if value not in self.dsts:
            root, first = self.layout.root(value)
            if root == value:
                self.dsts[value] = self._allocate(value)
            else:
                self.dsts[value] = self.dst(root).part(first, self.layout.channels(value))
        return self.dsts[value]

    def finish(self, value: int, dst: BlockedValue) -> None:
        """Clear the halo of a value whose interior has been written, and record the value."""
        if any(dst.halo):
            self.w.call("zero_pad", y=dst.padded, halo=dst.halo)
        self.blocks[value] = dst

    def interior(self, value: int) -> View:
        """The destination of a blocked value without its halo."""
        return self.dst(value).view()

    def _allocate(self, value: int) -> BlockedValue:
        shape = self.shape(value)
        height, width = spatial(shape)
        dst = BlockedValue(
            Buffer("temp", -1), shape[0], self.layout.channels(value), height, width,
            self.layout.halo(value), self.layout.capacity(value),
            dtype=DType.BF16 if value in self.rounding.only else DType.F32,
        )  # fmt: skip
        if value in self.rounding.nchw32c:
            dst = dst.with_block(NCHW32C)
        slot = self.w.temp(TensorSpec(dst.dtype, (dst.count,)))
        return dataclasses.replace(dst, buffer=slot.buffer)

    def out(self, value: int) -> Slot:
        """The destination of a plain value."""
        if value not in self.dense:
            half = TensorSpec(DType.BF16, self.specs[value].shape)
            if value in self.rounding.only:
                slot = self.w.temp(half)
            else:
                slot = self.targets.get(value) or self.w.temp(self.specs[value])
            if value in self.rounding.too:
                slot = dataclasses.replace(slot, rounded=self.w.temp(half).buffer)
            self.dense[value] = slot
        return self.dense[value]


def copy(w: RegionWriter, source: View, target: View) -> None:
    """Copy ``source`` to ``target``, converting between fp32 and bf16 if their types differ."""
    if w.dtype(source.buffer) in (DType.BF16, DType.U8, DType.I8):
        w.call("copy", x=source, y=target)
    elif w.dtype(target.buffer) is DType.BF16:
        chain = dataclasses.replace(IDENTITY, stores=(DType.BF16,))
        w.call("elementwise", x=source, y=target, chain=chain)
    else:
        w.call("elementwise", x=source, y=target, chain=IDENTITY)


def with_four_axes(view: View) -> View:
    """View ``[N, C, W]`` as ``[N, C, 1, W]``; four axes stay as they are."""
    if len(view.dims) != 3:
        return view
    (n, c, w), (sn, sc, sw) = view.dims, view.strides
    return View(view.buffer, (n, c, 1, w), (sn, sc, 0, sw), view.offset)
