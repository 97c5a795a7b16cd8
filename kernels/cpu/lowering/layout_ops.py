"""Lower layout ops; most of them are views, or one strided copy into the destination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracea_graph.ir import DType, Extent, combine
from tracea_graph.kernels.cpu.filters import BLOCK
from tracea_graph.kernels.cpu.lowering.channel_blocked_values import BlockedValue
from tracea_graph.kernels.cpu.lowering.choose_layouts import CHANNELS_FIRST, RegionLayout
from tracea_graph.kernels.cpu.lowering.pad_reflect_and_edge import lower_border
from tracea_graph.kernels.cpu.lowering.region_values import ChannelShuffle, RegionValues, copy
from tracea_graph.kernels.cpu.lowering.unfold_depth import ZERO, lower_unfold_depth
from tracea_graph.kernels.program import View
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.ops.layout_op import BORDERS, LayoutParams
from tracea_graph.ops.size_expressions import resolve_extent

__all__ = ["lower_layout", "written_by_pad"]

_CHANNELS_LAST = (0, 2, 3, 1)


def written_by_pad(
    p: RegionParams, layout: RegionLayout, reads: Mapping[int, int]
) -> frozenset[int]:
    """Return blocked results of ``spread`` steps that are never stored.

    Their only consumer is a pad, which computes and writes them.  ``reads`` maps each value to the
    number of steps that read it.
    """
    value, spread, found = p.inputs, set[int](), set[int]()
    for step in p.steps:
        kind = step.params.kind if isinstance(step.params, LayoutParams) else ""
        if kind == "spread" and reads[value] == 1:
            spread.add(value)
        if kind == "pad" and step.operands[0] in spread:
            found.add(step.operands[0])
        value += step.results
    return frozenset(found & layout.blocked - set(p.results))


def lower_layout(v: RegionValues, p: LayoutParams, operands: Sequence[int], result: int) -> None:
    if p.kind == "transpose":
        _transpose(v, p.ints, operands[0], result)
    elif p.kind == "repeat":
        _repeat(v, p.ints, operands[0], result)
    elif p.kind == "spread":
        _spread(v, p.ints, operands, result)
    elif p.kind == "pad":
        _pad(v, p, operands, result)
    elif p.kind == "frames":
        lower_unfold_depth(v, p.ints, operands[0], result)
    elif p.kind in BORDERS:
        lower_border(v, p, operands[0], result)
    elif p.kind == "shuffle":
        _shuffle(v, p.ints[0], operands[0], result)
    elif p.kind == "channels":
        _channels(v, p.ints, operands[0], result)
    else:
        _concat(v, p.ints[0], operands, result)


def _transpose(v: RegionValues, perm: Sequence[int], source: int, result: int) -> None:
    """Reorder a blocked value to channels-last directly; any other permutation is a view."""
    if tuple(perm) == _CHANNELS_LAST and v.is_blocked(source) and result not in v.targets:
        v.block(source)
        v.dense[result] = v.unblocked(source, perm)
        return
    view = v.view(source)
    dims = tuple(view.dims[a] for a in perm)
    strides = tuple(view.strides[a] for a in perm)
    transposed = View(view.buffer, dims, strides, view.offset)
    if tuple(perm) == CHANNELS_FIRST and result not in v.targets:
        v.views[result] = transposed
        return
    copy(v.w, transposed, v.out(result).view)


def _repeat(v: RegionValues, factors: Sequence[int], source: int, result: int) -> None:
    """Emit one copy per row of a factor; columns repeat along an axis of stride 0."""
    if result not in v.layout.blocked:
        _repeat_plain(v, factors, source, result)
        return
    dst = v.dst(result)
    small, big = v.block(source).view(), v.interior(result)
    tall, wide = factors
    (n, b, h, w, lanes), (sn, sb, sh, sw, sl) = small.dims, small.strides
    bn, bb, bh, bw, bl = big.strides
    dims = (n, b, h, w, wide, lanes)
    for row in range(tall):
        target = View(
            big.buffer, dims, (bn, bb, _times(bh, tall), _times(bw, wide), bw, bl),
            _sum(big.offset, _times(bh, row)),
        )  # fmt: skip
        repeated = View(small.buffer, dims, (sn, sb, sh, sw, 0, sl), small.offset)
        v.w.call("copy", x=repeated, y=target)
    v.finish(result, dst)


def _repeat_plain(v: RegionValues, factors: Sequence[int], source: int, result: int) -> None:
    """``[N, C, D…]`` as ``[N·C, D, factor…]``: one copy per position within the outer factors.

    Three factors are those of ``[N, H, W, C]``.
    """
    shape, big = v.shape(source), v.out(result)
    inner, small = dense_strides(shape), v.slot(source)
    outer = dense_strides(big.shape)
    last = factors[-1]
    dims = (*shape, last)
    kept = len(shape) - len(factors)
    wide = (*outer[:kept], *(_times(s, f) for s, f in zip(outer[kept:], factors, strict=True)), 1)
    for start in _grid(factors[:-1]):
        offset = _sum(*(_times(s, i) for s, i in zip(outer[kept:], start, strict=False)))
        copy(v.w, View(small.buffer, dims, (*inner, 0)), View(big.buffer, dims, wide, offset))


def _grid(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    points: list[tuple[int, ...]] = [()]
    for size in sizes:
        points = [(*p, i) for p in points for i in range(size)]
    return points


def _spread(v: RegionValues, sides: Sequence[int], operands: Sequence[int], result: int) -> None:
    if result in v.written_by_pad:
        v.spread[result] = LayoutParams("spread", tuple(sides), len(operands)), tuple(operands)
        return
    blocked = result in v.layout.blocked
    dst = v.dst(result) if blocked else None
    big = dst.view() if dst else v.out(result).view
    _spread_into(v, sides, operands, v.layout.channels(result), big)
    if dst:
        v.finish(result, dst)


def _spread_into(
    v: RegionValues, sides: Sequence[int], operands: Sequence[int], channels: int, big: View,
    before: Sequence[Extent] = (0, 0),
) -> None:  # fmt: skip
    """Copy each group of channels to every ``sides``-th row and column of ``big``.

    Writing starts at row and column ``before``; elements outside of ``big`` are dropped.
    """
    blocked = len(big.dims) == 5
    space = 3 if blocked and len(sides) == 1 else 2
    for group, place in enumerate(_grid(sides)):
        whole = operands[0] if len(operands) == 1 else operands[group]
        first = group * channels if len(operands) == 1 else 0
        part = _channels_of(v, whole, first, channels, blocked)
        dims, steps, source, target = list(part.dims), list(big.strides), part.offset, big.offset
        for axis, (side, at) in enumerate(zip(sides, place, strict=True), space):
            start = _sum(before[axis - space], at)
            cut, kept = _seen(part.dims[axis], big.dims[axis], start, side)
            dims[axis] = kept
            source = _sum(source, _times(part.strides[axis], cut))
            target = _sum(target, _times(big.strides[axis], _sum(start, _times(cut, side))))
            steps[axis] = _times(steps[axis], side)
        size = tuple(dims)
        copy(
            v.w, View(part.buffer, size, part.strides, source),
            View(big.buffer, size, tuple(steps), target),
        )  # fmt: skip


def _seen(count: Extent, room: Extent, start: Extent, side: int) -> tuple[Extent, Extent]:
    """Clip ``count`` positions ``start``, ``start + side`` … to [0, ``room``).

    Returns the index of the first position inside, and the number of positions inside.
    """
    if _times(count, side) == room and isinstance(start, int) and 0 <= start < side:
        return 0, count
    cut = combine("max", combine("ceildiv", combine("sub", 0, start), side), 0)
    end = combine("min", combine("ceildiv", combine("sub", room, start), side), count)
    return cut, combine("max", combine("sub", end, cut), 0)


def _channels_of(v: RegionValues, value: int, first: int, count: int, blocked: bool) -> View:
    """A range of channels of a value: whole blocks, or plain channels."""
    if blocked:
        return v.block(value).part(first, count).view()
    slot = v.slot(value)
    strides = dense_strides(slot.shape)
    dims = (slot.shape[0], count, *slot.shape[2:])
    return View(slot.buffer, dims, strides, _times(strides[1], first))


def _pad(v: RegionValues, p: LayoutParams, operands: Sequence[int], result: int) -> None:
    """Copy the value, cropped where padding is negative, and write zeros around it."""
    top, left, bottom, right = (resolve_extent(s, [v.shape(i) for i in operands]) for s in p.sizes)
    source, blocked = operands[0], result in v.layout.blocked
    dst = v.dst(result) if blocked else None
    big = dst.view() if dst else v.out(result).view
    rows = 2 if blocked else len(v.shape(source)) - 2
    if source in v.spread:
        move, parts = v.spread.pop(source)
        _spread_into(v, move.ints, parts, v.layout.channels(source), big, (top, left))
    else:
        small = v.block(source).view() if blocked else v.slot(source).view
        dims, froms, tos = list(small.dims), small.offset, big.offset
        for axis, before, behind in ((rows, top, bottom), (rows + 1, left, right)):
            cut = [combine("max", combine("sub", 0, pad), 0) for pad in (before, behind)]
            left_over = combine("sub", combine("sub", dims[axis], cut[0]), cut[1])
            dims[axis] = combine("max", left_over, 0) if any(cut) else left_over
            froms = _sum(froms, _times(small.strides[axis], cut[0]))
            tos = _sum(tos, _times(big.strides[axis], combine("max", before, 0)))
        inside = View(small.buffer, tuple(dims), small.strides, froms)
        copy(v.w, inside, View(big.buffer, tuple(dims), big.strides, tos))
    _clear(v, big, rows, top, bottom)
    _clear(v, big, rows + 1, left, right)
    if dst:
        v.finish(result, dst)


def _clear(v: RegionValues, big: View, axis: int, before: Extent, behind: Extent) -> None:
    """Write ``before`` and ``behind`` zeros at the ends of an axis; negative counts write none.

    If one end is cropped, the zeros of the other are limited to the axis's size.
    """
    cuts = any(not isinstance(count, int) or count < 0 for count in (before, behind))
    chain = ZERO
    if (stored := v.w.dtype(big.buffer)) is not DType.F32:
        chain = replace(ZERO, stores=(stored,))
    for count, last in ((before, False), (behind, True)):
        size = combine("max", count, 0)
        if size == 0:
            continue
        size = combine("min", size, big.dims[axis]) if cuts else size
        dims = (*big.dims[:axis], size, *big.dims[axis + 1 :])
        start = combine("sub", big.dims[axis], size) if last else 0
        offset = _sum(big.offset, _times(big.strides[axis], start))
        edge = View(big.buffer, dims, big.strides, offset)
        v.w.call("elementwise", x=(), y=edge, chain=chain)


def _shuffle(v: RegionValues, groups: int, source: int, result: int) -> None:
    """Defer a blocked shuffle until it is read; copy a plain value with swapped group axes."""
    if result in v.layout.blocked:
        shuffle = v.shuffled.get(source, ChannelShuffle((source,)))
        channels = sum(map(v.layout.channels, shuffle.parts))
        whole = shuffle.groups == 1 and channels == v.layout.channels(source)
        v.shuffled[result] = replace(
            shuffle if whole else ChannelShuffle((source,)), groups=groups
        )
        return
    slot, out = v.slot(source), v.out(result)
    n, _, *space = slot.shape
    sn, sc, *strides = dense_strides(slot.shape)
    each = v.layout.channels(source) // groups
    dims = (n, each, groups, *space)
    transposed = View(slot.buffer, dims, (sn, sc, _times(sc, each), *strides))
    copy(v.w, transposed, View(out.buffer, dims, dense_strides(dims)))


def _channels(v: RegionValues, bounds: Sequence[int], source: int, result: int) -> None:
    """Alias a range of whole blocks; copy any other range of channels."""
    if result in v.layout.within:
        v.blocks[result] = v.block(source).part(bounds[0], bounds[1] - bounds[0])
        return
    if result in v.layout.blocked:
        shuffle = v.shuffled.get(source, ChannelShuffle((source,)))
        v.shuffled[result] = replace(shuffle, first=shuffle.first + bounds[0])
        return
    slot, out = v.slot(source), v.out(result)
    strides = dense_strides(slot.shape)
    part = View(slot.buffer, out.shape, strides, _times(strides[1], bounds[0]))
    copy(v.w, part, out.view)


def _concat(v: RegionValues, axis: int, operands: Sequence[int], result: int) -> None:
    """Copy the operands that were not already written into the result's buffer."""
    if result not in v.layout.blocked:
        _concat_plain(v, axis, operands, result)
        return
    if any(v.layout.channels(value) % BLOCK for value in operands[:-1]):
        v.shuffled[result] = ChannelShuffle(tuple(operands))
        return
    dst = v.dst(result)
    first = 0
    for value in operands:
        channels = v.layout.channels(value)
        if v.layout.within.get(value) == (result, first):
            v.block(value)
        else:
            _copy_part(v, value, result, dst.part(first, channels))
        first += channels
    v.blocks[result] = dst


def _copy_part(v: RegionValues, value: int, whole: int, destination: BlockedValue) -> None:
    if not v.is_blocked(value) and v.layout.fits(value, whole):
        v.block_into(value, destination)
        return
    v.block(value)
    v.copy_blocked(v.blocks[value], destination)
    if any(destination.halo):
        v.w.call("zero_pad", y=destination.padded, halo=destination.halo)


def _concat_plain(v: RegionValues, axis: int, operands: Sequence[int], result: int) -> None:
    out = v.out(result)
    strides = dense_strides(out.shape)
    offset = _times(strides[axis], 0)
    for value in operands:
        size = v.shape(value)[axis]
        dims = tuple(size if a == axis else d for a, d in enumerate(out.shape))
        copy(v.w, v.slot(value).view, View(out.buffer, dims, strides, offset))
        offset = _sum(offset, _times(strides[axis], size))


def _times(a: Extent, b: Extent) -> Extent:
    return combine("mul", a, b)


def _sum(*terms: Extent) -> Extent:
    total: Extent = 0
    for term in terms:
        total = combine("add", total, term)
    return total
