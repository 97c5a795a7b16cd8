"""Lower elementwise expressions, concatenations of them, and index ramps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.gpu.lowering.program_writer import (
    SCALED,
    GpuProgramWriter,
    ScaledImage,
    channels_last_order,
)
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import Shape, Value
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.index_map import IndexMap, ViewMove, dense_strides
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.size_expressions import resolve_extent

__all__ = [
    "Targets",
    "channels_last",
    "destination",
    "lower_concat",
    "lower_elementwise",
    "lower_iota",
]

Targets = Sequence[Value | None]
"""Required destinations of results; None leaves the choice to the lowering."""


_IMAGES = (4, 5)
"""Axes of images and of volumes."""


def stored(w: GpuProgramWriter, dtype: DType, operands: Sequence[Value]) -> DType:
    """Return the type in which a result of type ``dtype`` is stored.

    A float32 result is stored as ``w.narrow`` if an operand is; otherwise the type is unchanged.
    Masks computed from integers thus stay float32, because they may hold the lowest float32.
    """
    narrow = dtype is DType.F32 and any(v.dtype is w.narrow for v in operands)
    return w.narrow if narrow else dtype


def destination(
    w: GpuProgramWriter, dtype: DType, shape: Shape, like: Value, target: Value | None
) -> Value:
    """Return ``target``, or else scratch for a result.

    Scratch is channels-last if the result has the shape of ``like``, and ``like`` is
    channels-last.
    """
    if target is not None:
        return target
    order = tuple(range(len(shape)))
    if like.shape == shape and len(shape) in _IMAGES and channels_last(like):
        order = channels_last_order(len(shape))
    return w.temp(dtype, shape, order)


def channels_last(value: Value) -> bool:
    dims, steps = value.view.dims, value.view.strides
    return steps[1] == 1 and steps[-1] == dims[1] and dims[1] != 1


def lower_elementwise(
    w: GpuProgramWriter, p: ElementwiseParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    full = p.common([v.shape for v in operands])
    seen = [w.through(v, m) for v, m in zip(operands, p.views, strict=True)]
    reshape = (ViewMove("reshape", p.target),) if p.target else ()
    types = p.chain.operand_types, p.result_types
    widened = ((w.narrow,), (DType.F32,))  # numbers that would be stored as they are
    same = not p.chain.steps and (types[0] == types[1] or types == widened)
    if same and len(operands) == 1 and targets[0] is None:
        own = seen[0].stretched(full)
        if _spreads_pixels(full, p.target, [own]) and not _merges_pixels(own.view):
            own = w.again(own, own.dtype, channels_last_order(len(full)))
        return [w.through(own, IndexMap(reshape))]
    whole = [v for v in seen if v.shape == full]
    made, results = list[Value](), list[Value]()
    for dtype, target in zip(p.result_types, targets, strict=True):
        if reshape and target is not None:
            own = Value(View.dense(target.view.buffer, full), target.dtype)
            made.append(own)
            results.append(target)
        else:
            like, kind = whole[0] if whole and not reshape else seen[0], stored(w, dtype, operands)
            if target is None and _spreads_pixels(full, p.target, seen):
                made.append(w.temp(kind, full, channels_last_order(len(full))))
            else:
                made.append(destination(w, kind, full, like, target))
            dense = made[-1].view.strides == dense_strides(full)
            if reshape:
                results.append(made[-1].reshaped(p.target) if dense else made[-1].moved(*reshape))
            else:
                results.append(made[-1])
    w.chain(p.chain, [v.stretched(full) for v in seen], made)
    if (p.chain.steps, p.chain.results) == (SCALED.steps, SCALED.results) and targets == [None]:
        _note_scaled_image(w, seen, made[0])
    return results


def _spreads_pixels(full: Shape, target: Sequence[int], seen: Sequence[Value]) -> bool:
    """Whether pixels ``[N, C, H, a, W, b]`` of channels-last images become an image of a × b each.

    So do resized and upsampled images, and the results of transposed convolutions.  Lines alone
    are repeated in ``[N, C, H, a, W]``.
    """
    if len(full) not in (5, 6) or len(target) != 4:
        return False
    sizes = [*full[:2], product(full[2:4]), product(full[4:])]
    alike = all(t in (0, size) for t, size in zip(target[:2], sizes[:2], strict=True))
    if not alike or any(t not in (-1, n) for t, n in zip(target[2:], sizes[2:], strict=True)):
        return False
    steps = [v.view.strides for v in seen if v.shape == full and any(v.view.strides)]
    return bool(steps) and full[1] != 1 and all(_channels_inside(one) for one in steps)


def _merges_pixels(view: View) -> bool:
    """Whether lines and pixels of ``[N, C, H, a, W, b]`` are those of an image already."""
    (_, _, _, high, *wide), (_, _, line, down, pixel, *along) = view.dims, view.strides
    joined = [combine("mul", step, size) for step, size in zip(along, wide[1:], strict=True)]
    return line == combine("mul", down, high) and joined in ([], [pixel])


def _channels_inside(steps: Sequence[Extent]) -> bool:
    """Whether channels of a pixel ``[N, C, H, a, W, b]`` lie closer than pixels of a line do."""
    channel, pixel = steps[1], steps[4]
    return isinstance(channel, int) and isinstance(pixel, int) and 0 < channel < pixel


def _note_scaled_image(w: GpuProgramWriter, factors: Sequence[Value], made: Value) -> None:
    """Note an image in scratch that is another one times a factor for each image and channel."""
    for x, scale in permutations(factors):
        if len(made.shape) != 4 or x.shape != made.shape or not channels_last(x):
            continue
        types = {x.dtype, scale.dtype, made.dtype}
        if scale.shape != (*made.shape[:2], 1, 1) or types != {w.narrow}:
            continue
        y, own = (v.transposed((0, 2, 3, 1)).view for v in (made, x))
        flat = View(scale.view.buffer, scale.shape[:2], scale.view.strides[:2], scale.view.offset)
        w.scaled[y.buffer] = ScaledImage(y, own, flat)


def lower_concat(
    w: GpuProgramWriter, p: ConcatParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    full = p.common([v.shape for v in operands])
    reshape = (ViewMove("reshape", p.target),) if p.target else ()
    (target,) = targets
    if target is None:
        rank = 0 if p.target or len(full) not in _IMAGES else len(full)
        images = [v for v in operands if rank and len(v.shape) == rank]
        last = channels_last_order(rank) if any(map(channels_last, images)) else ()
        whole = w.temp(stored(w, p.result_types[0], operands), full, last)
        result = whole.moved(*reshape)
    else:
        whole = Value(View.dense(target.view.buffer, full), target.dtype)
        result = target
    _write_parts(w, p, operands, whole)
    return [result]


def _write_parts(
    w: GpuProgramWriter, p: ConcatParams, operands: Sequence[Value], whole: Value
) -> None:
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
    w: GpuProgramWriter, p: IotaParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    shapes = [v.shape for v in operands]
    sizes = tuple(resolve_extent(size, shapes) for size in p.sizes)
    y = targets[0] or w.temp(p.dtype, sizes)
    offset = resolve_extent(p.offset, shapes)
    skipped = View(y.view.buffer, (offset,), (0,)) if offset != 0 else None
    w.call("iota", y=y.view, skipped=skipped, y_type=p.dtype.short, start=p.start, steps=p.steps)
    return [y]
