"""Layout ops inside a program: they move data between the values of a region, or only view it.

    concat      operands one after another along an axis
    channels    x[:, start:stop]
    repeat      nearest-neighbor upsampling: each position ``factors`` times per axis
    transpose   axes permuted
    spread      channel groups interleaved over two axes, the groups outermost (DepthToSpace); or
                one operand per group, all of equal shape
    shuffle     channel shuffle: one channel of each of the equal groups in turn
    pad         zeros around the last two axes, by sizes of operands; negative amounts crop
    reflect     reflect padding of the last two axes
    edge        edge padding of the last two axes
    first       the first positions of an axis, their number given by a size of an operand
    expand      axes of size 1 repeated, and axes in front, to sizes of operands
    frames      unfold along the first axis: images under a window, concatenated as channels

They occur only as steps of a ``FusedRegion``, whose choice of layouts often makes them free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Extent, TensorSpec, combine, evaluate
from tracea_graph.ops.conv_windows import window_count
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ops.size_expressions import resolve_extent, size_to_onnx
from tracea_graph.ttg.loop_nest_model import RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["BORDERS", "LayoutParams"]

Floats = npt.NDArray[np.floating[Any]]
BORDERS = ("reflect", "edge")
"""Pads that repeat inner elements, by their names in ONNX's Pad."""
KINDS = (
    "concat", "channels", "repeat", "transpose", "spread", "shuffle", "pad", "first", "expand",
    "frames", *BORDERS,
)  # fmt: skip


@dataclass(frozen=True)
class LayoutParams:
    """Parameters of a layout op: integers and, for pad, first and expand, ``sizes``.

    The meaning of ``ints`` depends on ``kind``:

    * ``concat``, ``first``: the axis
    * ``channels``: start and stop
    * ``repeat``: a factor for each spatial axis; of three axes, the last is the channel axis
    * ``transpose``: the permutation
    * ``spread``: how many channel groups go along each of two axes
    * ``shuffle``: groups and channels
    * ``reflect``, ``edge``: padding at the top, left, bottom and right
    * ``frames``: taps, stride, dilation, zeros before and after

    ``sizes`` are expressions over the operands' dimensions
    (:mod:`tracea_graph.ops.size_expressions`); operands after the first are read for their sizes
    only.
    """

    kind: str
    ints: tuple[int, ...]
    operands: int = 1
    sizes: tuple[Extent, ...] = ()

    def __post_init__(self) -> None:
        many = self.kind in ("concat", "pad", "first", "expand")
        if self.kind == "spread":
            many = self.operands == prod(self.ints)
        if self.kind not in KINDS or (self.operands != 1 and not many):
            raise ValueError(f"invalid layout op: {self}")
        if self.kind == "frames" and (len(self.ints) != 5 or min(self.ints[:3]) < 1):
            raise ValueError(f"invalid window: {self}")
        if self.kind in BORDERS and (len(self.ints) != 4 or min(self.ints) < 0):
            raise ValueError(f"invalid border padding: {self}")

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the result's spec; raises ValueError if the operands of a concat do not fit.

        The operands must agree in every axis except the concatenated one; otherwise the original
        model would fail.  Of sizes that are not provably equal, the simplest is taken; the code
        that copies an operand checks at run time that they are equal.
        """
        shapes = [s.shape for s in specs if s.shape is not None]
        if len(shapes) != len(specs):
            raise ValueError("the rank of an operand is unknown")
        return (TensorSpec(specs[0].dtype, self._shape(shapes)),)

    def _shape(self, shapes: Sequence[tuple[Extent, ...]]) -> tuple[Extent, ...]:
        first = shapes[0]
        if self.kind == "transpose":
            return tuple(first[a] for a in self.ints)
        if self.kind == "repeat":
            kept = _kept(self.ints)
            pairs = zip(first[kept:], self.ints, strict=True)
            return (*first[:kept], *(combine("mul", d, f) for d, f in pairs))
        if self.kind == "spread":
            return self._spread(shapes)
        if self.kind == "shuffle":
            if first[1] != self.ints[1] or self.ints[1] % self.ints[0]:
                raise ValueError(f"{first[1]} channels do not make {self.ints[0]} equal groups")
            return first
        if self.kind == "pad":
            top, left, bottom, right = (resolve_extent(s, shapes) for s in self.sizes)
            n, c, h, w = first
            return (n, c, _sum(h, top, bottom), _sum(w, left, right))
        if self.kind == "expand":
            return tuple(resolve_extent(s, shapes) for s in self.sizes)
        if self.kind == "first":
            (axis,), (size,) = self.ints, self.sizes
            return (*first[:axis], resolve_extent(size, shapes), *first[axis + 1 :])
        if self.kind in BORDERS:
            n, c, h, w = first
            top, left, bottom, right = self.ints
            return (n, c, _sum(h, top + bottom), _sum(w, left + right))
        if self.kind == "channels":
            return (first[0], self.ints[1] - self.ints[0], *first[2:])
        if self.kind == "frames":
            taps, stride, dilation, *pads = self.ints
            count = window_count(first[0], sum(pads) - dilation * (taps - 1) - 1, stride)
            return (count, combine("mul", first[1], taps), *first[2:])
        (axis,) = self.ints
        if len({len(s) for s in shapes}) > 1:
            raise ValueError("the shapes of the parts of a concatenation do not fit")
        total: Extent = 0
        for shape in shapes:
            total = combine("add", total, shape[axis])
        sides = [[s[a] for s in shapes] for a in range(len(first))]
        return tuple(total if a == axis else _agreed(s) for a, s in enumerate(sides))

    def _spread(self, shapes: Sequence[tuple[Extent, ...]]) -> tuple[Extent, ...]:
        n, channels, *space = shapes[0]
        if any(s != shapes[0] for s in shapes):
            raise ValueError("the operands of a spread differ in shape")
        count = prod(self.ints) // self.operands
        if not isinstance(channels, int) or channels % count or len(space) != len(self.ints):
            raise ValueError(f"{channels} channels cannot be spread over {self.ints}")
        pairs = zip(space, self.ints, strict=True)
        return (n, channels // count, *(combine("mul", d, side) for d, side in pairs))

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        x = arrays[0]
        if self.kind == "transpose":
            return [x.transpose(self.ints)]
        if self.kind == "channels":
            return [x[:, self.ints[0] : self.ints[1]]]
        if self.kind == "pad":
            return [self._padded(arrays)]
        if self.kind == "expand":
            shape = [evaluate(d, {}) for d in self._shape([a.shape for a in arrays])]
            return [np.broadcast_to(x, shape).copy()]
        if self.kind == "first":
            count = evaluate(resolve_extent(self.sizes[0], [a.shape for a in arrays]), {})
            return [x[(slice(None),) * self.ints[0] + (slice(count),)]]
        if self.kind in BORDERS:
            top, left, bottom, right = self.ints
            around = ((0, 0), (0, 0), (top, bottom), (left, right))
            return [np.pad(x, around, self.kind)]  # type: ignore[call-overload]
        if self.kind == "frames":
            _, stride, _, *pads = self.ints
            padded = np.pad(x, (tuple(pads), *((0, 0),) * (x.ndim - 1)))
            parts = (padded[a : len(padded) + b : stride] for a, b in self._frame_ranges())
            return [np.concatenate(list(parts), 1)]
        if self.kind == "spread":
            n, _, *space = x.shape
            result = tuple(evaluate(d, {}) for d in self._spread([a.shape for a in arrays]))
            x = np.concatenate(arrays, 1)
            rank = len(space)
            turn = (0, rank + 1, *(a for i in range(rank) for a in (rank + 2 + i, 1 + i)))
            split = x.reshape(n, *self.ints, result[1], *space)
            return [split.transpose(turn).reshape(result)]
        if self.kind == "shuffle":
            dealt = x.reshape(x.shape[0], self.ints[0], -1, *x.shape[2:]).swapaxes(1, 2)
            return [dealt.reshape(x.shape)]
        if self.kind == "concat":
            return [np.concatenate(arrays, self.ints[0])]
        for axis, factor in enumerate(self.ints, _kept(self.ints)):
            x = np.repeat(x, factor, axis)
        return [x]

    def _padded(self, arrays: Sequence[Floats]) -> Floats:
        shapes = [a.shape for a in arrays]
        top, left, bottom, right = (evaluate(resolve_extent(s, shapes), {}) for s in self.sizes)
        x = arrays[0]
        h, w = x.shape[2:]
        cut = x[:, :, max(-top, 0) : h - max(-bottom, 0), max(-left, 0) : w - max(-right, 0)]
        more = ((max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0)))
        return np.pad(cut, ((0, 0), (0, 0), *more))

    def _frame_ranges(self) -> list[tuple[int, int]]:
        """Return, per tap, the first image it reads and how many follow its last window."""
        taps, _, dilation, *_ = self.ints
        return [(dilation * t, dilation * (t + 1 - taps)) for t in range(taps)]

    def _frames_to_onnx(self, b: BodyBuilder) -> str:
        _, stride, _, before, after = self.ints
        none = (0,) * 3
        padded = b.pad(b.inputs[0], (before, *none), (after, *none))
        parts = []
        for first, behind in self._frame_ranges():
            ends = b.ints(behind or np.iinfo(np.int64).max)
            parts.append(b("Slice", padded, b.ints(first), ends, b.ints(0), b.ints(stride)))
        return b("Concat", *parts, axis=1)

    def _spread_to_onnx(self, b: BodyBuilder) -> str:
        x = b("Concat", *b.inputs, axis=1) if self.operands > 1 else b.inputs[0]
        if len(self.ints) == 2 and len(set(self.ints)) == 1:
            return b("DepthToSpace", x, blocksize=self.ints[0])
        if len(self.ints) == 2:
            last = b("Transpose", x, perm=(0, 2, 3, 1))
            split = b("Reshape", last, b.ints(0, 0, 0, *self.ints, -1))
            tall = b(
                "Reshape", b("Transpose", split, perm=(0, 5, 2, 4, 1, 3)), b.ints(*[0] * 4, -1)
            )
            return b("Reshape", b("Transpose", tall, perm=(0, 1, 4, 2, 3)), b.ints(0, 0, 0, -1))
        last = b("Transpose", x, perm=(0, 2, 1))
        split = b("Reshape", last, b.ints(0, 0, *self.ints, -1))
        return b("Reshape", b("Transpose", split, perm=(0, 3, 1, 2)), b.ints(0, 0, -1))

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        spread = self.kind == "spread"
        return OpCost(vector=fit.instructions["fused spread"] * prod(result) if spread else 0.0)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        x = b.inputs[0]
        if self.kind == "transpose":
            return b.done(b("Transpose", x, perm=self.ints))
        if self.kind == "channels":
            start, stop = self.ints
            return b.done(b.slice_last(x, start, stop, 1))
        if self.kind == "pad":
            top, left, bottom, right = (size_to_onnx(b, s) for s in self.sizes)
            none = b.ints(0, 0)
            return b.done(b("Pad", x, b("Concat", none, top, left, none, bottom, right, axis=0)))
        if self.kind == "expand":
            sizes = b("Concat", *(size_to_onnx(b, s) for s in self.sizes), axis=0)
            return b.done(b("Expand", x, sizes))
        if self.kind == "first":
            ends = size_to_onnx(b, self.sizes[0])
            return b.done(b("Slice", x, b.ints(0), ends, b.ints(self.ints[0]), b.ints(1)))
        if self.kind in BORDERS:
            pads = b.ints(0, 0, *self.ints[:2], 0, 0, *self.ints[2:])
            return b.done(b("Pad", x, pads, mode=self.kind))
        if self.kind == "spread":
            return b.done(self._spread_to_onnx(b))
        if self.kind == "frames":
            return b.done(self._frames_to_onnx(b))
        if self.kind == "shuffle":
            groups, channels = self.ints
            order = np.arange(channels).reshape(groups, -1).T.ravel()
            return b.done(b("Gather", x, b.ints(*map(int, order)), axis=1))
        if self.kind == "concat":
            return b.done(b("Concat", *b.inputs, axis=self.ints[0]))
        return b.done(_repeat_to_onnx(b, x, self.ints))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Return None: the op is opaque to the tile graph."""
        return None


def _sum(*terms: Extent) -> Extent:
    total: Extent = 0
    for term in terms:
        total = combine("add", total, term)
    return total


def _agreed(sizes: Sequence[Extent]) -> Extent:
    """Return the simplest of sizes that must be equal, preferring a number.

    Raises ValueError for different numbers.
    """
    if len({s for s in sizes if isinstance(s, int)}) > 1:
        raise ValueError("the shapes of the parts of a concatenation do not fit")
    return min(sizes, key=lambda s: (not isinstance(s, int), len(str(s)), str(s)))


def _kept(factors: Sequence[int]) -> int:
    """Return the number of axes in front of those that repeat."""
    return 1 if len(factors) == 3 else 2


def _repeat_to_onnx(b: BodyBuilder, x: str, factors: Sequence[int]) -> str:
    """Write Resize with float scales; before opset 11 its signature was different."""
    scales = b("Constant", value=np.asarray((*(1,) * _kept(factors), *factors), np.float32))
    if b.opset < 11:
        return b("Upsample" if b.opset < 10 else "Resize", x, scales, mode="nearest")
    modes = {"mode": "nearest", "nearest_mode": "floor"}
    how = "asymmetric"
    # opsets 11 and 12 require the region of interest, which only another mode reads
    roi = "" if b.opset >= 13 else b("Constant", value=np.zeros(0, np.float32))
    return b("Resize", x, roi, scales, coordinate_transformation_mode=how, **modes)
