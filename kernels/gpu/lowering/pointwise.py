"""Lower elementwise expressions, and ops that only move data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import DType, Extent, TensorSpec, combine, product
from tracea_graph.kernels.gpu.lowering.writer import ZERO, Writer
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import LackingError, Shape, Value
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.index_map import IndexMap, Move
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.layout import LayoutParams
from tracea_graph.ops.sizes import resolve

__all__ = ["Targets", "lower_concat", "lower_elementwise", "lower_iota", "lower_move", "room"]

Targets = Sequence[Value | None]
"""Required destinations of results; None leaves the choice to the lowering."""


def stored(w: Writer, dtype: DType, operands: Sequence[Value]) -> DType:
    """Return the type in which a result is stored: 16 bits if an operand has 16 bits.

    Float masks down to the lowest float32 number are computed from integers and stay float32.
    """
    narrow = dtype is DType.F32 and any(v.dtype is w.narrow for v in operands)
    return w.narrow if narrow else dtype


def room(w: Writer, dtype: DType, shape: Shape, like: Value, target: Value | None) -> Value:
    """Return the destination of a result, with the axis order of ``like`` if shapes are equal."""
    if target is not None:
        return target
    order = tuple(range(len(shape)))
    if like.shape == shape and len(shape) == 4 and _channels_last(like):
        order = (0, 2, 3, 1)
    return w.temp(dtype, shape, order)


def _channels_last(value: Value) -> bool:
    dims, steps = value.view.dims, value.view.strides
    return steps[1] == 1 and steps[3] == dims[1] and dims[1] != 1


def lower_elementwise(
    w: Writer, p: ElementwiseParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    full = p.common([v.shape for v in operands])
    seen = [w.through(v, m) for v, m in zip(operands, p.views, strict=True)]
    reshape = (Move("reshape", p.target),) if p.target else ()
    same = not p.chain.steps and p.chain.operand_types == p.result_types
    if same and len(operands) == 1 and targets[0] is None:
        return [w.through(seen[0].stretched(full), IndexMap(reshape))]
    whole = [v for v in seen if v.shape == full]
    made, results = list[Value](), list[Value]()
    for dtype, target in zip(p.result_types, targets, strict=True):
        if reshape and target is not None:
            own = Value(View.dense(target.view.buffer, full), target.dtype)
            made.append(own)
            results.append(target)
        else:
            like = whole[0] if whole and not reshape else seen[0]
            made.append(room(w, stored(w, dtype, operands), full, like, target))
            results.append(made[-1].moved(*reshape) if reshape else made[-1])
    w.chain(p.chain, [v.stretched(full) for v in seen], made)
    return results


def lower_concat(
    w: Writer, p: ConcatParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    full = p.common([v.shape for v in operands])
    reshape = (Move("reshape", p.target),) if p.target else ()
    (target,) = targets
    if target is None:
        whole = w.temp(stored(w, p.result_types[0], operands), full)
        result = whole.moved(*reshape)
    else:
        whole = Value(View.dense(target.view.buffer, full), target.dtype)
        result = target
    _write_parts(w, p, operands, whole)
    return [result]


def _write_parts(w: Writer, p: ConcatParams, operands: Sequence[Value], whole: Value) -> None:
    start: Extent = 0
    for part, shape in zip(p.parts, p.shapes([v.shape for v in operands]), strict=True):
        place = whole.part(p.axis, start, shape[p.axis])
        own = [operands[i] for i in part.operands]
        if isinstance(part.params, ConcatParams):
            _write_parts(w, part.params, own, place)
        else:
            seen = [
                w.through(v, m).stretched(shape)
                for v, m in zip(own, part.params.views, strict=True)
            ]
            w.chain(part.params.chain, seen, [place])
        start = combine("add", start, shape[p.axis])


def lower_iota(
    w: Writer, p: IotaParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    sizes = tuple(resolve(size, [v.shape for v in operands]) for size in p.sizes)
    y = targets[0] or w.temp(p.dtype, sizes)
    w.call("iota", y=y.view, y_type=p.dtype.short, start=p.start, steps=p.steps)
    return [y]


def lower_move(
    w: Writer, p: LayoutParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    x, shapes = operands[0], [v.shape for v in operands]
    if p.kind == "transpose":
        return [x.transposed(p.ints)]
    if p.kind == "channels":
        return [x.part(1, p.ints[0], p.ints[1] - p.ints[0])]
    if p.kind == "first":
        return [x.part(p.ints[0], 0, resolve(p.sizes[0], shapes))]
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
    if p.kind == "pad":
        sizes = [resolve(s, shapes) for s in p.sizes]
        return [_padded(w, x, sizes, shape, targets[0])]
    raise LackingError(f"there is no GPU kernel for moves of kind {p.kind!r}")


def _shuffled(w: Writer, x: Value, groups: int, target: Value | None) -> Value:
    """Shuffle channels: interleave ``groups`` groups of channels."""
    made = target or room(w, x.dtype, x.shape, x, None)
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
    w: Writer, parts: Sequence[Value], axis: int, shape: Shape, target: Value | None
) -> Value:
    whole = target or room(w, parts[0].dtype, shape, parts[0], None)
    if target is None and len(shape) == 4 and _channels_last(parts[0]):
        whole = w.temp(parts[0].dtype, shape, (0, 2, 3, 1))
    start: Extent = 0
    for part in parts:
        w.copy(part, whole.part(axis, start, part.shape[axis]))
        start = combine("add", start, part.shape[axis])
    return whole


def _repeated(
    w: Writer, x: Value, factors: Sequence[int], shape: Shape, target: Value | None
) -> Value:
    """Repeat every position by its axis's factor, by reading from axes of stride 0."""
    like = replace(x, view=replace(x.view, dims=shape))
    made = target or room(w, x.dtype, shape, like, None)
    dims, froms, tos = list(x.shape[:2]), list(x.view.strides[:2]), list(made.view.strides[:2])
    for axis, factor in enumerate(factors, 2):
        dims += (x.shape[axis], factor)
        froms += (x.view.strides[axis], 0)
        step = made.view.strides[axis]
        tos += (combine("mul", step, factor), step)
    source = View(x.view.buffer, tuple(dims), tuple(froms), x.view.offset)
    place = View(made.view.buffer, tuple(dims), tuple(tos), made.view.offset)
    w.copy(Value(source, x.dtype), Value(place, made.dtype))
    return made


def _spread(
    w: Writer, x: Value, sides: Sequence[int], shape: Shape, target: Value | None
) -> Value:
    """Lower DepthToSpace in which the groups are the outermost axis of the channels."""
    made = target or w.temp(x.dtype, shape)
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
    source = View(x.view.buffer, tuple(dims), tuple(froms), x.view.offset)
    place_ = View(made.view.buffer, tuple(dims), tuple(tos), made.view.offset)
    w.copy(Value(source, x.dtype), Value(place_, made.dtype))
    return made


def _padded(
    w: Writer, x: Value, sizes: Sequence[Extent], shape: Shape, target: Value | None
) -> Value:
    """Fill with zeros, then copy the interior; negative pads crop."""
    like = replace(x, view=replace(x.view, dims=shape))
    made = target or room(w, x.dtype, shape, like, None)
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
