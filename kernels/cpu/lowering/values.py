"""The values of a region while its calls are written: plain, in blocks, or both.

A value exists as the step that makes it writes it; the other form is made when a step asks for
it, once, by a ``reorder_to_nchw16c`` or ``reorder_to_nchw`` call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracea_graph.ir import DType, TensorSpec, combine
from tracea_graph.kernels.cpu.filters import BLOCK, blocks
from tracea_graph.kernels.cpu.lowering.blocked import (
    NCHW32C,
    BlockedValue,
    Halo,
    alike,
    channel_tail,
    per_channel,
    spatial,
    through_blocks,
)  # fmt: skip
from tracea_graph.kernels.cpu.lowering.layout import Layout
from tracea_graph.kernels.cpu.lowering.rounding import Rounding
from tracea_graph.kernels.cpu.lowering.writer import Shape, Slot, Writer
from tracea_graph.kernels.program import Buffer, View
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.ops.layout import LayoutParams
from tracea_graph.passes.pointwise.chains import IDENTITY

__all__ = ["Deal", "Shifted", "Values", "copy", "four"]


@dataclass(frozen=True)
class Deal:
    """Channels from ``first`` on of ``parts`` put together, then shuffled in ``groups``."""

    parts: tuple[int, ...]
    groups: int = 1
    first: int = 0


@dataclass(frozen=True)
class Shifted:
    """``chain`` of a blocked value and numbers for its channels; of each row, whether images have
    their own."""

    source: int
    chain: Chain
    rows: tuple[tuple[Slot, bool], ...]


@dataclass
class Values:
    """The values of a region while its calls are written, each in one form or two.

    ``plain`` holds strided views ``[N, C, …]`` that may be no dense slot (a transposed view);
    ``targets`` the region's results, where they have to be at the end; ``dealt`` and ``shifted``
    blocked values that nobody has asked for yet; ``inlaid`` those that only a pad asks for, and
    ``spread`` what they are.
    """

    w: Writer
    layout: Layout
    specs: Sequence[TensorSpec]
    rounding: Rounding
    dense: dict[int, Slot] = field(default_factory=dict)
    views: dict[int, View] = field(default_factory=dict)
    blocks: dict[int, BlockedValue] = field(default_factory=dict)
    targets: dict[int, Slot] = field(default_factory=dict)
    homes: dict[int, BlockedValue] = field(default_factory=dict)
    padded: dict[int, Slot] = field(default_factory=dict)
    halves: dict[tuple[int, int], BlockedValue] = field(default_factory=dict)
    whole: dict[int, BlockedValue] = field(default_factory=dict)
    split: dict[int, BlockedValue] = field(default_factory=dict)
    scales: dict[int, Slot] = field(default_factory=dict)
    dealt: dict[int, Deal] = field(default_factory=dict)
    shifted: dict[int, Shifted] = field(default_factory=dict)
    inlaid: frozenset[int] = frozenset()
    reads: Mapping[int, int] = field(default_factory=dict)
    spread: dict[int, tuple[LayoutParams, tuple[int, ...]]] = field(default_factory=dict)

    def shape(self, value: int) -> Shape:
        return self.specs[value].shape or ()

    # ---- reading -----------------------------------------------------------------------

    def slot(self, value: int) -> Slot:
        """The value as a dense tensor."""
        if value not in self.dense:
            slot = self.targets.get(value) or self.w.temp(self.specs[value])
            if value in self.views or value in self.dealt or value in self.shifted:
                self.block(value)
            self._unblock(value, slot.view)
            self.dense[value] = slot
        return self.dense[value]

    def see_as(self, value: int, result: int) -> None:
        """The result is the value where it lies, under the result's shape."""
        source = self.slot(value)
        spec = TensorSpec(source.spec.dtype, self.specs[result].shape)
        self.dense[result] = dataclasses.replace(source, spec=spec)

    def view(self, value: int) -> View:
        """The value ``[N, C, …]`` with whatever strides it has."""
        return self.views[value] if value in self.views else self.slot(value).view

    def unblocked(self, value: int, order: Sequence[int]) -> Slot:
        """A blocked value ``[N, C, H, W]`` as a dense tensor with its axes in another order."""
        shape = tuple(self.shape(value)[a] for a in order)
        slot = self.w.temp(TensorSpec(DType.F32, shape))
        strides = dense_strides(shape)
        back = tuple(strides[order.index(axis)] for axis in range(len(order)))
        self._unblock(value, View(slot.buffer, self.shape(value), back))
        return slot

    def unblock_into(self, value: int, place: View) -> bool:
        """Write a blocked value that nobody else asks for where it belongs; False if it is none,
        or lies otherwise there."""
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
        last = channel_tail(source.channels)
        self.w.call("reorder_to_nchw", x=source.view(), y=four(target), last=last)

    def block(self, value: int) -> BlockedValue:
        """The value in blocks."""
        if value not in self.blocks:
            home = self.home(value)
            if value in self.dealt:
                self._deal(self.dealt.pop(value), home)
            elif value in self.shifted:
                self._shift(value, home)
            else:
                self.block_into(value, home)
            self.blocks[value] = home
        return self.blocks[value]

    def is_blocked(self, value: int) -> bool:
        """True if the value lies in blocks, or will as soon as it is asked for."""
        return value in self.blocks or value in self.dealt or value in self.shifted

    def _deal(self, deal: Deal, home: BlockedValue) -> None:
        channels = tuple(self.layout.channels(part) for part in deal.parts)
        views = [self.block(part).view() for part in deal.parts]
        self.w.call(
            "channel_shuffle", parts=views, y=home.whole, groups=deal.groups, first=deal.first,
            channels=home.channels, halo=home.halo, part_channels=channels,
        )  # fmt: skip

    def _shift(self, value: int, home: BlockedValue) -> None:
        """A chain reads a shifted value as it is; anyone else needs it made."""
        shifted, inner = self.shifted[value], home.view()
        chain = dataclasses.replace(shifted.chain, stores=(home.dtype,))
        source = self.block(shifted.source).view()
        views = (per_channel(*row, home.channels, inner) for row in shifted.rows)
        self.w.call("elementwise", x=[source, *views], y=inner, chain=chain)
        self.finish(value, home)

    def block_in_bf16(self, value: int, block: int = BLOCK) -> BlockedValue:
        """The value in blocks of so many channels, in bf16: brought there once where it does not
        lie so."""
        source = self.block(value)
        if source.dtype is DType.BF16 and source.block == block:
            return source
        if (value, block) not in self.halves:
            made = self._like(source, DType.BF16, block)
            self.bring(source, made, source.halo)
            self.halves[value, block] = made
        return self.halves[value, block]

    def bring(self, source: BlockedValue, place: BlockedValue, pads: Halo = (0, 0, 0, 0)) -> None:
        """Copy a value and so much of its halo, rounded where it is stored so."""
        copy(self.w, *alike(source, place, pads))

    def block_in_halves(self, value: int) -> BlockedValue:
        """The value in blocks, as sums of two numbers in bf16."""
        if value not in self.split:
            source = self.block(value)
            made = self._like(source, DType.BF16, BLOCK, 2 * BLOCK)
            self.w.call(
                "round_images", "bf16x2", x=source.view(), y=made.whole,
                last=channel_tail(source.channels), halo=made.halo,
            )  # fmt: skip
            self.split[value] = made
        return self.split[value]

    def block_in_int16(self, value: int) -> tuple[BlockedValue, Slot]:
        """The value in blocks, in 16-bit integers, and the scales of its images."""
        source = self.block(value)
        if value not in self.whole:
            made = self._like(source, DType.I16)
            self.scales[value] = self._round_images(source, made)
            self.whole[value] = made
        return self.whole[value], self.scales[value]

    def image_scales(self, value: int) -> Slot:
        """The scales of a blocked value's images in integers."""
        if value not in self.scales:
            self.scales[value] = self._round_images(self.block(value), None)
        return self.scales[value]

    def _round_images(self, source: BlockedValue, made: BlockedValue | None) -> Slot:
        scale = self.w.temp(TensorSpec(DType.F32, (source.batch,)))
        self.w.call(
            "round_images", "int16", x=source.view(), y=made.whole if made else None,
            scales=scale.view, last=channel_tail(source.channels),
            halo=made.halo if made else (0, 0, 0, 0),
        )  # fmt: skip
        return scale

    def _like(
        self, source: BlockedValue, dtype: DType, block: int = BLOCK, numbers: int | None = None
    ) -> BlockedValue:
        """Room for the same value in another type, in blocks of so many channels."""
        made = dataclasses.replace(
            source, room=-(-source.channels // block), first=0, dtype=dtype, block=block,
            numbers=numbers or block,
        )  # fmt: skip
        slot = self.w.temp(TensorSpec(dtype, (made.count,)))
        return dataclasses.replace(made, buffer=slot.buffer)

    def block_into(self, value: int, place: BlockedValue) -> None:
        """Write a plain value into blocks."""
        last = channel_tail(place.channels)
        self.w.call(
            "reorder_to_nchw16c",
            x=four(self.view(value)),
            y=place.whole,
            last=last,
            halo=place.halo,
        )

    def over(self, value: int, full: int, target: View, lanes: bool = False) -> View:
        """An operand of a chain as a view over a blocked value's interior.

        With ``lanes`` the channels of a full operand lie together, as convolutions want them.
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
        """One number per channel."""
        slot, batches = self.by_channel(value, full)
        return per_channel(slot, batches, self.layout.channels(full), target)

    def by_channel(self, value: int, full: int) -> tuple[Slot, bool]:
        """One number per channel, filled up to whole blocks where channels are no multiple; and
        whether each image has its own."""
        channels, shape = self.layout.channels(full), self.shape(value)
        batches = len(shape) == len(self.shape(full)) and shape[0] != 1
        slot = self.slot(value)
        if channels % BLOCK:
            if value not in self.padded:
                batch = shape[0] if batches else 1
                wide = (batch, blocks(channels), 1, 1, BLOCK)
                made = self.w.temp(TensorSpec(DType.F32, wide))
                plain = View(slot.buffer, (batch, channels, 1, 1), (channels, 1, 1, 1))
                last = channel_tail(channels)
                self.w.call(
                    "reorder_to_nchw16c", x=plain, y=made.view, last=last, halo=(0, 0, 0, 0)
                )
                self.padded[value] = made
            slot = self.padded[value]
        return slot, batches

    # ---- writing -----------------------------------------------------------------------

    def home(self, value: int) -> BlockedValue:
        """Where a blocked value is to be written: in a buffer of its own, or in its root's."""
        if value not in self.homes:
            root, first = self.layout.root(value)
            if root == value:
                self.homes[value] = self._room(value)
            else:
                self.homes[value] = self.home(root).part(first, self.layout.channels(value))
        return self.homes[value]

    def finish(self, value: int, home: BlockedValue) -> None:
        """The value is there, but for its halo."""
        if any(home.halo):
            self.w.call("halo", y=home.whole, halo=home.halo)
        self.blocks[value] = home

    def interior(self, value: int) -> View:
        """Where a blocked value is written, without its halo."""
        return self.home(value).view()

    def _room(self, value: int) -> BlockedValue:
        shape = self.shape(value)
        height, width = spatial(shape)
        home = BlockedValue(
            Buffer("temp", -1), shape[0], self.layout.channels(value), height, width,
            self.layout.halo(value), self.layout.room(value),
            dtype=DType.BF16 if value in self.rounding.only else DType.F32,
        )  # fmt: skip
        if value in self.rounding.broad:
            home = home.with_block(NCHW32C)
        slot = self.w.temp(TensorSpec(home.dtype, (home.count,)))
        return dataclasses.replace(home, buffer=slot.buffer)

    def out(self, value: int) -> Slot:
        """Where a plain value is to be written."""
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


def copy(w: Writer, source: View, target: View) -> None:
    """Numbers brought elsewhere, rounded where they are stored so."""
    if w.dtype(source.buffer) is DType.BF16:
        w.call("copy", x=source, y=target)
    elif w.dtype(target.buffer) is DType.BF16:
        chain = dataclasses.replace(IDENTITY, stores=(DType.BF16,))
        w.call("elementwise", x=source, y=target, chain=chain)
    else:
        w.call("elementwise", x=source, y=target, chain=IDENTITY)


def four(view: View) -> View:
    """``[N, C, W]`` as ``[N, C, 1, W]``."""
    if len(view.dims) != 3:
        return view
    (n, c, w), (sn, sc, sw) = view.dims, view.strides
    return View(view.buffer, (n, c, 1, w), (sn, sc, 0, sw), view.offset)
