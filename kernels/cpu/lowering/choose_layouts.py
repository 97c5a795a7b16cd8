"""Choose the layout, halo and buffer of each value of a region.

The layouts are chosen before any call is emitted.  A value takes the layout its producer prefers
and the largest halo its consumers need.  The operands of a concatenation and channel slices on
block boundaries share one buffer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.cpu.filters import BLOCK, DepthwiseFilters, blocks
from tracea_graph.kernels.cpu.lowering.channel_blocked_values import Halo
from tracea_graph.ops import OpParams
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionStep
from tracea_graph.ops.layout_op import BORDERS, LayoutParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.resize import ResizeParams

__all__ = [
    "CHANNELS_FIRST", "MAX_SHUFFLE_PARTS", "RegionLayout", "halo_of", "norm_in_blocks",
    "stored_halo",
]  # fmt: skip

MAX_SHUFFLE_PARTS = 9
"""Largest number of operands of one ``channel_shuffle``."""

_NONE: Halo = (0, 0, 0, 0)
CHANNELS_FIRST = (0, 3, 1, 2)
"""Permutation from ``[N, H, W, C]`` to ``[N, C, H, W]``."""


def halo_of(window: ConvWindow) -> Halo:
    """The padding of a 1-D or 2-D window as (top, left, bottom, right)."""
    if window.rank == 1:
        return (0, window.pads[0], 0, window.pads[1])
    top, left, bottom, right = window.pads
    return (top, left, bottom, right)


def stored_halo(params: ConvParams) -> Halo:
    """The halo a convolution reads around its input; depthwise kernels pad columns themselves."""
    top, left, bottom, right = halo_of(params.window)
    lines = isinstance(params.layout, DepthwiseFilters)
    return (top, 0, bottom, 0) if lines else (top, left, bottom, right)


def _reads_blocks(params: OpParams) -> bool:
    return isinstance(params, ConvParams) and params.layout.reads_reordered


def norm_in_blocks(params: ChannelNormParams, channels: int) -> bool:
    """Return True if a block has whole groups of a norm, or a group has whole blocks."""
    if not params.groups or params.rank not in (3, 4):
        return False
    each = channels // params.groups
    return BLOCK % each == 0 or each % BLOCK == 0


@dataclass
class RegionLayout:
    """The memory layout of each value of a region.

    * ``blocked``: values in nchw16c or nchw32c
    * ``channels_last``: values in ``[N, H, W, C]``
    * ``within``: for a value that is stored in another value's buffer, that other value and the
      first channel there
    * ``around``: for a value with a border, the value inside the border
    * ``apart``: parts of a concatenation that have a buffer of their own
    """

    specs: Sequence[TensorSpec]
    steps: Sequence[RegionStep]
    inputs: int
    blocked: set[int] = field(default_factory=set)
    within: dict[int, tuple[int, int]] = field(default_factory=dict)
    halos: dict[int, Halo] = field(default_factory=dict)
    around: dict[int, int] = field(default_factory=dict)
    channels_last: set[int] = field(default_factory=set)
    apart: Collection[int] = ()

    @classmethod
    def plan(
        cls, specs: Sequence[TensorSpec], steps: Sequence[RegionStep], inputs: int,
        apart: Collection[int] = (),
    ) -> RegionLayout:  # fmt: skip
        """Choose the layouts of a region's values; ``specs`` lists all values, inputs first."""
        layout = cls(specs, steps, inputs, apart=apart)
        value, read = inputs, {s.operands[0] for s in steps if _reads_blocks(s.params)}
        for step in steps:
            for result in range(value, value + step.results):
                layout._place(step, result, result in read)
            value += step.results
        for step in steps:
            layout._want(step)
        layout._surround()
        return layout

    def root(self, value: int) -> tuple[int, int]:
        """Return the value whose buffer holds ``value``, and the first channel there."""
        first = 0
        while value in self.within:
            value, offset = self.within[value]
            first += offset
        return value, first

    def alone(self, value: int) -> bool:
        """Whether a value shares its buffer with no other value."""
        return value not in self.within and all(value != w for w, _ in self.within.values())

    def halo(self, value: int) -> Halo:
        return self.halos.get(self.root(value)[0], _NONE)

    def channels(self, value: int) -> int:
        shape = self.specs[value].shape
        assert shape is not None and isinstance(shape[1], int)
        return shape[1]

    # ---- where a result lies -----------------------------------------------------------

    def _place(self, step: RegionStep, value: int, read: bool) -> None:
        """Choose the layout of a result; ``read``: a convolution reads it blocked."""
        params = step.params
        if isinstance(params, ConvParams):
            if params.layout.writes_reordered:
                self.blocked.add(value)
        elif isinstance(params, PoolParams):
            if params.window and params.window.rank <= 2 and not params.channels_last:
                self.blocked.add(value)
        elif isinstance(params, ResizeParams):
            self.blocked.add(value)
        elif isinstance(params, ChannelNormParams):
            if step.operands[0] in self.blocked and norm_in_blocks(params, self.channels(value)):
                self.blocked.add(value)
        elif isinstance(params, ElementwiseParams):
            if self._blocked_chain(step, value, read):
                self.blocked.add(value)
        elif isinstance(params, LayoutParams):
            if params.kind == "transpose" and params.ints == CHANNELS_FIRST:
                self.channels_last.add(value)
            self._place_move(params, step.operands, value)

    def _blocked_chain(self, step: RegionStep, value: int, read: bool) -> bool:
        """Return True if the single result of a chain should be blocked.

        Some operand of its shape must be blocked already, or be channels-last if the result is
        ``read`` blocked, and all operands must be usable over a blocked result.
        """
        types = {self.specs[v].dtype for v in (*step.operands, value)}
        moves = isinstance(step.params, ElementwiseParams) and step.params.moves
        if step.results > 1 or types != {DType.F32} or moves:
            return False
        shape = self.specs[value].shape or ()
        near = self.blocked | self.channels_last if read else self.blocked
        whole = [v for v in step.operands if v in near and self.specs[v].shape == shape]
        return bool(whole) and all(self.lies_over(v, value) for v in step.operands)

    def lies_over(self, value: int, full: int) -> str:
        """Return how ``value`` broadcasts to the blocked value ``full``; empty if it does not.

        The kinds are ``full`` (rows or columns may repeat), ``row`` (one number per channel),
        ``col`` (one per position) and ``scalar``.
        """
        shape, wide = self.specs[value].shape or (), self.specs[full].shape or ()
        if shape == wide:
            return "full"
        if all(d == 1 for d in shape):
            return "scalar"
        if len(shape) > len(wide):
            return ""
        padded = (*(1,) * (len(wide) - len(shape)), *shape)
        if padded[0] not in (1, wide[0]):
            return ""
        if padded[1] == wide[1] and set(padded[2:]) == {1}:
            return "row"
        if padded[1] == 1 and padded[2:] == wide[2:]:
            return "col"
        repeats = all(d in (1, full) for d, full in zip(shape, wide, strict=False))
        return "full" if len(shape) == len(wide) == 4 and shape[1] == wide[1] and repeats else ""

    def _place_move(self, params: LayoutParams, operands: Sequence[int], value: int) -> None:
        """Keep layout ops blocked: in place on block boundaries, else by a channel shuffle."""
        shape = self.specs[value].shape or ()
        kind, inside = params.kind, operands[0] in self.blocked
        if kind in ("repeat", "pad", *BORDERS) and inside and len(shape) == 4:
            self.blocked.add(value)
        elif kind == "spread" and all(v in self.blocked for v in operands):
            if len(operands) > 1 or self.channels(value) % BLOCK == 0:
                self.blocked.add(value)
        elif kind == "channels" and inside:
            self.blocked.add(value)
            if params.ints[0] % BLOCK == 0:
                self.within[value] = (operands[0], params.ints[0])
        elif (kind == "shuffle" and inside) or (
            kind == "frames" and inside and self.channels(operands[0]) % BLOCK == 0
        ):
            self.blocked.add(value)
        elif kind == "concat" and params.ints == (1,) and len(shape) in (3, 4):
            if all(self.channels(v) % BLOCK == 0 for v in operands[:-1]):
                if any(v in self.blocked for v in operands):
                    self.blocked.add(value)
                    self._adopt(operands, value)
            elif self._can_be_dealt(operands, value):
                self.blocked.add(value)

    def _can_be_dealt(self, parts: Sequence[int], value: int) -> bool:
        """Return True if one ``channel_shuffle`` can join parts that end within a block."""
        few = len(parts) <= MAX_SHUFFLE_PARTS
        return few and all(v in self.blocked and self.fits(v, value) for v in parts)

    def _adopt(self, parts: Sequence[int], value: int) -> None:
        """Let parts that have no other buffer yet be written directly into the result."""
        first = 0
        for part in parts:
            # not: slices of other values, inputs (copied when they are blocked), and parts whose
            # size is not provably that of the whole (the copy checks it at run time)
            here = part in self.blocked and part not in self.within and part not in self.apart
            if here and self.fits(part, value):
                self.within[part] = (value, first)
            first += self.channels(part)

    def fits(self, part: int, whole: int) -> bool:
        """Return True if part and whole provably agree in all sizes except channels."""
        a, b = self.specs[part].shape or (), self.specs[whole].shape or ()
        return a[:1] == b[:1] and a[2:] == b[2:]

    # ---- what readers want -------------------------------------------------------------

    def _want(self, step: RegionStep) -> None:
        params = step.params
        if not isinstance(params, ConvParams) or not _reads_blocks(params):
            return
        root, _ = self.root(step.operands[0])
        wanted = zip(self.halos.get(root, _NONE), stored_halo(params), strict=True)
        top, left, bottom, right = (max(pair) for pair in wanted)
        self.halos[root] = (top, left, bottom, right)

    def _surround(self) -> None:
        """Write reflect and edge borders into the halo of their source.

        Both values must own their buffers and need no halo of zeros.
        """
        value = self.inputs
        for step in self.steps:
            source = step.operands[0] if step.operands else value
            apart = value in self.blocked and all(
                self.alone(v) and self.halo(v) == _NONE for v in (source, value)
            )
            if apart and isinstance(step.params, LayoutParams) and step.params.kind in BORDERS:
                top, left, bottom, right = step.params.ints
                self.halos[source] = (top, left, bottom, right)
                self.around[value] = source
            value += step.results

    def capacity(self, value: int) -> int:
        """Blocks of a value's buffer."""
        return blocks(self.channels(value))
