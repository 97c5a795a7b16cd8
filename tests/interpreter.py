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
from tracea_graph.kernels.cpu.bitmap_sparse_format import unpack_bitmap
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.filters import NCHW32C, WinogradFilters
from tracea_graph.kernels.cpu.nbits_panels import NBitsPanels
from tracea_graph.kernels.cpu.panels import (
    SPLIT_STEPS,
    pack_panels,
    unpack_bf16x2,
    unpack_block_sparse,
    unpack_block_sparse_vnni2,
    unpack_int8,
)
from tracea_graph.kernels.program import Buffer, Call, Loop, Program, View
from tracea_graph.ops.arg_max import ArgParams
from tracea_graph.ops.attention import FEW_QUERIES, LOWEST, without_empty_rows
from tracea_graph.ops.attention_tiles import TileGrid
from tracea_graph.ops.bf16 import round_bf16, split_bf16
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.gather_elements import GatherElementsParams
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.int16 import round_images as rounded_images
from tracea_graph.ops.int16 import round_rows
from tracea_graph.ops.quantize_rows import ZERO, quantize_rows
from tracea_graph.ops.resize import ResizeParams
from tracea_graph.ops.top_k import TopKParams

__all__ = ["bind", "check_lifetimes", "check_views", "run", "written"]

Array = npt.NDArray[Any]
Bindings = Mapping[str, int]


def bind(program: Program, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The symbols' values; ValueError where an input's dimension is not what the program says."""
    symbols = {name: shapes[i][axis] for name, (i, axis) in program.symbols.items()}
    for i, axis in program.loose:
        named = (program.inputs[i].shape or ())[axis]
        if shapes[i][axis] != 1 and symbols.get(str(named)) == 1:
            symbols[str(named)] = shapes[i][axis]
    for i, (spec, shape) in enumerate(zip(program.inputs, shapes, strict=True)):
        pairs = enumerate(zip(sizes(spec, symbols), shape, strict=True))
        if any(a != b and (b != 1 or (i, axis) not in program.loose) for axis, (a, b) in pairs):
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
        for now in loop.iterations(evaluate(loop.extent, symbols))[:: -1 if loop.parallel else 1]:
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
                assert 0 <= first <= last < room[view.buffer], (call.name, view)


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
        carried = bool(loops) and opens.op == "copy"
        assert carried or Buffer("temp", i) in {v.buffer for v in written(opens) if v}


def written(call: Call) -> Sequence[View | None]:
    """The views a call writes, as far as a temp may first appear in them."""
    places = CALLS.of(call).written(call)
    return call.views[places.start : places.stop]


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
            if loop.parallel and loop.first <= temp.first and temp.last <= loop.last:
                memory[Buffer("temp", i)][:] = np.nan

    for call, now in turns(program, symbols, forget):
        views = [None if v is None else strided(memory, v, now) for v in call.views]
        if not any(prod(numbers(v.dims, now)) for v in written(call) if v is not None):
            continue  # a turn that has nothing to do here
        one = CALLS.of(call)
        named = {
            o.name: views[at] if o.many else views[at.start]
            for o, at in ((o, one.slices(call)[o.name]) for o in one.operands)
        }
        KERNELS[call.op](call, **named, **call.attributes)
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


def gemm(
    call: Call, *, x: Array, w: Array, bias: Any, inputs: list[Any], y: list[Any],
    layout: str, parts: int, row_scales: Any = None, column_scales: Any = None,
) -> None:  # fmt: skip
    columns = y[-1].shape[-1] if parts == 1 else sum(part.shape[-1] for part in y)
    if row_scales is not None:
        x = x * row_scales[:, None]
    if call.dtype in ("bf16", "int16"):
        w = np.swapaxes(w, -1, -2).reshape(w.shape[0], -1, w.shape[2]).astype(np.float64)
    lower: Any = 0.0
    if call.dtype == "bf16x2":
        (x, x_lower), w = turns_of(x), np.asarray(w, np.float64)
        k, n = x.shape[-1], w.shape[0] * w.shape[2]
        upper, w_lower = unpack_bf16x2(w, k, n)
        x, w = x + x_lower, pack_panels((upper + w_lower).astype(np.float64))
        lower = (x_lower @ w_lower)[..., :columns]  # the smallest product is left out
    if layout not in ("kn", "nk"):
        w = w.swapaxes(-3, -2).reshape(*w.shape[:-3], w.shape[-2], -1)[..., :columns]
        w = w if column_scales is None else w * column_scales[:columns]
    acc = x @ (w.swapaxes(-1, -2) if layout == "nk" else w) - lower
    side_by_side(call, acc if bias is None else acc + bias, inputs, y)


def gemm_int8(
    call: Call, *, x: Array, w: Array, bias: None, x_zero: Any, row_sums: Any,
    inputs: list[Any], y: list[Any], layout: str, parts: int, zero: int,
) -> None:  # fmt: skip
    columns = y[-1].shape[-1] if parts == 1 else sum(part.shape[-1] for part in y)
    matrix, own = unpack_int8(w, x.shape[-1], columns)
    assert (own is None) == (row_sums is None) and bias is None and layout == "int8"
    given = () if x_zero is None else (x_zero,)
    operands = IntegerOperand(
        DType.I8 if x.dtype == np.int8 else DType.U8, None if given else zero, own is not None
    )
    acc = operands.product(x, matrix, [*given, *([] if own is None else [own])])
    side_by_side(call, acc, inputs, y)


def gemm_nbits(
    call: Call, *, x: Array, w: Array, bias: Any, scales: Array, inputs: list[Any], y: list[Any],
    parts: int, bits: int, block: int, zeros: str, int8_rows: bool,
) -> None:  # fmt: skip
    columns = y[-1].shape[-1] if parts == 1 else sum(part.shape[-1] for part in y)
    layout = NBitsPanels(bits, block, zeros, int8_rows)
    acc = layout.product(x, (w, scales), x.shape[-1], columns)
    side_by_side(call, acc if bias is None else acc + bias, inputs, y)


def taps_of(
    x: Array, fill: float, kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], pads: Sequence[int],
) -> Array:  # fmt: skip
    """``[taps, N, H', W', C]``: what each tap of a window sees of images with channels last."""
    top, left, bottom, right = pads
    wide = np.pad(
        np.asarray(x, np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)),
        constant_values=fill,
    )  # fmt: skip
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [(n - s) // t + 1 for n, s, t in zip(wide.shape[1:3], spans, strides, strict=True)]
    seen = []
    for at in np.ndindex(*kernel):
        starts = [a * d for a, d in zip(at, dilations, strict=True)]
        rows, cols = (
            slice(b, b + (n - 1) * s + 1, s)
            for b, n, s in zip(starts, sizes, strides, strict=True)
        )
        seen.append(wide[:, rows, cols])
    return np.stack(seen)


def conv_nhwc(
    call: Call, *, x: Array, w: Array, x_zero: Any, inputs: list[Any], y: list[Any],
    groups: int, zero: int, **window: Any,
) -> None:  # fmt: skip
    fill = float(zero if x_zero is None else x_zero[0])
    taps = taps_of(x, fill, **window) - fill
    depth, filters = x.shape[3] // groups, y[0].shape[1]
    matrix, own = unpack_int8(np.asarray(w, np.int8), len(taps) * depth, filters)
    right = matrix.astype(np.float64) - (0 if own is None else own.astype(np.float64))
    left = taps.reshape(len(taps), -1, groups, depth)
    parts = right.reshape(len(taps), depth, groups, filters // groups)
    acc = np.einsum("tmgc,tcgf->mgf", left, parts).reshape(y[0].shape)
    finish(call.chain, [acc], inputs, y)


def matmul_bytes(
    call: Call, *, x: Array, w: Array, inputs: list[Any], y: list[Any], zero: int, w_zero: int
) -> None:
    acc = (np.asarray(x, np.float64) - zero) @ (np.asarray(w, np.float64) - w_zero)
    finish(call.chain, [acc], inputs, y)


def pool_nhwc(call: Call, *, x: Array, y: Array, **window: Any) -> None:
    y[...] = taps_of(x, -np.inf, **window).max(0)


def gather_nbits(
    call: Call, *, w: Array, scales: Array, ids: Array, y: Array, columns: int, bits: int,
    block: int, zeros: str,
) -> None:  # fmt: skip
    layout = NBitsPanels(bits, block, zeros)
    y[...] = layout.matrix((w, scales), y.shape[1], columns).T[ids]


def sum_rows(call: Call, *, x: Array, sums: Any, y: Any) -> None:
    if sums is not None:
        sums[...] = x.astype(np.int64).sum(1) + (128 * x.shape[1] if x.dtype == np.int8 else 0)
    if y is not None:
        y[...] = 0
        y[:, : x.shape[1]] = x


def by_type(call: Call, **operands: Any) -> None:
    (gemm_int8 if call.dtype == "int8" else gemm)(call, **operands)


def side_by_side(call: Call, acc: Array, inputs: list[Any], y: list[Any]) -> None:
    """The results of a product: one through the chain, or its columns in several."""
    if call.attributes["parts"] == 1:
        return finish(call.chain, [acc], inputs, y)
    ends = np.cumsum([part.shape[-1] for part in y])
    for target, part in zip(y, np.split(acc, ends[:-1], -1), strict=True):
        target[...] = part


def round_rows_of(
    call: Call, *, x: Array, y: Array, scales: Any = None, factors: Any = None
) -> None:
    """Rows in bf16, as sums of two numbers in bf16, or in integers with their scales."""
    if call.dtype == "int8":
        whole, found = quantize_rows(x if factors is None else x * factors)
        y[...], scales[...] = whole + ZERO, found[:, 0]
        return
    if call.dtype == "bf16x2":
        halves = y.reshape(len(y), -1, 2, SPLIT_STEPS)
        filled = np.pad(x, ((0, 0), (0, -x.shape[1] % SPLIT_STEPS)))
        for part, half in enumerate(split_bf16(filled)):
            halves[:, :, part] = half.reshape(len(y), -1, SPLIT_STEPS)
        return
    y[...] = 0
    if call.dtype == "bf16":
        y[:, : x.shape[1]] = round_bf16(x)
    else:
        y[:, : x.shape[1]], scales[...] = round_rows(x)


def turns_of(x: Array) -> tuple[Array, Array]:
    """Upper and lower halves of rows that hold them in turn."""
    halves = np.asarray(x, np.float64).reshape(len(x), -1, 2, SPLIT_STEPS)
    return halves[:, :, 0].reshape(len(x), -1), halves[:, :, 1].reshape(len(x), -1)


def gemm_block_sparse(
    call: Call, *, x: Array, w: Array, bias: Any, index: Array, inputs: list[Any],
    y: list[Any], parts: int,
) -> None:  # fmt: skip
    columns = y[-1].shape[-1] if parts == 1 else sum(part.shape[-1] for part in y)
    blocks = unpack_block_sparse_vnni2(w) if w.ndim == 4 else w
    whole = unpack_block_sparse(blocks, index.astype(np.int64), x.shape[1], columns)
    side_by_side(call, x @ whole + (0 if bias is None else bias), inputs, y)


def gemm_bitmap(call: Call, *, x: Array, w: Array, index: Array, **rest: Any) -> None:
    panels = unpack_bitmap(w.astype(np.float64), index.astype(np.int32), x.shape[1])
    by_panels = dataclasses.replace(call, op="gemm", dtype="f32")
    gemm(by_panels, x=x, w=panels, layout="panels", **rest)


def finish(chain: Chain | None, first: list[Array], inputs: list[Any], y: list[Any]) -> None:
    """Write the chain's results, or the accumulator itself."""
    results = chain.reference([*first, *inputs]) if chain else first
    for target, value in zip(y, results, strict=True):
        target[...] = value


def norm(
    call: Call, *, x: Array, gamma: Any, beta: Any, y: Any, y_bf16: Any, kind: str, epsilon: float
) -> None:
    centred = x - x.mean(-1, keepdims=True) if kind == "layer" else x.copy()
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    result = scaled * (1 if gamma is None else gamma) + (0 if beta is None else beta)
    assert y is not None or y_bf16 is not None
    if y is not None:
        y[...] = result
    if y_bf16 is not None:
        y_bf16[...] = round_bf16(result)


def elementwise(call: Call, *, x: list[Any], y: list[Any]) -> None:
    assert len({v.shape for v in (*x, *y)}) == 1 and y[0].ndim <= 6
    finish(call.chain, [], x, y)


def copy(call: Call, *, x: Array, y: Array) -> None:
    assert x.shape == y.shape
    y[...] = x


def embedding(
    call: Call, *, tables: list[Any], ids: list[Any], y: Array, count: int, index_type: str
) -> None:
    assert all(v.dtype == INDICES[index_type] for v in ids)
    y[...] = sum(table[own] for table, own in zip(tables, ids, strict=True))


INDICES = {"i32": np.int32, "i64": np.int64}


def gather_elements(call: Call, *, x: Array, index: Array, y: Array, index_type: str) -> None:
    assert index.dtype == INDICES[index_type]
    (y[...],) = GatherElementsParams(y.ndim).reference([x, index])


def attention(
    call: Call, *, q: Array, k: Array, v: Array, mask: Any, tiles: Any, y: Array, mask_kind: str,
    zero_rows: str, order: str, window_left: int, window_right: int, global_keys: int,
    scale: float, fill: float, softcap: float,
    tile_kind: str, tile_grid: Sequence[int], beyond: float,
) -> None:  # fmt: skip
    if call.dtype == "f32_as_bf16" and q.shape[2] > FEW_QUERIES:
        q, k, v = (round_bf16(x) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // max(1, x.shape[1]), 1) for x in (k, v))
    scores = scale * (q @ np.swapaxes(k, -1, -2))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    rows, keys = scores.shape[-2:]
    first = np.asarray(0 if order == "top" else keys - rows)
    if order == "placed":
        assert mask.dtype == np.int64 and mask_kind == "none"
        first, mask = mask[:, None, None, None], None
    place = first + np.arange(rows)[:, None]
    limit = -np.inf if zero_rows == "infinite" else LOWEST
    seen = np.ones(scores.shape, bool)
    if order != "none":
        scores = np.where(np.arange(keys) <= place, scores, fill)
        seen &= (np.arange(keys) <= place) | (fill > limit)
    assert (mask is None) == (mask_kind == "none")
    if mask_kind == "add":
        scores = scores + mask
        seen &= ~(mask <= limit)
    elif mask_kind == "bool":
        scores = np.where(mask, scores, fill)
        seen &= mask | (fill > limit)
    if window_left >= 0:
        key = np.arange(keys)
        near = (place - window_left <= key) & (key <= place + window_right)
        near |= (key < global_keys) | (place < global_keys)
        scores = np.where(near, scores, -np.inf)
        seen &= near
    assert (tiles is None) == (tile_kind == "none")
    if tile_kind == "mask":
        kept = TileGrid(*tile_grid).kept(tiles, rows, keys)
        scores = np.where(kept, scores, -np.inf)
        seen &= kept
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        shares = weights / weights.sum(-1, keepdims=True)
    y[...] = without_empty_rows(shares, scores, seen, zero_rows) @ v


def kv_append(call: Call, *, x: Array, past: Any, positions: Array, y: Array) -> None:
    y[...] = 0.0
    for b, place in enumerate(positions):
        assert 0 <= place <= y.shape[2] - x.shape[2]
        if past is not None:
            y[b, :, :place] = past[b, :, :place]
        y[b, :, place : place + x.shape[2]] = x[b]


# ---- convolutions ------------------------------------------------------------------------


def zero_pad(call: Call, *, y: Array, halo: Sequence[int]) -> None:
    clear(y, halo)


def clear(y: Array, sides: Sequence[int]) -> Array:
    """Zero the halo of ``[N, Cb, Hp, Wp, 16]``; the interior."""
    top, left, bottom, right = sides
    tall, wide = y.shape[2] - top - bottom, y.shape[3] - left - right
    inner = y[:, :, top : top + tall, left : left + wide]
    kept = inner.copy()
    y[...] = 0.0
    inner[...] = kept
    return inner


def blocked(x: Array, tail: int) -> Array:
    """``[N, Cb, H, W, 16]`` as ``[N, C, H, W]``, without what lies past the last channel; x may be
    half of ``[N, Cb, H, W, 32]``."""
    assert x.strides[4] == x.itemsize
    assert x.shape[3] == 1 or x.strides[3] in (16 * x.itemsize, 32 * x.itemsize)
    n, b, h, w, lanes = x.shape
    channels = b * lanes - 16 + tail
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


def finish_conv(
    call: Call, acc: Array, tail: int, *, bias: Any, add: Any, inputs: list[Any], y: Array,
    halo: Sequence[int], low: float, high: float, **_: Any,
) -> None:  # fmt: skip
    """Bias, what is added, the clamp and the chain, all in blocks, into the interior of y."""
    assert all(v is None or v.strides[4] in (0, v.itemsize) for v in (add, *inputs))
    if bias is not None:
        acc = acc + bias[: acc.shape[1]].reshape(-1, 1, 1)
    if add is not None:
        acc = acc + blocked(add, tail)
    acc = np.minimum(np.maximum(acc, low), high)
    if call.chain is None:
        fill(y, acc, halo)
        return
    assert call.chain.operands[0] == "full" and len(inputs) == len(call.chain.operands) - 1
    n, b, h, w, lanes = clear(y, halo).shape
    made = np.full((n, b * lanes // 16, h, w, 16), np.nan)
    fill(made, acc, (0, 0, 0, 0))
    for kind, view in zip(call.chain.operands[1:], inputs, strict=True):
        assert (view.strides[4] == 0) == (kind in ("col", "scalar"))
        assert (view.strides[3] == 0 or view.shape[3] == 1) or kind in ("full", "col")
    (result,) = call.chain.reference([made, *inputs])
    fill(y, blocked(result, 16), halo)


def round_images(
    call: Call, *, x: Array, y: Any, tail: int, halo: Sequence[int], scales: Any = None
) -> None:
    if call.dtype == "bf16x2":
        for at, half in zip((0, 16), split_bf16(blocked(x, tail)), strict=True):
            fill(y[..., at : at + 16], half, halo)
        y[np.isnan(y)] = 0  # whole blocks
        return
    whole, scales[...] = _images(blocked(x, tail))
    if y is not None:
        fill(y, whole, halo)
        y[np.isnan(y)] = 0  # integers are never NaN


def _images(x: Array) -> tuple[Array, Array]:
    whole, scale = rounded_images(x)
    return whole.astype(np.float64), scale


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


def conv(
    call: Call, *, x: Array, w: Array, strides: Sequence[int], dilations: Sequence[int],
    groups: int, oc_tail: int, ic_tail: int, zeros: Sequence[int], image_scales: Any = None,
    filter_scales: Any = None, **rest: Any,
) -> None:  # fmt: skip
    y, steps = rest["y"], (*strides, *dilations)
    o, (i, kh, kw) = y.shape[1] * y.shape[4] // 16, w.shape[1:4]
    broad = call.dtype == "bf16" and x.shape[4] == 32
    inside = blocked(x if broad else x[..., :16], ic_tail)
    assert_zeros_around(inside, zeros)
    if image_scales is not None:
        inside = inside * image_scales.reshape(-1, 1, 1, 1)
        w = w * filter_scales.reshape(o, 1, 1, 1, 1, 16, 1)
    count = o * 16 - 16 + oc_tail

    def plain(own: Array) -> Array:
        if broad:
            return NCHW32C.filters([own], (count, i * 32, kh, kw))
        made = in_float(own).transpose(0, 5, 1, 4, 2, 3).reshape(o * 16, i * 16, kh, kw)
        return made[:count, : inside.shape[1]] if groups == 1 else made[:count]

    if call.dtype == "bf16x2":
        lower, upper = (plain(half) for half in np.split(w, 2, 4))
        below = blocked(x[..., 16:], ic_tail)
        acc = convolve(inside, upper + lower, steps, groups)
        acc += convolve(below, upper, steps, groups)
    else:
        sets = np.split(w, max(1, w.shape[0] // o))
        pairs = zip(np.split(inside, len(sets)), sets, strict=True)
        acc = np.concatenate([convolve(x, plain(own), steps, groups) for x, own in pairs])
    finish_conv(call, acc, oc_tail, **rest)


def conv_first_layer(
    call: Call, *, x: Array, w: Array, strides: Sequence[int], dilations: Sequence[int],
    pads: Sequence[int], oc_tail: int, **rest: Any,
) -> None:  # fmt: skip
    top, left, bottom, right = pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    o, c, kh, kw, _ = w.shape
    plain = w.transpose(0, 4, 1, 2, 3).reshape(o * 16, c, kh, kw)[: o * 16 - 16 + oc_tail]
    finish_conv(call, convolve(padded, plain, (*strides, *dilations), 1), oc_tail, **rest)


def depthwise(
    call: Call, *, x: Array, w: Array, strides: Sequence[int], dilations: Sequence[int],
    tail: int, columns: tuple[int, int], **rest: Any,
) -> None:  # fmt: skip
    inside = np.pad(blocked(x, tail), ((0, 0), (0, 0), (0, 0), columns))
    count = inside.shape[1]
    plain = w.transpose(0, 3, 1, 2).reshape(-1, 1, *w.shape[1:3])[:count]
    finish_conv(call, convolve(inside, plain, (*strides, *dilations), count), tail, **rest)


def winograd(
    call: Call, *, x: Array, w: Array, tile: int, oc_tail: int, ic_tail: int,
    image_scales: Any = None, filter_scales: Any = None, **rest: Any,
) -> None:  # fmt: skip
    inside = blocked(x, ic_tail)
    o, i = w.shape[1] * 16 - 16 + oc_tail, inside.shape[1]
    if image_scales is not None:
        whole, each = _images(inside)
        np.testing.assert_array_equal(image_scales, each)
        inside = whole * image_scales.reshape(-1, 1, 1, 1)
        w = w * (filter_scales / 4).reshape(*w.shape[:2], 1, 1, 16, 1)
    plain = WinogradFilters(tile).filters([in_float(w)], (o, i, 3, 3))
    finish_conv(call, convolve(inside, plain, (1, 1, 1, 1), 1), oc_tail, **rest)


def conv_dispatch(
    call: Call, *, direct: Array, x: Array, w: Array, tile: int, ic_tail: int,
    direct_scales: Any = None, filter_scales: Any = None, **rest: Any,
) -> None:  # fmt: skip
    """Either gives the same but for rounding."""
    if call.dtype == "int16":
        made = np.zeros(x.shape)
        fill(made, _images(blocked(x, ic_tail))[0], (0, 0, 0, 0))
        x = made
    conv(
        dataclasses.replace(call, op="conv"), x=x, w=direct, strides=(1, 1), dilations=(1, 1),
        groups=1, ic_tail=ic_tail, zeros=(1, 1, 1, 1), filter_scales=direct_scales, **rest,
    )  # fmt: skip


def conv_plain(
    call: Call, *, x: Array, w: Array, bias: Any, inputs: list[Any], y: Array, groups: int,
    strides: Sequence[int], dilations: Sequence[int], starts: Sequence[int],
) -> None:  # fmt: skip
    rank = x.ndim - 2
    pads = []
    for axis in range(rank):
        span = dilations[axis] * (w.shape[2 + axis] - 1) + 1
        need = (y.shape[2 + axis] - 1) * strides[axis] + span
        pads.append((starts[axis], max(need - starts[axis] - x.shape[2 + axis], 0)))
    acc = convolve(np.pad(x, ((0, 0), (0, 0), *pads)), w, (*strides, *dilations), groups)
    acc = acc[(slice(None), slice(None), *(slice(s) for s in y.shape[2:]))]
    if bias is not None:
        acc = acc + bias.reshape(-1, *(1,) * rank)
    finish(call.chain, [acc], inputs, [y])


def pool(
    call: Call, *, x: Array, y: Array, kind: str, kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], pads: Sequence[int], halo: Sequence[int],
) -> None:  # fmt: skip
    (kh, kw), (sh, sw), (dh, dw), (top, left, bottom, right) = kernel, strides, dilations, pads
    widths = ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0))
    spans = (dh * (kh - 1) + 1, dw * (kw - 1) + 1)

    def windows(values: Array, empty: float) -> Array:
        padded = np.pad(values, widths, constant_values=empty)
        seen = np.lib.stride_tricks.sliding_window_view(padded, spans, (2, 3))
        return seen[:, :, ::sh, ::sw, :, ::dh, ::dw]

    if kind == "max":
        made = windows(x, -np.inf).max((-1, -2))
    else:
        total = windows(x, 0.0).sum((-1, -2))
        counted = windows(np.ones(x.shape), 0.0 if kind == "average_inside" else 1.0)
        made = total / counted.sum((-1, -2))
    inner = clear(y, halo)
    inner[...] = made[:, :, : inner.shape[2], : inner.shape[3]]


def global_pool(call: Call, *, x: Array, y: Array, tail: int, kind: str) -> None:
    inside = blocked(x, tail)
    y[...] = inside.max((2, 3)) if kind == "max" else inside.mean((2, 3))


def resize(
    call: Call, *, x: Array, y: Array, coordinates: str, halo: Sequence[int],
    scales: tuple[float, ...],
) -> None:  # fmt: skip
    inner = clear(y, halo)
    sizes = inner.shape[2:4]
    if any(scales):
        params = ResizeParams(coordinates, scales=scales)
    else:
        params = ResizeParams(coordinates, sizes=sizes)
    lanes = x.transpose(0, 1, 4, 2, 3).reshape(-1, 1, *x.shape[2:4])
    (made,) = params.reference([lanes])
    inner[...] = made.reshape(*x.shape[:2], 16, *sizes).transpose(0, 1, 3, 4, 2)


def channel_shuffle(
    call: Call, *, parts: list[Any], y: Array, groups: int, first: int, channels: int,
    halo: Sequence[int], part_channels: Sequence[int],
) -> None:  # fmt: skip
    plain = [blocked(x, (c - 1) % 16 + 1) for x, c in zip(parts, part_channels, strict=True)]
    whole = np.concatenate(plain, 1)
    dealt = whole.reshape(whole.shape[0], groups, -1, *whole.shape[2:]).swapaxes(1, 2)
    fill(y, dealt.reshape(whole.shape)[:, first : first + channels], halo)


def reorder_to_nchw16c(call: Call, *, x: Array, y: Array, tail: int, halo: Sequence[int]) -> None:
    assert y.shape[1] * 16 - 16 + tail == x.shape[1]
    fill(y, x, halo)


def reorder_to_nchw(call: Call, *, x: Array, y: Array, tail: int) -> None:
    y[...] = blocked(x, tail)


# ---- reductions --------------------------------------------------------------------------


def channel_norm(
    call: Call, *, x: Array, gamma: Any, beta: Any, y: Array, kind: str, groups: int,
    epsilon: float,
) -> None:  # fmt: skip
    if not x.size:
        return
    lines = x.reshape(x.shape[0], groups, -1) if groups else np.moveaxis(x, 1, -1)
    centred = lines - lines.mean(-1, keepdims=True) if kind == "layer" else lines
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    scaled = scaled.reshape(x.shape) if groups else np.moveaxis(scaled, -1, 1)
    factor, shift = (
        (1 if gamma is None else gamma[:, None]),
        (0 if beta is None else beta[:, None]),
    )
    y[...] = scaled * factor + shift


REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "sum": np.sum,
    "absolutes": lambda x, *a, **k: np.abs(x).sum(*a, **k),
    "squares": lambda x, *a, **k: (x * x).sum(*a, **k),
    "max": lambda x, *a, **k: x.max(*a, initial=-np.inf, **k),
    "min": lambda x, *a, **k: x.min(*a, initial=np.inf, **k),
    "product": np.prod,
}


def prologue(call: Call, x: list[Any]) -> Any:
    assert len({v.shape for v in x}) == 1
    return call.chain.reference(x)[0] if call.chain else x[0]


def reduce(
    call: Call, *, x: list[Any], y: Array, kind: str, mean: bool, axes: tuple[int, ...]
) -> None:
    whole = prologue(call, x)
    made = REDUCTIONS[kind](whole, axes, keepdims=True)
    assert y.shape == made.shape
    y[...] = made / np.prod([whole.shape[a] for a in axes]) if mean else made


def arg_reduce(
    call: Call, *, x: list[Any], y: Array, axis: int, smallest: bool, last: bool
) -> None:
    whole = prologue(call, x)
    params = ArgParams("min" if smallest else "max", axis - whole.ndim, True, last)
    (found,) = params.reference([whole])
    assert found.shape == y.shape
    y[...] = found


def iota(call: Call, *, y: Array, y_type: str, start: float, steps: Sequence[float]) -> None:
    y[...] = start + sum(s * i for s, i in zip(steps, np.indices(y.shape), strict=True))


def bytes_equal(
    call: Call, *, x: list[Any], reference: list[Any], y: Array, count: int, further: bool
) -> None:
    same = all(a.tobytes() == b.tobytes() for a, b in zip(x, reference, strict=True))
    y[...] = same and (not further or y)


def top_k(call: Call, *, x: Array, y: Array, index: Array, smallest: bool) -> None:
    y[...], index[...] = TopKParams(y.shape[-1], not smallest).reference([x])


def softmax(call: Call, *, x: list[Any], y: Array, axis: int, log: bool) -> None:
    whole = prologue(call, x)
    d = whole - whole.max(axis, keepdims=True, initial=-np.inf)
    total = np.exp(d).sum(axis, keepdims=True)
    y[...] = d - np.log(total) if log else np.exp(d) / total


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


def recurrent(
    call: Call, *, p: Array, r: Array, rest: Any, h0: Any, c0: Any, h: Any, c: Any, y: Array,
    cell: str, reverse: tuple[int, ...],
) -> None:  # fmt: skip
    """Step by step, each gate some lanes of the panels."""
    panels, last, last_cell = r, h, c
    gru = ("lstm", "gru", "gru_reset_before").index(cell)
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
            t = steps - 1 - i if d in reverse else i
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
        if last_cell is not None:
            last_cell[d] = c


KERNELS: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "gemm": by_type, "gemm_nbits": gemm_nbits, "gather_nbits": gather_nbits,
        "sum_rows": sum_rows, "matmul_bytes": matmul_bytes,
        "conv_nhwc": conv_nhwc, "pool_nhwc": pool_nhwc,
        "gemm_block_sparse": gemm_block_sparse, "gemm_bitmap": gemm_bitmap,
        "round": round_rows_of, "norm": norm, "elementwise": elementwise,
        "embedding": embedding, "attention": attention, "kv_append": kv_append,
        "conv": conv, "conv_first_layer": conv_first_layer, "depthwise": depthwise,
        "conv_plain": conv_plain,
        "winograd": winograd, "conv_dispatch": conv_dispatch,
        "round_images": round_images, "pool": pool, "global_pool": global_pool, "resize": resize,
        "channel_shuffle": channel_shuffle, "reorder_to_nchw16c": reorder_to_nchw16c,
        "reorder_to_nchw": reorder_to_nchw, "zero_pad": zero_pad,
        "reduce": reduce, "arg_reduce": arg_reduce, "top_k": top_k, "softmax": softmax,
        "channel_norm": channel_norm, "copy": copy, "recurrent": recurrent,
        "gather_elements": gather_elements,
        "iota": iota, "bytes_equal": bytes_equal,
    }
)  # fmt: skip
"""By op; each takes a call's operands and attributes by the names its record gives them."""
