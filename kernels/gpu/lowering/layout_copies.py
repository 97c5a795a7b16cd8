"""Lower layout ops: views where strides express the result, copies elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracea_graph.ir import Extent, TensorSpec, combine, product
from tracea_graph.kernels.gpu.lowering.elementwise_ops import Targets, channels_last, destination
from tracea_graph.kernels.gpu.lowering.program_writer import ZERO, GpuProgramWriter
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import Shape, Value
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.size_expressions import resolve_extent

__all__ = ["lower_move"]


def lower_move(
    w: GpuProgramWriter, p: LayoutParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    x, shapes = operands[0], [v.shape for v in operands]
    if p.kind == "transpose":
        return [x.transposed(p.ints)]
    if p.kind == "channels":
        return [x.part(1, p.ints[0], p.ints[1] - p.ints[0])]
    if p.kind == "expand":
        return [x.stretched(tuple(resolve_extent(s, shapes) for s in p.sizes))]
    if p.kind == "first":
        return [x.part(p.ints[0], 0, resolve_extent(p.sizes[0], shapes))]
    if p.kind == "shuffle":
        return [_shuffled(w, x, p.ints[0], targets[0])]
    (spec,) = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])
    shape = spec.shape or ()
    if p.kind == "concat":
        return [_concatenated(w, operands, p.ints[0], shape, targets[0])]
    if p.kind == "repeat":
        return [_repeated(w, x, p.ints, shape, targets[0])]
    if p.kind == "spread" and p.operands == 1:
        return [_spread(w, x, p.ints, shape, targets[0])]
    if p.kind == "spread":
        return [_dealt(w, operands, p.ints, shape, targets[0])]
    if p.kind == "pad":
        sizes = [resolve_extent(s, shapes) for s in p.sizes]
        return [_padded(w, x, sizes, shape, targets[0])]
    if p.kind == "frames":
        return [_frames(w, x, p.ints, shape, targets[0])]
    return [_bordered(w, x, p.kind, p.ints, shape, targets[0])]


def _shuffled(w: GpuProgramWriter, x: Value, groups: int, target: Value | None) -> Value:
    """Shuffle channels: interleave ``groups`` groups of channels."""
    made = target or destination(w, x.dtype, x.shape, x, None)
    dealt = _groups(x, groups, outermost=True)
    w.copy(dealt, _groups(made, groups, outermost=False))
    return made


def _groups(x: Value, groups: int, outermost: bool) -> Value:
    """View channels as two axes: channels of a group, and groups, contiguous or interleaved."""
    (n, c, *space), (sn, sc, *steps) = x.view.dims, x.view.strides
    each = combine("floordiv", c, groups)
    pair = (sc, combine("mul", sc, each)) if outermost else (combine("mul", sc, groups), sc)
    view = View(x.view.buffer, (n, each, groups, *space), (sn, *pair, *steps), x.view.offset)
    return Value(view, x.dtype)


def _concatenated(
    w: GpuProgramWriter, parts: Sequence[Value], axis: int, shape: Shape, target: Value | None
) -> Value:
    whole = target or destination(w, parts[0].dtype, shape, parts[0], None)
    if target is None and len(shape) == 4 and channels_last(parts[0]):
        whole = w.temp(parts[0].dtype, shape, (0, 2, 3, 1))
    start: Extent = 0
    for part in parts:
        w.copy(part, whole.part(axis, start, part.shape[axis]))
        start = combine("add", start, part.shape[axis])
    return whole


def _repeated(
    w: GpuProgramWriter, x: Value, factors: Sequence[int], shape: Shape, target: Value | None
) -> Value:
    """Repeat positions by their axis's factor; the copy reads from axes of stride 0."""
    like = replace(x, view=replace(x.view, dims=shape))
    made = target or destination(w, x.dtype, shape, like, None)
    dims, froms, tos = list(x.shape[:2]), list(x.view.strides[:2]), list(made.view.strides[:2])
    for axis, factor in enumerate(factors, 2):
        dims += (x.shape[axis], factor)
        froms += (x.view.strides[axis], 0)
        step = made.view.strides[axis]
        tos += (combine("mul", step, factor), step)
    return _copied(w, x, made, dims, froms, tos)


def _spread(
    w: GpuProgramWriter, x: Value, sides: Sequence[int], shape: Shape, target: Value | None
) -> Value:
    """Lower DepthToSpace in which the groups are the outermost axis of the channels."""
    last = len(sides) == 2 and channels_last(x)
    made = target or w.temp(x.dtype, shape, (0, 2, 3, 1) if last else ())
    channels, steps = shape[1], x.view.strides
    dims: list[Extent] = [x.shape[0], channels]
    froms: list[Extent] = [steps[0], steps[1]]
    tos: list[Extent] = list(made.view.strides[:2])
    group: Extent = combine("mul", steps[1], channels)
    for place, side in enumerate(sides):
        behind = product(tuple(sides[place + 1 :]))
        dims += (x.shape[2 + place], side)
        froms += (steps[2 + place], combine("mul", group, behind))
        step = made.view.strides[2 + place]
        tos += (combine("mul", step, side), step)
    return _copied(w, x, made, dims, froms, tos)


def _copied(
    w: GpuProgramWriter,
    x: Value,
    made: Value,
    dims: Sequence[Extent],
    froms: Sequence[Extent],
    tos: Sequence[Extent],
) -> Value:
    """Copy between views of x and of ``made`` that differ in strides only."""
    source = View(x.view.buffer, tuple(dims), tuple(froms), x.view.offset)
    target = View(made.view.buffer, tuple(dims), tuple(tos), made.view.offset)
    w.copy(Value(source, x.dtype), Value(target, made.dtype))
    return made


def _padded(
    w: GpuProgramWriter, x: Value, sizes: Sequence[Extent], shape: Shape, target: Value | None
) -> Value:
    """Pad with zeros: fill the result, then copy the interior.  Negative pads crop."""
    like = replace(x, view=replace(x.view, dims=shape))
    made = target or destination(w, x.dtype, shape, like, None)
    w.chain(ZERO, [], [made])
    source, place = x, made
    top, left, bottom, right = sizes
    for axis, before, behind in ((2, top, bottom), (3, left, right)):
        cut = [combine("max", combine("sub", 0, pad), 0) for pad in (before, behind)]
        left_over = combine("sub", combine("sub", x.shape[axis], cut[0]), cut[1])
        count = combine("max", left_over, 0) if any(cut) else left_over
        source = source.part(axis, cut[0], count)
        place = place.part(axis, combine("max", before, 0), count)
    w.copy(source, place)
    return made


def _dealt(
    w: GpuProgramWriter,
    parts: Sequence[Value],
    sides: Sequence[int],
    shape: Shape,
    target: Value | None,
) -> Value:
    """Interleave operands, one for each position in a window of size ``sides``."""
    like = replace(parts[0], view=replace(parts[0].view, dims=shape))
    made = target or destination(w, parts[0].dtype, shape, like, None)
    for part, places in zip(parts, np.ndindex(*sides), strict=True):
        strides, offset = list(made.view.strides), made.view.offset
        for axis, (side, place) in enumerate(zip(sides, places, strict=True), 2):
            offset = combine("add", offset, combine("mul", strides[axis], place))
            strides[axis] = combine("mul", strides[axis], side)
        view = View(made.view.buffer, part.shape, tuple(strides), offset)
        w.copy(part, Value(view, made.dtype))
    return made


def _frames(
    w: GpuProgramWriter, x: Value, ints: Sequence[int], shape: Shape, target: Value | None
) -> Value:
    """Unfold the first axis: one copy per tap, of the windows whose tap is in the image."""
    taps, stride, dilation, before, after = ints
    made = target or w.temp(x.dtype, shape)
    if before or after:
        w.chain(ZERO, [], [made])
    channels = x.shape[1]
    for tap in range(taps):
        first = dilation * tap - before
        start = max(-(first // stride), 0)
        last = combine(
            "add", combine("floordiv", combine("sub", x.shape[0], first + 1), stride), 1
        )
        end = combine("min", shape[0], combine("max", last, start))
        count = combine("max", combine("sub", end, start), 0)
        place = made.part(0, start, count)
        place = place.part(1, combine("mul", channels, tap), channels)
        source = x.part(0, start * stride + first, count)
        steps = (combine("mul", x.view.strides[0], stride), *x.view.strides[1:])
        w.copy(replace(source, view=replace(source.view, strides=steps)), place)
    return made


def _bordered(
    w: GpuProgramWriter,
    x: Value,
    kind: str,
    pads: Sequence[int],
    shape: Shape,
    target: Value | None,
) -> Value:
    """Pad by reflection or edge: copy the interior, top and bottom borders, then the sides."""
    like = replace(x, view=replace(x.view, dims=shape))
    made = target or destination(w, x.dtype, shape, like, None)
    top, left, bottom, right = pads
    rows = made.part(3, left, x.shape[3])
    w.copy(x, rows.part(2, top, x.shape[2]))
    for value, axis, before, behind in ((rows, 2, top, bottom), (made, 3, left, right)):
        size = x.shape[axis]
        end = combine("add", size, before)
        if before:
            w.copy(_mirrored(value, axis, kind, before, before), value.part(axis, 0, before))
        if behind:
            last = combine("sub", end, 1)
            w.copy(_mirrored(value, axis, kind, last, behind, -1), value.part(axis, end, behind))
    return made


def _mirrored(
    value: Value, axis: int, kind: str, edge: Extent, count: int, towards: int = 1
) -> Value:
    """View the elements that a border repeats, in the order of the border.

    ``edge`` is the position next to the border.  The elements come after it if ``towards`` is 1,
    and before it if -1.
    """
    step = value.view.strides[axis]
    steps, start = list(value.view.strides), edge
    if kind == "edge":
        steps[axis] = 0
    else:
        steps[axis] = combine("mul", step, -1)
        start = combine("add", edge, count if towards > 0 else -1)
    part = value.part(axis, start, count)
    return replace(part, view=replace(part.view, strides=tuple(steps)))
