"""Programs run by NumPy: what every kernel call means, over strided views.

Nothing here shares code with the library: symbols are bound from the inputs, every view is checked
against its buffer, and fresh memory is NaN, so a value nobody wrote shows in the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from tracea_graph.ir import DType, Extent, TensorSpec, evaluate
from tracea_graph.ops.arg import ArgParams
from tracea_graph.ops.attention import FEW_QUERIES
from tracea_graph.ops.bf16 import round_bf16, split_bf16
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.filters import unpack_filters
from tracea_graph.ops.gemm import (
    SPLIT,
    pack_panels,
    unpack_block_pairs,
    unpack_blocks,
    unpack_split,
)
from tracea_graph.ops.int16 import round_images as rounded_images
from tracea_graph.ops.int16 import round_rows
from tracea_graph.ops.masked import unpack_masked
from tracea_graph.ops.program import Buffer, Call, Loop, Program, View
from tracea_graph.ops.resize import WAYS, ResizeParams
from tracea_graph.ops.take import TakeParams
from tracea_graph.ops.top_k import TopKParams

__all__ = ["bind", "check_lifetimes", "check_views", "run", "written"]

Array = npt.NDArray[Any]
Bindings = Mapping[str, int]


def bind(program: Program, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The symbols' values; ValueError where an input's dimension is not what the program says."""
    symbols = {name: shapes[i][axis] for name, (i, axis) in program.symbols.items()}
    for i, (spec, shape) in enumerate(zip(program.inputs, shapes, strict=True)):
        if sizes(spec, symbols) != shape:
            raise ValueError(f"input {i} is {shape}, not {sizes(spec, symbols)}")
    return symbols


def sizes(spec: TensorSpec, symbols: Bindings) -> tuple[int, ...]:
    assert spec.shape is not None
    return numbers(spec.shape, symbols)


def numbers(extents: Sequence[Extent], symbols: Bindings) -> tuple[int, ...]:
    return tuple(evaluate(e, symbols) for e in extents)


def counts(program: Program, symbols: Bindings) -> dict[Buffer, int]:
    """Elements of every buffer."""
    result = {Buffer("input", i): prod(sizes(s, symbols)) for i, s in enumerate(program.inputs)}
    for i, spec in enumerate(program.outputs):
        result[Buffer("output", i)] = prod(sizes(spec, symbols))
    for i, temp in enumerate(program.temps):
        result[Buffer("temp", i)] = evaluate(temp.count, symbols)
    return result


def turns(
    program: Program, symbols: Bindings, begin: Callable[[Loop], None] = lambda _: None
) -> Iterator[tuple[Call, Bindings]]:
    """Every call in the order it runs, with the values of the symbols it may use.

    Turns that run apart may do so in any order: the last one comes first; ``begin`` hears of each.
    """
    at = 0
    for loop in program.loops:
        yield from ((call, symbols) for call in program.calls[at : loop.first])
        for now in loop.turns(evaluate(loop.extent, symbols))[:: -1 if loop.apart else 1]:
            begin(loop)
            inside = program.calls[loop.first : loop.last + 1]
            yield from ((call, {**symbols, **now}) for call in inside)
        at = loop.last + 1
    yield from ((call, symbols) for call in program.calls[at:])


def check_views(program: Program, bound: Bindings) -> None:
    """Every element every view may touch lies in its buffer."""
    room = counts(program, bound)
    for call, symbols in turns(program, bound):
        for view in filter(None, call.views):
            dims, strides = numbers(view.dims, symbols), numbers(view.strides, symbols)
            assert len(dims) == len(strides) and min(dims, default=0) >= 0
            if prod(dims):
                spans = [(d - 1) * s for d, s in zip(dims, strides, strict=True)]
                start = evaluate(view.offset, symbols)
                first = start + sum(s for s in spans if s < 0)
                last = start + sum(s for s in spans if s > 0)
                assert 0 <= first <= last < room[view.buffer], (call.kernel, view)


def check_lifetimes(program: Program) -> None:
    """A temp lives from its first call to its last one, and is written before it is read."""
    for i, temp in enumerate(program.temps):
        used = [n for n, c in enumerate(program.calls) if Buffer("temp", i) in buffers(c)]
        assert used, f"temp {i} is never used"
        loops = [lo for lo in program.loops if lo.first <= temp.last and temp.first <= lo.last]
        whole = [n for lo in loops for n in (lo.first, lo.last)]
        widest = min((used[0], *whole)), max((used[-1], *whole))
        assert (temp.first, temp.last) in ((used[0], used[-1]), widest)
        opens = program.calls[used[0]]
        carried = bool(loops) and opens.kernel == "copy"
        assert carried or Buffer("temp", i) in {v.buffer for v in written(opens) if v}


def written(call: Call) -> Sequence[View | None]:
    """The views a call writes, as far as a temp may first appear in them."""
    if call.kernel == "recurrent":
        return call.views[5:]
    if call.kernel == "norm":
        return call.views[3:]
    if call.kernel in ("round_int16", "round_images", "top_k"):
        return call.views[1:]
    side_by_side = call.ints[-1] if call.kernel.startswith("gemm") else 1
    return call.views[-len(call.chain.results) if call.chain else -side_by_side :]


def buffers(call: Call) -> set[Buffer]:
    return {v.buffer for v in call.views if v is not None}


def run(program: Program, arrays: Sequence[Array]) -> list[Array]:
    """The outputs, float64 inside."""
    symbols = bind(program, [a.shape for a in arrays])
    check_views(program, symbols)
    memory = {b: np.full(n, np.nan) for b, n in counts(program, symbols).items()}
    for i, array in enumerate(arrays):
        wide = array.astype(np.float64) if array.dtype == np.float32 else array
        memory[Buffer("input", i)] = np.ascontiguousarray(wide).reshape(-1)

    def forget(loop: Loop) -> None:
        """What a turn that runs apart has for itself holds nothing."""
        for i, temp in enumerate(program.temps):
            if loop.apart and loop.first <= temp.first and temp.last <= loop.last:
                memory[Buffer("temp", i)][:] = np.nan

    for call, now in turns(program, symbols, forget):
        views = [None if v is None else strided(memory, v, now) for v in call.views]
        if not any(prod(numbers(v.dims, now)) for v in written(call) if v is not None):
            continue  # a turn that has nothing to do here
        KERNELS[call.kernel](call, views)
        for view in filter(None, written(call)):
            if dtype_of(program, view.buffer) is DType.BF16:
                memory[view.buffer] = round_bf16(memory[view.buffer])
    return [
        memory[Buffer("output", i)].reshape(sizes(spec, symbols))
        for i, spec in enumerate(program.outputs)
    ]


def dtype_of(program: Program, buffer: Buffer) -> DType | None:
    """The element type of what a program writes; None for an input."""
    if buffer.kind == "temp":
        return program.temps[buffer.index].dtype
    return program.outputs[buffer.index].dtype if buffer.kind == "output" else None


def strided(memory: Mapping[Buffer, Array], view: View, symbols: Bindings) -> Array:
    dims, flat = numbers(view.dims, symbols), memory[view.buffer]
    if prod(dims):
        flat = flat[evaluate(view.offset, symbols) :]
    steps = [s * flat.itemsize for s in numbers(view.strides, symbols)]
    return as_strided(flat, dims, steps)


# ---- one function per kernel -------------------------------------------------------------


def gemm(call: Call, views: list[Any]) -> None:
    x, w, bias, *rest = views
    scales = None
    if call.kernel == "gemm_int16":
        rows, columns, *rest = rest
        x, scales = x * rows[:, None], columns
    if call.kernel in ("gemm_bf16", "gemm_int16"):
        w = np.swapaxes(w, -1, -2).reshape(w.shape[0], -1, w.shape[2]).astype(np.float64)
    layout, parts = call.ints
    lower = 0.0
    if call.kernel == "gemm_bf16x2":
        (x, x_lower), w = turns_of(x), np.asarray(w, np.float64)
        k, n = x.shape[-1], w.shape[0] * w.shape[2]
        upper, w_lower = unpack_split(w, k, n)
        x, w = x + x_lower, pack_panels((upper + w_lower).astype(np.float64))
        columns = rest[-1].shape[-1] if parts == 1 else sum(y.shape[-1] for y in rest)
        lower = (x_lower @ w_lower)[..., :columns]  # the smallest product is left out
    panels, k_by_n = layout in (0, 3, 4, 7, 10), layout == 1
    if panels:
        columns = rest[-1].shape[-1] if parts == 1 else sum(y.shape[-1] for y in rest)
        w = w.swapaxes(-3, -2).reshape(*w.shape[:-3], w.shape[-2], -1)[..., :columns]
        w = w if scales is None else w * scales[:columns]
    acc = x @ (w if panels or k_by_n else w.swapaxes(-1, -2)) - lower
    acc = acc if bias is None else acc + bias
    if parts > 1:
        ends = np.cumsum([y.shape[-1] for y in rest])
        for y, part in zip(rest, np.split(acc, ends[:-1], -1), strict=True):
            y[...] = part
        return
    finish(call.chain, [acc], rest)


def round_to_bf16(call: Call, views: list[Any]) -> None:
    x, y = views
    y[...] = 0
    y[:, : x.shape[1]] = round_bf16(x)


def round_to_bf16x2(call: Call, views: list[Any]) -> None:
    x, y = views
    halves = y.reshape(len(y), -1, 2, SPLIT)
    filled = np.pad(x, ((0, 0), (0, -x.shape[1] % SPLIT)))
    for part, half in enumerate(split_bf16(filled)):
        halves[:, :, part] = half.reshape(len(y), -1, SPLIT)


def turns_of(x: Array) -> tuple[Array, Array]:
    """Upper and lower halves of rows that hold them in turn."""
    halves = np.asarray(x, np.float64).reshape(len(x), -1, 2, SPLIT)
    return halves[:, :, 0].reshape(len(x), -1), halves[:, :, 1].reshape(len(x), -1)


def round_to_int16(call: Call, views: list[Any]) -> None:
    x, y, scale = views
    y[...] = 0
    y[:, : x.shape[1]], scale[...] = round_rows(x)


def gemm_blocks(call: Call, views: list[Any]) -> None:
    x, blocks, bias, places, *rest = views
    (parts,) = call.ints
    columns = rest[-1].shape[-1] if parts == 1 else sum(y.shape[-1] for y in rest)
    if blocks.ndim == 4:
        blocks = unpack_block_pairs(blocks)
    w = unpack_blocks(blocks, places.astype(np.int64), x.shape[1], columns)
    acc = x @ w + (0 if bias is None else bias)
    if parts == 1:
        return finish(call.chain, [acc], rest)
    ends = np.cumsum([y.shape[-1] for y in rest])
    for y, part in zip(rest, np.split(acc, ends[:-1], -1), strict=True):
        y[...] = part


def gemm_masked(call: Call, views: list[Any]) -> None:
    x, stored, bias, words, *rest = views
    panels = unpack_masked(stored.astype(np.float64), words.astype(np.int32), x.shape[1])
    by_panels = dataclasses.replace(call, kernel="gemm", ints=(0, *call.ints))
    gemm(by_panels, [x, panels, bias, *rest])


def finish(chain: Chain | None, first: list[Array], rest: list[Array]) -> None:
    """Write the chain's results, or the accumulator itself, to the last views."""
    extras = len(chain.operands) - len(first) if chain else 0
    results = chain.reference([*first, *rest[:extras]]) if chain else first
    for target, value in zip(rest[extras:], results, strict=True):
        target[...] = value


def norm(call: Call, views: list[Any]) -> None:
    x, gamma, beta, y, *rounded = views
    (kind,), (epsilon,) = call.ints, call.floats
    centred = x - x.mean(-1, keepdims=True) if kind == 0 else x.copy()
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    result = scaled * (1 if gamma is None else gamma) + (0 if beta is None else beta)
    assert y is not None or rounded
    if y is not None:
        y[...] = result
    for half in rounded:
        half[...] = round_bf16(result)


def elementwise(call: Call, views: list[Any]) -> None:
    assert call.chain is not None
    assert len({v.shape for v in views}) == 1 and views[0].ndim <= 6
    finish(call.chain, [], views)


def copy(call: Call, views: list[Any]) -> None:
    x, y = views
    assert call.chain is None and x.shape == y.shape
    y[...] = x


def embedding(call: Call, views: list[Any]) -> None:
    tables, kind = call.ints
    assert all(v.dtype == (np.int32 if kind == 6 else np.int64) for v in views[tables:-1])
    pairs = zip(views[:tables], views[tables:-1], strict=True)
    views[-1][...] = sum(table[ids] for table, ids in pairs)


def take(call: Call, views: list[Any]) -> None:
    x, index, y = views
    (kind,) = call.ints
    assert index.dtype == (np.int32 if kind == 6 else np.int64) and call.chain is None
    (y[...],) = TakeParams(y.ndim).reference([x, index])


def attention(call: Call, views: list[Any]) -> None:
    q, k, v, mask, y = views
    kind, zero_rows, order, before, after, everywhere = call.ints
    scale, fill, softcap = call.floats
    k, v = (np.repeat(x, q.shape[1] // max(1, x.shape[1]), 1) for x in (k, v))
    scores = scale * (q @ np.swapaxes(k, -1, -2))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    rows, keys = scores.shape[-2:]
    first = np.asarray(0 if order == 1 else keys - rows)
    if order == 3:
        assert mask.dtype == np.int64 and kind == 0
        first, mask = mask[:, None, None, None], None
    place = first + np.arange(rows)[:, None]
    if order:
        scores = np.where(np.arange(keys) <= place, scores, max(fill, -3.4e38))
    assert (mask is None) == (kind == 0)
    if kind == 1:
        scores = scores + np.maximum(mask, -3.4e38)
    elif kind == 2:
        scores = np.where(mask, scores, -3.4e38)
    if before >= 0:
        key = np.arange(keys)
        near = (place - before <= key) & (key <= place + after)
        near |= (key < everywhere) | (place < everywhere)
        scores = np.where(near, scores, -3.4e38)
    lost = scores.max(-1, keepdims=True, initial=-np.inf) <= -3.4e38
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    shares = weights / weights.sum(-1, keepdims=True)
    y[...] = np.where(lost & bool(zero_rows), 0.0, shares) @ v


def attention_rounded(call: Call, views: list[Any]) -> None:
    few = views[0].shape[2] <= FEW_QUERIES
    attention(call, views if few else [*(round_bf16(x) for x in views[:3]), *views[3:]])


def append(call: Call, views: list[Any]) -> None:
    x, past, places, y = views
    y[...] = 0.0
    for b, place in enumerate(places):
        assert 0 <= place <= y.shape[2] - x.shape[2]
        if past is not None:
            y[b, :, :place] = past[b, :, :place]
        y[b, :, place : place + x.shape[2]] = x[b]


# ---- convolutions ------------------------------------------------------------------------


def halo(call: Call, views: list[Any]) -> None:
    clear(views[-1], call.ints[-4:])


def clear(y: Array, sides: Sequence[int]) -> Array:
    """Zero the halo of ``[N, Cb, Hp, Wp, 16]``; the interior."""
    top, left, bottom, right = sides
    tall, wide = y.shape[2] - top - bottom, y.shape[3] - left - right
    inner = y[:, :, top : top + tall, left : left + wide]
    kept = inner.copy()
    y[...] = 0.0
    inner[...] = kept
    return inner


def blocked(x: Array, last: int) -> Array:
    """``[N, Cb, H, W, 16]`` as ``[N, C, H, W]``, without what lies past the last channel; x may be
    half of ``[N, Cb, H, W, 32]``."""
    assert x.strides[4] == x.itemsize
    assert x.shape[3] == 1 or x.strides[3] in (16 * x.itemsize, 32 * x.itemsize)
    n, b, h, w, lanes = x.shape
    channels = b * lanes - 16 + last
    return x.transpose(0, 1, 4, 2, 3).reshape(n, b * lanes, h, w)[:, :channels]


def fill(y: Array, values: Array, sides: Sequence[int]) -> None:
    """Write ``[N, C, H, W]`` into blocks and zeros around it; lanes past C hold anything."""
    inner = clear(y, sides)
    n, c, h, w = values.shape
    _, count, _, _, lanes = inner.shape
    wide = np.full((n, count * lanes, h, w), np.nan)
    wide[:, :c] = values
    inner[...] = wide.reshape(n, count, lanes, h, w).transpose(0, 1, 3, 4, 2)


def convolve(x: Array, w: Array, steps: Sequence[int], groups: int) -> Array:
    """A valid convolution of ``[N, C, …]`` with ``[O, C/groups, …]``, strides then dilations."""
    rank = x.ndim - 2
    strides, dilations = steps[:rank], steps[rank : 2 * rank]
    spans = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    axes = tuple(range(2, x.ndim))
    seen = np.lib.stride_tricks.sliding_window_view(x, spans, axes)
    seen = seen[(..., *(slice(None, None, d) for d in dilations))]
    seen = seen[(slice(None), slice(None), *(slice(None, None, s) for s in strides))]
    letters = "xyz"[:rank], "ijk"[:rank]
    rule = f"ng{'c'}{letters[0]}{letters[1]},goc{letters[1]}->ngo{letters[0]}"
    n, c = x.shape[:2]
    grouped = seen.reshape(n, groups, c // groups, *seen.shape[2:])
    filters = w.reshape(groups, -1, *w.shape[1:])
    out = np.einsum(rule, grouped, filters)
    return out.reshape(n, -1, *out.shape[3:])


def finish_conv(call: Call, acc: Array, rest: list[Any], last: int) -> None:
    """Bias was added: add, clamp, chain, all in blocks, into the interior of the last view."""
    add, *extras, y = rest
    low, high = call.floats
    assert all(v is None or v.strides[4] in (0, v.itemsize) for v in (add, *extras))
    if add is not None:
        acc = acc + blocked(add, last)
    acc = np.minimum(np.maximum(acc, low), high)
    sides = call.ints[-4:]
    if call.chain is None:
        fill(y, acc, sides)
        return
    assert call.chain.operands[0] == "full" and len(extras) == len(call.chain.operands) - 1
    n, b, h, w, lanes = clear(y, sides).shape
    made = np.full((n, b * lanes // 16, h, w, 16), np.nan)
    fill(made, acc, (0, 0, 0, 0))
    for kind, view in zip(call.chain.operands[1:], extras, strict=True):
        assert (view.strides[4] == 0) == (kind in ("col", "scalar"))
        assert (view.strides[3] == 0 or view.shape[3] == 1) or kind in ("full", "col")
    (result,) = call.chain.reference([made, *extras])
    fill(y, blocked(result, 16), sides)


def round_images(call: Call, views: list[Any]) -> None:
    x, y, scale = views
    whole, scale[...] = _images(blocked(x, call.ints[0]))
    if y is not None:
        fill(y, whole, call.ints[1:])
        y[np.isnan(y)] = 0  # integers are never NaN


def _images(x: Array) -> tuple[Array, Array]:
    whole, scale = rounded_images(x)
    return whole.astype(np.float64), scale


def split_images(call: Call, views: list[Any]) -> None:
    x, y = views
    for at, half in zip((0, 16), split_bf16(blocked(x, call.ints[0])), strict=True):
        fill(y[..., at : at + 16], half, call.ints[1:])
    y[np.isnan(y)] = 0  # whole blocks


def in_float(w: Array) -> Array:
    """Blocked filters, or planes of them; those in bf16 hold two input channels together."""
    if w.shape[-1] != 2:
        return w
    whole = w.astype(np.float64).swapaxes(-1, -2)
    return whole.reshape(*w.shape[:-3], 16, 16)


def assert_zeros_around(x: Array, pads: Sequence[int]) -> None:
    """What a kernel need not read holds zeros."""
    top, left, bottom, right = pads
    height, width = x.shape[2:]
    lines = (x[:, :, :top], x[:, :, height - bottom :])
    for edge in (*lines, x[..., :left], x[..., width - right :]):
        assert not edge.any()


def conv(call: Call, views: list[Any]) -> None:
    x, w, bias, *rest = views
    *steps, groups, last_out, last_in = call.ints[:7]
    o, (i, kh, kw) = rest[-1].shape[1] * rest[-1].shape[4] // 16, w.shape[1:4]
    broad = call.kernel == "conv_bf16" and x.shape[4] == 32
    inside = blocked(x if broad else x[..., :16], last_in)
    assert_zeros_around(inside, call.ints[7:11])
    if call.kernel == "conv_int16":
        add, images, scale, *rest = rest
        rest = [add, *rest]
        inside = inside * images.reshape(-1, 1, 1, 1)
        w = w * scale.reshape(o, 1, 1, 1, 1, 16, 1)
    count = o * 16 - 16 + last_out

    def plain(own: Array) -> Array:
        if broad:
            return unpack_filters(own, "broad", (count, i * 32, kh, kw))
        made = in_float(own).transpose(0, 5, 1, 4, 2, 3).reshape(o * 16, i * 16, kh, kw)
        return made[:count, : inside.shape[1]] if groups == 1 else made[:count]

    if call.kernel == "conv_bf16x2":
        lower, upper = (plain(half) for half in np.split(w, 2, 4))
        below = blocked(x[..., 16:], last_in)
        acc = convolve(inside, upper + lower, steps, groups)
        acc += convolve(below, upper, steps, groups)
    else:
        sets = np.split(w, max(1, w.shape[0] // o))
        pairs = zip(np.split(inside, len(sets)), sets, strict=True)
        acc = np.concatenate([convolve(x, plain(own), steps, groups) for x, own in pairs])
    finish_conv(call, _biased(acc, bias), rest, last_out)


def _biased(acc: Array, bias: Array | None) -> Array:
    return acc if bias is None else acc + bias[: acc.shape[1]].reshape(-1, 1, 1)


def conv_stem(call: Call, views: list[Any]) -> None:
    x, w, bias, *rest = views
    steps, (top, left, bottom, right), last = call.ints[:4], call.ints[4:8], call.ints[8]
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    o, c, kh, kw, _ = w.shape
    plain = w.transpose(0, 4, 1, 2, 3).reshape(o * 16, c, kh, kw)[: o * 16 - 16 + last]
    finish_conv(call, _biased(convolve(padded, plain, steps, 1), bias), rest, last)


def depthwise(call: Call, views: list[Any]) -> None:
    x, w, bias, *rest = views
    steps, last, sides = call.ints[:4], call.ints[4], call.ints[5:7]
    inside = np.pad(blocked(x, last), ((0, 0), (0, 0), (0, 0), sides))
    count = inside.shape[1]
    plain = w.transpose(0, 3, 1, 2).reshape(-1, 1, *w.shape[1:3])[:count]
    finish_conv(call, _biased(convolve(inside, plain, steps, count), bias), rest, last)


def winograd(call: Call, views: list[Any]) -> None:
    x, w, bias, *rest = views
    m, last_out, last_in = call.ints[:3]
    inside = blocked(x, last_in)
    o, i = w.shape[1] * 16 - 16 + last_out, inside.shape[1]
    if call.kernel == "winograd_int16":
        add, images, scale, *rest = rest
        rest = [add, *rest]
        whole, each = _images(inside)
        np.testing.assert_array_equal(images, each)
        inside = whole * images.reshape(-1, 1, 1, 1)
        w = w * (scale / 4).reshape(*w.shape[:2], 1, 1, 16, 1)
    plain = unpack_filters(in_float(w), f"winograd{m}", (o, i, 3, 3))
    finish_conv(call, _biased(convolve(inside, plain, (1, 1, 1, 1), 1), bias), rest, last_out)


def conv_or_winograd(call: Call, views: list[Any]) -> None:
    """Either gives the same but for rounding."""
    whole = call.kernel.endswith("_int16")
    direct, x, _, *rest = views[:1] + views[1 + whole :]
    if whole:
        x = np.zeros(x.shape)
        fill(x, _images(blocked(views[2], call.ints[2]))[0], (0, 0, 0, 0))
        rest[3] = views[1]
    ints = (1, 1, 1, 1, 1, *call.ints[1:3], 1, 1, 1, 1, *call.ints[3:])
    kernel = call.kernel.replace("_or_winograd", "")
    conv(dataclasses.replace(call, kernel=kernel, ints=ints), [x, direct, *rest])


def conv_plain(call: Call, views: list[Any]) -> None:
    x, w, bias, *rest = views
    rank = x.ndim - 2
    groups, steps, starts = call.ints[0], call.ints[1 : 1 + 2 * rank], call.ints[1 + 2 * rank :]
    y = rest[-1]
    pads = []
    for axis in range(rank):
        span = steps[rank + axis] * (w.shape[2 + axis] - 1) + 1
        need = (y.shape[2 + axis] - 1) * steps[axis] + span
        pads.append((starts[axis], max(need - starts[axis] - x.shape[2 + axis], 0)))
    acc = convolve(np.pad(x, ((0, 0), (0, 0), *pads)), w, steps, groups)
    acc = acc[(slice(None), slice(None), *(slice(s) for s in y.shape[2:]))]
    if bias is not None:
        acc = acc + bias.reshape(-1, *(1,) * rank)
    finish(call.chain, [acc], rest)


def pool(call: Call, views: list[Any]) -> None:
    x, y = views
    kind, kh, kw, sh, sw, dh, dw, top, left, bottom, right = call.ints[:11]
    fills = (-np.inf, 0.0, 0.0)[kind]
    widths = ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0))
    spans = (dh * (kh - 1) + 1, dw * (kw - 1) + 1)

    def windows(values: Array, empty: float) -> Array:
        padded = np.pad(values, widths, constant_values=empty)
        seen = np.lib.stride_tricks.sliding_window_view(padded, spans, (2, 3))
        return seen[:, :, ::sh, ::sw, :, ::dh, ::dw]

    if kind == 0:
        made = windows(x, fills).max((-1, -2))
    else:
        total = windows(x, 0.0).sum((-1, -2))
        counted = windows(np.ones(x.shape), 0.0 if kind == 2 else 1.0)
        made = total / counted.sum((-1, -2))
    inner = clear(y, call.ints[11:])
    inner[...] = made[:, :, : inner.shape[2], : inner.shape[3]]


def pool_all(call: Call, views: list[Any]) -> None:
    last, kind = call.ints
    x = blocked(views[0], last)
    views[1][...] = x.max((2, 3)) if kind == 0 else x.mean((2, 3))


def resize(call: Call, views: list[Any]) -> None:
    x, y = views
    inner = clear(y, call.ints[1:])
    how, sizes = WAYS[call.ints[0]], inner.shape[2:4]
    scales = call.floats if any(call.floats) else ()
    params = ResizeParams(how, scales=scales) if scales else ResizeParams(how, sizes=sizes)
    lanes = x.transpose(0, 1, 4, 2, 3).reshape(-1, 1, *x.shape[2:4])
    (made,) = params.reference([lanes])
    inner[...] = made.reshape(*x.shape[:2], 16, *sizes).transpose(0, 1, 3, 4, 2)


def deal(call: Call, views: list[Any]) -> None:
    groups, first, count = call.ints[:3]
    parts = [blocked(x, (c - 1) % 16 + 1) for x, c in zip(views, call.ints[7:], strict=False)]
    whole = np.concatenate(parts, 1)
    dealt = whole.reshape(whole.shape[0], groups, -1, *whole.shape[2:]).swapaxes(1, 2)
    fill(views[-1], dealt.reshape(whole.shape)[:, first : first + count], call.ints[3:7])


def block(call: Call, views: list[Any]) -> None:
    x, y = views
    assert y.shape[1] * 16 - 16 + call.ints[0] == x.shape[1]
    fill(y, x, call.ints[1:])


def unblock(call: Call, views: list[Any]) -> None:
    views[1][...] = blocked(views[0], call.ints[0])


# ---- reductions --------------------------------------------------------------------------


def channel_norm(call: Call, views: list[Any]) -> None:
    x, gamma, beta, y = views
    (kind, groups), (epsilon,) = call.ints, call.floats
    if not x.size:
        return
    lines = x.reshape(x.shape[0], groups, -1) if groups else np.moveaxis(x, 1, -1)
    centred = lines - lines.mean(-1, keepdims=True) if kind == 0 else lines
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    scaled = scaled.reshape(x.shape) if groups else np.moveaxis(scaled, -1, 1)
    factor, shift = (
        (1 if gamma is None else gamma[:, None]),
        (0 if beta is None else beta[:, None]),
    )
    y[...] = scaled * factor + shift


REDUCTIONS = (
    np.sum, lambda x, *a, **k: np.abs(x).sum(*a, **k), lambda x, *a, **k: (x * x).sum(*a, **k),
    lambda x, *a, **k: x.max(*a, initial=-np.inf, **k),
    lambda x, *a, **k: x.min(*a, initial=np.inf, **k), np.prod,
)  # fmt: skip


def prologue(call: Call, views: list[Any]) -> Any:
    assert len({v.shape for v in views}) == 1
    return call.chain.reference(views)[0] if call.chain else views[0]


def reduce(call: Call, views: list[Any]) -> None:
    kind, mean, bits = call.ints
    x = prologue(call, views[:-1])
    axes = tuple(i for i in range(x.ndim) if bits >> i & 1)
    y = REDUCTIONS[kind](x, axes, keepdims=True)
    assert y.shape == views[-1].shape
    views[-1][...] = y / np.prod([x.shape[a] for a in axes]) if mean else y


def arg(call: Call, views: list[Any]) -> None:
    axis, least, latest = call.ints
    x = prologue(call, views[:-1])
    params = ArgParams("min" if least else "max", axis - x.ndim, True, bool(latest))
    (found,) = params.reference([x])
    assert found.shape == views[-1].shape
    views[-1][...] = found


def grid(call: Call, views: list[Any]) -> None:
    start, *steps = call.floats
    (y,) = views
    y[...] = start + sum(s * i for s, i in zip(steps, np.indices(y.shape), strict=True))


def top_k(call: Call, views: list[Any]) -> None:
    x, values, places = views
    params = TopKParams(values.shape[-1], not call.ints[0])
    values[...], places[...] = params.reference([x])


def softmax(call: Call, views: list[Any]) -> None:
    axis, log = call.ints
    x = prologue(call, views[:-1])
    d = x - x.max(axis, keepdims=True, initial=-np.inf)
    total = np.exp(d).sum(axis, keepdims=True)
    views[-1][...] = d - np.log(total) if log else np.exp(d) / total


def gates_of(lanes: Any, gates: int, hidden: int) -> tuple[list[Any], Any]:
    """Each gate's lanes, and what lies behind all of theirs: whole panels of a gate, then what is
    left of its units among those of the others, unless it fills a panel for each."""
    left = hidden % 16
    if -(-gates * left // 16) == gates:
        left = 0
    own = -(-(hidden - left) // 16) * 16
    shared, end = gates * own, gates * own + -(-gates * left // 16) * 16
    found = []
    for g in range(gates):
        behind = lanes[..., shared + g * left : shared + (g + 1) * left]
        found.append(np.concatenate((lanes[..., g * own : (g + 1) * own], behind), axis=-1))
    return [gate[..., :hidden] for gate in found], lanes[..., end:]


def recurrent(call: Call, views: list[Any]) -> None:
    """Step by step, each gate some lanes of the panels."""
    p, panels, rest, h0, c0, last, cell, y = views
    gru, reverse = call.ints  # 2: reset before the product
    directions, steps, batch, columns = p.shape
    hidden = y.shape[3]
    assert panels.shape == (directions, columns // 16, hidden, 16)
    assert y.shape == (steps, directions, batch, hidden)

    def apart(lanes: Any) -> list[Any]:
        if gru != 2:
            found, behind = gates_of(lanes, 3 if gru else 4, hidden)
        else:
            both, behind = gates_of(lanes, 2, hidden)
            third, behind = gates_of(behind, 1, hidden)
            found = [*both, *third]
        assert behind.shape[-1] == 0
        return found

    for d in range(directions):
        h = np.zeros((batch, hidden)) if h0 is None else h0[d]
        c = np.zeros((batch, hidden)) if c0 is None else c0[d]
        matrix = np.concatenate(list(panels[d]), axis=1)
        for i in range(steps):
            t = steps - 1 - i if reverse >> d & 1 else i
            ahead, back = apart(p[d, t]), apart(h @ matrix)
            first, second = (1 / (1 + np.exp(-ahead[g] - back[g])) for g in range(2))
            if gru:
                reset = (
                    second * (back[2] + rest[d, :hidden])
                    if gru == 1
                    else (second * h) @ apart(matrix)[2]
                )
                n = np.tanh(ahead[2] + reset)
                h = n + first * (h - n)
            else:
                forget = 1 / (1 + np.exp(-ahead[2] - back[2]))
                c = forget * c + first * np.tanh(ahead[3] + back[3])
                h = second * np.tanh(c)
            y[t, d] = h
        if last is not None:
            last[d] = h
        if cell is not None:
            cell[d] = c


KERNELS: Mapping[str, Callable[[Call, list[Any]], None]] = MappingProxyType(
    {
        "gemm": gemm, "gemm_bf16": gemm, "gemm_int16": gemm, "gemm_bf16x2": gemm,
        "gemm_blocks": gemm_blocks, "gemm_blocks_bf16": gemm_blocks, "gemm_masked": gemm_masked,
        "gemm_masked_bf16": gemm_masked,
        "round_bf16": round_to_bf16, "round_bf16x2": round_to_bf16x2,
        "round_int16": round_to_int16,
        "norm": norm, "elementwise": elementwise,
        "embedding": embedding, "attention": attention, "attention_bf16": attention,
        "attention_rounded": attention_rounded, "append": append,
        "conv": conv, "conv_stem": conv_stem, "depthwise": depthwise, "conv_plain": conv_plain,
        "pool": pool, "pool_bf16": pool, "pool_all": pool_all, "resize": resize, "deal": deal,
        "block": block, "unblock": unblock, "halo": halo,
        "winograd": winograd, "conv_or_winograd": conv_or_winograd,
        "conv_bf16": conv, "conv_stem_bf16": conv_stem,
        "depthwise_bf16": depthwise, "winograd_bf16": winograd,
        "conv_or_winograd_bf16": conv_or_winograd,
        "conv_or_winograd_int16": conv_or_winograd, "split_images": split_images,
        "conv_bf16x2": conv,
        "conv_int16": conv, "winograd_int16": winograd, "round_images": round_images,
        "reduce": reduce, "arg": arg, "top_k": top_k, "softmax": softmax,
        "channel_norm": channel_norm,
        "copy": copy, "recurrent": recurrent, "take": take, "grid": grid,
    }
)  # fmt: skip
