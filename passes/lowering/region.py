"""Lowering of regions: their steps in order, over values that lie plain or in blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tracea_graph.ir import Extent, combine
from tracea_graph.ops import OpParams
from tracea_graph.ops.chain import FULL
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.filters import BLOCK
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.ops.moves import BORDERS, MoveParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.program import View
from tracea_graph.ops.region import RegionParams, RegionStep
from tracea_graph.ops.resize import ResizeParams
from tracea_graph.ops.sizes import resolve
from tracea_graph.passes.lowering.blocked import Blocked, per_channel
from tracea_graph.passes.lowering.borders import lower_border
from tracea_graph.passes.lowering.conv import lower_conv, lower_pool, lower_resize
from tracea_graph.passes.lowering.frames import ZERO, lower_frames
from tracea_graph.passes.lowering.layout import CHANNELS_FIRST, Layout
from tracea_graph.passes.lowering.loops import loop_over
from tracea_graph.passes.lowering.norms import lower_norm_in_blocks
from tracea_graph.passes.lowering.rounding import Rounding
from tracea_graph.passes.lowering.scaling import Scaled, scaled_values
from tracea_graph.passes.lowering.values import Deal, Values
from tracea_graph.passes.lowering.writer import Slot, Writer
from tracea_graph.passes.pointwise.chains import IDENTITY, inline

__all__ = ["Lower", "alone", "lower_region"]

Lower = Callable[[Writer, OpParams, Sequence[Slot], Sequence[Slot]], None]
"""Writes the calls of one word between dense slots."""

_CHANNELS_LAST = (0, 2, 3, 1)


def alone(params: ConvParams | PoolParams | MoveParams | ResizeParams) -> RegionParams:
    """A region of one step."""
    count = params.operands
    return RegionParams(count, (RegionStep(params, tuple(range(count))),), (count,))


def lower_region(
    w: Writer, p: RegionParams, operands: Sequence[Slot], results: Sequence[Slot], lower: Lower
) -> None:
    """``lower`` writes the steps that know nothing of blocks.

    Raises NotCut if the calls of a band cannot take turns.
    """
    specs = p.infer_all([s.spec for s in operands])
    targets = dict(zip(p.results, results, strict=True))
    layout = Layout.plan(specs, p.steps, p.inputs)
    v = Values(w, layout, specs, Rounding.plan(p, specs, layout), targets=targets)
    v.dense |= dict(enumerate(operands))
    value, begins, scaled = p.inputs, list[int](), scaled_values(p, specs, layout)
    for step in p.steps:
        begins.append(len(w.calls))
        if value not in scaled:
            _lower_step(v, step, value, lower, scaled)
        value += step.results
    begins.append(len(w.calls))
    for result in p.results:
        v.slot(result)
    for band in reversed(p.bands):
        loop_over(w, begins[band.first], begins[band.last + 1] - 1, band.rows)


def _lower_step(
    v: Values, step: RegionStep, value: int, lower: Lower, scaled: Mapping[int, Scaled]
) -> None:
    params = step.params
    if value in v.rounding.views:
        v.see_as(step.operands[0], value)
    elif isinstance(params, ConvParams):
        lower_conv(v, params, step.operands, value, scaled.get(step.operands[0]))
    elif isinstance(params, PoolParams) and len(v.shape(step.operands[0])) < 5:
        lower_pool(v, params, step.operands, value)
    elif isinstance(params, ResizeParams):
        lower_resize(v, params, step.operands, value)
    elif isinstance(params, ElementwiseParams) and value in v.layout.blocked:
        _lower_chain(v, params, step.operands, value)
    elif isinstance(params, ChannelNormParams) and value in v.layout.blocked:
        lower_norm_in_blocks(v, params, step.operands, value)
    elif isinstance(params, MoveParams):
        _lower_move(v, params, step.operands, value)
    else:
        made = [v.out(value + i) for i in range(step.results)]
        lower(v.w, params, [v.slot(i) for i in step.operands], made)


def _lower_chain(v: Values, p: ElementwiseParams, operands: Sequence[int], result: int) -> None:
    """A chain over the interior of a blocked value; norms it reads are a part of it."""
    home, inner = v.home(result), v.interior(result)
    kinds = tuple(v.layout.lies_over(i, result) for i in operands)
    chain, rows = replace(p.chain, operands=kinds), dict[str, tuple[Slot, bool]]()
    names = tuple(map(str, operands))
    for value in dict.fromkeys(operands):
        shifted = v.shifted.get(value)
        if shifted is None or value in v.blocks or v.layout.lies_over(value, result) != FULL:
            continue
        own = {f"{value}.{i}": row for i, row in enumerate(shifted.rows)}
        joined = inline((chain, names), str(value), (shifted.chain, (str(shifted.source), *own)))
        if joined is not None:
            (chain, names), rows = joined, {**rows, **own}
    views = [
        per_channel(*rows[n], home.channels, inner) if n in rows else v.over(int(n), result, inner)
        for n in names
    ]
    v.w.call("elementwise", *views, inner, chain=replace(chain, stores=(home.dtype,)))
    _finish(v, home, result)


def _finish(v: Values, home: Blocked, value: int) -> None:
    if any(home.halo):
        v.w.call("halo", home.whole, ints=home.halo)
    v.blocks[value] = home


# ---- moves -------------------------------------------------------------------------------


def _lower_move(v: Values, p: MoveParams, operands: Sequence[int], result: int) -> None:
    if p.kind == "transpose":
        _transpose(v, p.ints, operands[0], result)
    elif p.kind == "repeat":
        _repeat(v, p.ints, operands[0], result)
    elif p.kind == "spread":
        _spread(v, p.ints, operands, result)
    elif p.kind == "pad":
        _pad(v, p, operands, result)
    elif p.kind == "frames":
        lower_frames(v, p.ints, operands[0], result)
    elif p.kind in BORDERS:
        lower_border(v, p, operands[0], result)
    elif p.kind == "shuffle":
        _shuffle(v, p.ints[0], operands[0], result)
    elif p.kind == "channels":
        _channels(v, p.ints, operands[0], result)
    else:
        _concat(v, p.ints[0], operands, result)


def _transpose(v: Values, perm: Sequence[int], source: int, result: int) -> None:
    """Channels last out of blocks is how they are unblocked; any other order is a view."""
    if tuple(perm) == _CHANNELS_LAST and v.is_blocked(source) and result not in v.targets:
        v.block(source)
        v.dense[result] = v.unblocked(source, perm)
        return
    view = v.view(source)
    dims = tuple(view.dims[a] for a in perm)
    strides = tuple(view.strides[a] for a in perm)
    turned = View(view.buffer, dims, strides, view.offset)
    if tuple(perm) == CHANNELS_FIRST and result not in v.targets:
        v.views[result] = turned
        return
    _copy(v, turned, v.out(result).view)


def _copy(v: Values, source: View, target: View) -> None:
    v.w.call("elementwise", source, target, chain=IDENTITY)


def _repeat(v: Values, factors: Sequence[int], source: int, result: int) -> None:
    """One copy per row of a factor; the columns of a factor are an axis the source repeats on."""
    if result not in v.layout.blocked:
        _repeat_plain(v, factors, source, result)
        return
    home = v.home(result)
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
        v.w.call("copy", View(small.buffer, dims, (sn, sb, sh, sw, 0, sl), small.offset), target)
    _finish(v, home, result)


def _repeat_plain(v: Values, factors: Sequence[int], source: int, result: int) -> None:
    """``[N, C, D…]`` as ``[N·C, D, factor…]``: one copy per position within the outer factors."""
    shape, big = v.shape(source), v.out(result)
    inner, small = dense_strides(shape), v.slot(source)
    outer = dense_strides(big.shape)
    last = factors[-1]
    dims = (*shape, last)
    wide = (*outer[:2], *(_times(s, f) for s, f in zip(outer[2:], factors, strict=True)), 1)
    for start in _grid(factors[:-1]):
        offset = _sum(*(_times(s, i) for s, i in zip(outer[2:], start, strict=False)))
        _copy(v, View(small.buffer, dims, (*inner, 0)), View(big.buffer, dims, wide, offset))


def _grid(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    points: list[tuple[int, ...]] = [()]
    for size in sizes:
        points = [(*p, i) for p in points for i in range(size)]
    return points


def _spread(v: Values, sides: Sequence[int], operands: Sequence[int], result: int) -> None:
    """One copy per group of channels: rows and columns so far apart are its own."""
    blocked, channels = result in v.layout.blocked, v.layout.channels(result)
    if blocked:
        home, big = v.home(result), v.interior(result)
    else:
        big = v.out(result).view
    space = 3 if blocked and len(sides) == 1 else 2
    steps = list(big.strides)
    for axis, side in enumerate(sides, space):
        steps[axis] = _times(steps[axis], side)
    for group, place in enumerate(_grid(sides)):
        whole = operands[0] if len(operands) == 1 else operands[group]
        first = group * channels if len(operands) == 1 else 0
        part = _channels_of(v, whole, first, channels, blocked)
        moved = (_times(big.strides[axis], at) for axis, at in enumerate(place, space))
        offset = _sum(big.offset, *moved)
        _copy(v, part, View(big.buffer, part.dims, tuple(steps), offset))
    if blocked:
        _finish(v, home, result)


def _channels_of(v: Values, value: int, first: int, count: int, blocked: bool) -> View:
    """Some channels of a value; whole blocks of it, or plain."""
    if blocked:
        return v.block(value).part(first, count).view()
    slot = v.slot(value)
    strides = dense_strides(slot.shape)
    dims = (slot.shape[0], count, *slot.shape[2:])
    return View(slot.buffer, dims, strides, _times(strides[1], first))


def _pad(v: Values, p: MoveParams, operands: Sequence[int], result: int) -> None:
    """Zeros everywhere, then what is inside."""
    top, left, bottom, right = (resolve(s, [v.shape(i) for i in operands]) for s in p.sizes)
    source, blocked = operands[0], result in v.layout.blocked
    if blocked:
        home, small, big = v.home(result), v.block(source).view(), v.interior(result)
        rows = 2
    else:
        small, big, rows = v.slot(source).view, v.out(result).view, len(v.shape(source)) - 2
    nothing = View(small.buffer, big.dims, (0,) * len(big.dims), small.offset)
    v.w.call("elementwise", nothing, big, chain=ZERO)
    dims, froms, tos = list(small.dims), small.offset, big.offset
    for axis, before, behind in ((rows, top, bottom), (rows + 1, left, right)):
        cut = [combine("max", combine("sub", 0, pad), 0) for pad in (before, behind)]
        dims[axis] = combine("sub", combine("sub", dims[axis], cut[0]), cut[1])
        froms = _sum(froms, _times(small.strides[axis], cut[0]))
        tos = _sum(tos, _times(big.strides[axis], combine("max", before, 0)))
    inside = View(small.buffer, tuple(dims), small.strides, froms)
    _copy(v, inside, View(big.buffer, tuple(dims), big.strides, tos))
    if blocked:
        _finish(v, home, result)


def _shuffle(v: Values, groups: int, source: int, result: int) -> None:
    """In blocks when it is asked for; else one copy with the axes of groups turned."""
    if result in v.layout.blocked:
        deal = v.dealt.get(source, Deal((source,)))
        whole = deal.groups == 1 and sum(map(v.layout.channels, deal.parts)) == v.layout.channels(
            source
        )
        v.dealt[result] = replace(deal if whole else Deal((source,)), groups=groups)
        return
    slot, out = v.slot(source), v.out(result)
    n, _, *space = slot.shape
    sn, sc, *strides = dense_strides(slot.shape)
    each = v.layout.channels(source) // groups
    dims = (n, each, groups, *space)
    turned = View(slot.buffer, dims, (sn, sc, _times(sc, each), *strides))
    _copy(v, turned, View(out.buffer, dims, dense_strides(dims)))


def _channels(v: Values, bounds: Sequence[int], source: int, result: int) -> None:
    """A range of blocks is there already; any other range is copied out of the plain value."""
    if result in v.layout.within:
        v.blocks[result] = v.block(source).part(bounds[0], bounds[1] - bounds[0])
        return
    if result in v.layout.blocked:
        deal = v.dealt.get(source, Deal((source,)))
        v.dealt[result] = replace(deal, first=deal.first + bounds[0])
        return
    slot, out = v.slot(source), v.out(result)
    strides = dense_strides(slot.shape)
    part = View(slot.buffer, out.shape, strides, _times(strides[1], bounds[0]))
    _copy(v, part, out.view)


def _concat(v: Values, axis: int, operands: Sequence[int], result: int) -> None:
    """Parts that are not where they belong yet are brought there."""
    if result not in v.layout.blocked:
        _concat_plain(v, axis, operands, result)
        return
    if any(v.layout.channels(value) % BLOCK for value in operands[:-1]):
        v.dealt[result] = Deal(tuple(operands))
        return
    home = v.home(result)
    first = 0
    for value in operands:
        channels = v.layout.channels(value)
        if v.layout.within.get(value) == (result, first):
            v.block(value)
        else:
            _bring(v, value, result, home.part(first, channels))
        first += channels
    v.blocks[result] = home


def _bring(v: Values, value: int, whole: int, place: Blocked) -> None:
    if not v.is_blocked(value) and v.layout.fits(value, whole):
        v.block_into(value, place)
        return
    v.block(value)
    _copy(v, v.blocks[value].view(), place.view())
    if any(place.halo):
        v.w.call("halo", place.whole, ints=place.halo)


def _concat_plain(v: Values, axis: int, operands: Sequence[int], result: int) -> None:
    out = v.out(result)
    strides = dense_strides(out.shape)
    offset = _times(strides[axis], 0)
    for value in operands:
        size = v.shape(value)[axis]
        dims = tuple(size if a == axis else d for a, d in enumerate(out.shape))
        _copy(v, v.slot(value).view, View(out.buffer, dims, strides, offset))
        offset = _sum(offset, _times(strides[axis], size))


def _times(a: Extent, b: Extent) -> Extent:
    return combine("mul", a, b)


def _sum(*terms: Extent) -> Extent:
    total: Extent = 0
    for term in terms:
        total = combine("add", total, term)
    return total
