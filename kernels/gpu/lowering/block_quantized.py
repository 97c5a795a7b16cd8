"""Lower matmuls with block-quantized matrices, embeddings of them, and the rounding of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from typing import Any

from tracea_graph.ir import DType, Extent, TensorSpec, combine
from tracea_graph.kernels.gpu.block_quantized_storage import WINDOW, groups_of, window_axes
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.lowering.elementwise_ops import Targets
from tracea_graph.kernels.gpu.lowering.product_calls import product_call
from tracea_graph.kernels.gpu.lowering.program_writer import (
    HALVES,
    ZERO,
    GpuProgramWriter,
    NormedRows,
    none_of_one,
    of_many_rows,
)
from tracea_graph.kernels.gpu.lowering.row_ops import rows_call
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import Value
from tracea_graph.ops.block_quantized import LARGEST as LARGEST_OF_BLOCK
from tracea_graph.ops.block_quantized import SMALLEST, BlockQuantized
from tracea_graph.ops.chain import COL, FULL, Chain, Step
from tracea_graph.ops.fused_region import RegionStep
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.index_map import ViewMove
from tracea_graph.ops.quantize_rows import LARGEST, NOTHING, QuantizeRowsParams
from tracea_graph.ops.quantize_rows import ZERO as ZERO_POINT
from tracea_graph.ops.quantized_embedding import QuantizedEmbeddingParams

__all__ = [
    "block_quantized_call",
    "block_quantized_params",
    "lower_gated",
    "lower_quantize_rows",
    "lower_quantized_embedding",
    "lower_side_by_side",
]

_ALIGNED, _MOST_NUMBERS = 8, 1 << 26
"""Numbers to whose multiples rows of a dequantized matrix extend, and most numbers of one."""
_MAGNITUDE = Chain((FULL,), (Step("abs", (0,)),), (1,))
_SCALED_MAGNITUDE = Chain((FULL, FULL), (Step("mul", (0, 1)), Step("abs", (2,))), (3,))
_ROUNDED = Chain(
    (FULL, COL),
    (
        Step("less", (SMALLEST, 1)),
        Step("div", (LARGEST_OF_BLOCK, 1)),
        Step("where", (2, 3, 0.0)),
        Step("mul", (0, 4)),
        Step("round", (5,)),
        Step("div", (1, LARGEST_OF_BLOCK)),
        Step("where", (2, 7, 0.0)),
        Step("mul", (6, 8)),
    ),
    (9,),
)
"""Numbers of a block that is rounded to int8, from the numbers and the largest magnitude."""
_BYTES_OF_ROW = (
    Step("less", (NOTHING, 1)),
    Step("less", (1, math.inf)),
    Step("and", (2, 3)),
    Step("div", (float(LARGEST), 1)),
    Step("where", (4, 5, 0.0)),
    Step("where", (4, 0, 0.0)),
    Step("mul", (7, 6)),
    Step("round", (8,)),
    Step("add", (9, float(ZERO_POINT))),
)
_BYTES = Chain((FULL, COL), _BYTES_OF_ROW, (10,))
"""Rows in uint8, from their numbers and largest magnitude; 128 if that is not finite."""
_SCALE = Chain(
    (FULL,),
    (
        Step("less_equal", (0, NOTHING)),
        Step("div", (0, float(LARGEST))),
        Step("where", (1, 0.0, 2)),
        Step("sub", (0, 0)),
        Step("add", (3, 4)),
    ),
    (5,),
)
"""Scale of a row, from its largest magnitude; NaN if that is not finite."""


def block_quantized_params(step: RegionStep) -> GemmParams | None:
    """Return the parameters of a step that multiplies by a block-quantized matrix and does no more
    than an epilogue besides; None for others.
    """
    own = step.params
    if not isinstance(own, GemmParams) or type(own.layout) is not BlockQuantized:
        return None
    return None if own.bias or own.norm or own.splits or own.integers else own


def block_quantized_call(
    w: GpuProgramWriter, p: GemmParams, operands: Sequence[Value], chain: Chain | None,
    seen: Sequence[Value], made: Sequence[Value],
) -> None:  # fmt: skip
    """Write a matmul whose epilogue reads ``seen`` and writes ``made``."""
    assert isinstance(p.layout, BlockQuantized)
    codes, scales = p.stored(operands)
    bias, plain = p.split(operands)[2], chain
    if chain is not None or any(v.dtype is not w.narrow for v in made):
        found = w.typed(
            chain or Chain((FULL,), (), (0,)), [Value(made[0].view, DType.F32), *seen], made
        )
        chain = replace(found, operands=(FULL, *found.operands[1:]))
    x, held = _rows(w, p.layout, operands[0])
    matrix = _matrix(w, p.layout, [(codes, scales)])
    if (many := _of_many(w, x, matrix)) != 0:
        weight = _dequantized(w, p.layout, matrix, x, many)
        own, *more = (_of_rows(v, many) for v in (x, *seen, *made))
        product_call(w, own, weight, "nk", plain, more[: len(seen)], more[len(seen) :], bias)
        few = combine("sub", x.shape[0], many)
        x = _of_rows(x, few)
        seen, made = ([_of_rows(v, few) for v in some] for some in (seen, made))
    _call(w, p.layout, x, held, matrix, bias, chain, seen, made)


def _rows(
    w: GpuProgramWriter, layout: BlockQuantized, x: Value
) -> tuple[Value, NormedRows | None]:
    """Return x as a matrix of the type that is multiplied, and the norm that it is, if any."""
    x = w.matrix(x)
    held = w.normed.get(x.view.buffer)
    return (_rounded(w, x, layout.block) if layout.int8_rows else w.typed_as(x, w.narrow)), held


def lower_side_by_side(
    w: GpuProgramWriter, params: Sequence[GemmParams], x: Value,
    stored: Sequence[tuple[Value, Value]],
) -> list[Value]:  # fmt: skip
    """Write one call for matmuls of the same rows, without bias and epilogue.

    ``stored`` are the codes and scales of each matrix, which have one layout.
    """
    layout = params[0].layout
    assert isinstance(layout, BlockQuantized)
    whole = w.number((*x.shape[:-1], sum(p.n for p in params)))
    rows, held = _rows(w, layout, x)
    matrix, y = _matrix(w, layout, stored), w.matrix(whole)
    if (many := _of_many(w, rows, matrix)) != 0:
        weight = _dequantized(w, layout, matrix, rows, many)
        product_call(w, _of_rows(rows, many), weight, "nk", None, (), [_of_rows(y, many)])
        few = combine("sub", rows.shape[0], many)
        rows, y = _of_rows(rows, few), _of_rows(y, few)
    _call(w, layout, rows, held, matrix, None, None, (), [y])
    starts = accumulate((p.n for p in params), initial=0)
    last = len(whole.shape) - 1
    return [whole.part(last, start, p.n) for start, p in zip(starts, params, strict=False)]


def lower_gated(
    w: GpuProgramWriter, layout: BlockQuantized, x: Value, stored: Sequence[tuple[Value, Value]],
    chains: tuple[Chain, Chain, Chain], operand: int, seen: Sequence[Value], made: Value,
) -> None:  # fmt: skip
    """Write matmuls of which the second one's epilogue reads the first one's result.

    ``chains`` are the epilogue of the first, that of the second, whose ``operand`` is the
    first one's result, and one that reads the sums of the first instead.  The last is that of a
    call for one row, the others are those of calls for several rows.
    """
    x, held = _rows(w, layout, x)
    rows, columns = made.shape
    both = _matrix(w, layout, stored)
    one = combine("max", 0, combine("min", rows, combine("sub", 2, rows)))
    several = none_of_one(rows)
    first, second, together = chains

    def call(
        count: Extent,
        matrix: _Matrix,
        chain: Chain,
        inputs: Sequence[Value],
        y: Value,
        at: int = 0,
    ) -> None:
        own = [_of_rows(v, count) for v in (x, y, *inputs)]
        typed = w.typed(chain, [Value(own[1].view, DType.F32), *own[2:]], [own[1]])
        typed = replace(typed, operands=(FULL, *typed.operands[1:]))
        _call(w, layout, own[0], held, matrix, None, typed, own[2:], [own[1]], at)

    def with_gate(gate: Value) -> list[Value]:
        return [*seen[: operand - 1], gate, *seen[operand - 1 :]]

    call(one, both, together, with_gate(Value(made.view, DType.F32)), made, operand)
    if rows == 1:
        return
    assert isinstance(columns, int)
    if (many := _of_many(w, x, both)) != 0:
        weight, gate = _dequantized(w, layout, both, x, many), w.number((many, columns))
        own, y, *inputs = (_of_rows(v, many) for v in (x, made, *with_gate(made)))
        inputs[operand - 1] = gate
        product_call(w, own, weight.part(0, 0, columns), "nk", first, (), [gate])
        product_call(w, own, weight.part(0, columns, columns), "nk", second, inputs, [y])
        several = combine("sub", several, many)
    gate = w.number(made.shape)
    call(several, both.columns(0, columns), first, [], gate)
    call(several, both.columns(columns, columns), second, with_gate(gate), made)


def _of_many(w: GpuProgramWriter, x: Value, matrix: _Matrix) -> Extent:
    """Return the number of rows if it varies and is large, else 0: those whose matrix is worth
    being dequantized as a whole.

    With a known number of rows this would happen once, and the matrix would stay in memory.
    """
    rows, depth = x.shape
    columns = matrix.codes.shape[0]
    if isinstance(rows, int) or w.narrow not in HALVES:
        return 0
    if not isinstance(columns, int) or not isinstance(depth, int) or depth % _ALIGNED:
        return 0
    return of_many_rows(rows) if columns * depth <= _MOST_NUMBERS else 0


def _dequantized(
    w: GpuProgramWriter, layout: BlockQuantized, matrix: _Matrix, x: Value, many: Extent
) -> Value:
    """Write the numbers of a matrix, ``[N, K]``, in scratch that is empty unless there are many
    rows."""
    group = groups_of(layout.block)
    columns = combine("mul", matrix.codes.shape[0], combine("min", 1, many))
    y = w.temp(w.narrow, (columns, x.shape[1]))
    zeros = None if layout.zeros == "middle" else _plane(matrix.scales, 1)
    w.call(
        "dequantize", w.narrow.short, w=matrix.codes.view, scales=_plane(matrix.scales, 0),
        zeros=zeros, y=y.view, zero_kind=layout.zeros, bits=layout.bits, group=group,
        block=layout.block, divided=group != layout.block,
    )  # fmt: skip
    return y


def _of_rows(value: Value, count: Extent) -> Value:
    return replace(value, view=replace(value.view, dims=(count, *value.shape[1:])))


@dataclass(frozen=True)
class _Matrix:
    """Stored codes, and scales, of a block-quantized matrix."""

    codes: Value
    scales: Value

    def columns(self, first: int, count: int) -> _Matrix:
        return _Matrix(self.codes.part(0, first, count), self.scales.part(1, first, count))


def _matrix(
    w: GpuProgramWriter, layout: BlockQuantized, stored: Sequence[tuple[Value, Value]]
) -> _Matrix:
    """Store matrices side by side."""
    group = groups_of(layout.block)
    of_window = WINDOW // group if group == layout.block else 1
    scales = _scales_together(w, [s for _, s in stored], of_window)
    return _Matrix(_codes_together(w, layout, [c for c, _ in stored]), scales)


def _call(
    w: GpuProgramWriter, layout: BlockQuantized, x: Value, held: NormedRows | None,
    matrix: _Matrix, bias: Value | None, chain: Chain | None, seen: Sequence[Value],
    made: Sequence[Value], second: int = 0,
) -> None:  # fmt: skip
    """Write the call of a matmul of rows, which are the norm that is ``held``, if any."""
    group = groups_of(layout.block)
    zeros = None if layout.zeros == "middle" else _plane(matrix.scales, 1)
    more = _norm_of(w, x, held)
    w.calls.append(
        CALLS.make(
            "gemm_nbits", w.multiplied, x=x.view, w=matrix.codes.view,
            scales=_plane(matrix.scales, 0), zeros=zeros,
            bias=w.typed_as(bias, DType.F32).view if bias else None, inputs=[v.view for v in seen],
            y=[v.view for v in made], chain=chain, zero_kind=layout.zeros, bits=layout.bits,
            group=group, block=layout.block, divided=group != layout.block, second=second, **more,
        )
    )  # fmt: skip


def _norm_of(w: GpuProgramWriter, x: Value, held: NormedRows | None) -> dict[str, Any]:
    """Return the arguments with which kernels of one row compute the norm that x is."""
    if held is None or held.y != _of_rows(x, held.y.dims[0]).view or held.norm.kind != "rms":
        return {}
    if held.gamma is None or held.beta is not None:
        return {}
    gamma = w.typed_as(held.gamma, DType.F32)
    raw = _of_rows(held.rows, x.shape[0])
    return {"raw": raw.view, "gamma": gamma.view, "epsilon": held.norm.epsilon}


def _plane(scales: Value, at: int) -> View:
    """View the scales (0) or the zero points (1) of a matrix as ``[N, blocks]``."""
    return scales.moved(ViewMove("select", (0, at))).view


def _scales_together(w: GpuProgramWriter, parts: Sequence[Value], of_window: int) -> Value:
    """Return the scales of all columns, for whole windows of ``of_window`` blocks.

    Constants are copied only once.
    """
    planes, _, blocks = parts[0].shape
    assert isinstance(blocks, int)
    fill = -blocks % of_window
    if not fill and len(parts) == 1:
        return parts[0]
    whole = w.temp(parts[0].dtype, (planes, _total(parts, 1), blocks + fill))
    for part, target in _beside(parts, whole, 1):
        w.copy(part, target.part(2, 0, blocks))
    if fill:
        w.chain(ZERO, [], [whole.part(2, blocks, fill)])
    return whole


def _codes_together(w: GpuProgramWriter, layout: BlockQuantized, parts: Sequence[Value]) -> Value:
    """Store the codes of all columns as ``block_quantized_storage.py`` says, ``[N, bytes]``.

    Constants are stored only once.
    """
    axes, order = window_axes(layout.bits)
    order = 0, 1, *(2 + axis for axis in order)
    split = [_windows(w, layout, codes, axes) for codes in parts]
    if len(split) == 1:
        stored = w.again(split[0], split[0].dtype, order)
    else:
        stored = w.temp(split[0].dtype, (_total(parts, 0), *split[0].shape[1:]), order)
        for part, target in _beside(split, stored, 0):
            w.copy(part, target)
    return stored.transposed(order).flat(1, len(order) - 1)


def _total(parts: Sequence[Value], axis: int) -> Extent:
    """Return the size of values that lie side by side along an axis."""
    return reduce(lambda a, b: combine("add", a, b), (p.shape[axis] for p in parts))


def _beside(parts: Sequence[Value], whole: Value, axis: int) -> Iterator[tuple[Value, Value]]:
    """Yield values with their parts of a whole in which they lie side by side along an axis."""
    start = 0
    for part in parts:
        size = part.shape[axis]
        assert isinstance(size, int)
        yield part, whole.part(axis, start, size)
        start += size


def _windows(
    w: GpuProgramWriter, layout: BlockQuantized, codes: Value, axes: Sequence[int]
) -> Value:
    """View the codes of a matrix as whole windows, ``[N, windows, *axes]``."""
    columns, blocks, _ = codes.shape
    assert isinstance(columns, int) and isinstance(blocks, int)
    steps = blocks * layout.block
    windows = -(-steps // WINDOW)
    rows = w.dense(codes).flat(1, 2)
    if fill := windows * WINDOW - steps:
        whole = w.temp(codes.dtype, (columns, windows * WINDOW * layout.bits // 8))
        size = steps * layout.bits // 8
        w.copy(rows, whole.part(1, 0, size))
        w.chain(ZERO, [], [whole.part(1, size, fill * layout.bits // 8)])
        rows = whole
    return rows.moved(ViewMove("reshape", (columns, windows, *axes)))


# ---- rounding of rows ------------------------------------------------------------------------


def _largest(w: GpuProgramWriter, rows: Sequence[Value], chain: Chain) -> Value:
    """Write the largest magnitude of each row of a matrix, ``[M]``, in float32."""
    found = w.temp(DType.F32, rows[0].shape[:1])
    rows_call(w, "reduce", rows, chain, found, kind="max", mean=False)
    return found


def _rounded(w: GpuProgramWriter, x: Value, block: int) -> Value:
    """Return rows whose blocks of the depth have the values of int8 numbers with one scale.

    Several matmuls of the same rows share them.
    """
    key = x, "rounded", w.narrow, block
    if key in w.made:
        return w.made[key]
    x = w.dense(x)
    rows, depth = x.shape
    assert isinstance(depth, int)
    made, whole = w.temp(w.narrow, x.shape), depth - depth % block
    for start, size, steps in ((0, whole, block), (whole, depth - whole, depth - whole)):
        if not size:
            continue
        cut = ViewMove("reshape", (0, size // steps, steps))
        given, target = (v.part(1, start, size).moved(cut) for v in (x, made))
        lines = w.flat(given, 2, 1)  # a copy for the last, shorter block, which lies apart
        largest = _largest(w, [lines], _MAGNITUDE)
        column = Value(View.dense(largest.view.buffer, (rows, size // steps, 1)), DType.F32)
        w.chain(_ROUNDED, [given, column.stretched(target.shape)], [target])
    w.made[key] = made
    return made


def lower_quantize_rows(
    w: GpuProgramWriter, p: QuantizeRowsParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    """Write the largest magnitudes of rows, the rows in uint8, and their scales."""
    x = w.matrix(operands[0])
    rows = [x, operands[1].stretched(x.shape)] if p.scaled else [x]
    largest = _largest(w, rows, _SCALED_MAGNITUDE if p.scaled else _MAGNITUDE)
    if p.scaled:
        x = w.temp(DType.F32, x.shape)
        w.chain(Chain((FULL, FULL), (Step("mul", (0, 1)),), (2,)), rows, [x])
    specs = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])
    y, scales = (
        t or w.temp(s.dtype or DType.F32, s.shape or ())
        for t, s in zip(targets, specs, strict=True)
    )
    column = largest.moved(ViewMove("unsqueeze", (1,))).stretched(x.shape)
    w.chain(_BYTES, [x, column], [w.matrix(y)])
    w.chain(_SCALE, [largest], [w.matrix(scales).flat(2)])
    return [y, scales]


# ---- embeddings ------------------------------------------------------------------------------


def lower_quantized_embedding(
    w: GpuProgramWriter, p: QuantizedEmbeddingParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    """Write look-ups of the bytes, scales and zero points of rows, then the numbers of codes."""
    codes, scales, ids = operands
    layout = p.layout
    blocks, each = layout.blocks(p.k), layout.codes_per_byte
    flat = ids.flat(len(ids.shape)) if ids.shape else ids.moved(ViewMove("unsqueeze", (0,)))
    (rows,), inside = flat.shape, layout.block // each
    found = _looked_up(w, w.dense(codes).flat(1, 2), flat)
    found = found.moved(ViewMove("reshape", (0, blocks, inside)))
    planes = [
        _looked_up(w, Value(_plane(scales, i), scales.dtype), flat)
        for i in range(1 + (layout.zeros != "middle"))
    ]
    full = (rows, blocks, inside)
    wide = [v.moved(ViewMove("unsqueeze", (2,))).stretched(full) for v in planes]
    made = w.temp(w.narrow, (rows, blocks * layout.block))
    split = made.moved(ViewMove("reshape", (0, blocks, inside, each)))
    for i in range(each):
        target = split.moved(ViewMove("select", (3, i)))
        w.chain(_number_of_code(layout, i), [found, *wide], [target])
    (spec,) = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])
    whole = w.dense(made.part(1, 0, p.k))
    return [Value(View.dense(whole.view.buffer, spec.shape or ()), whole.dtype)]


def _looked_up(w: GpuProgramWriter, table: Value, ids: Value) -> Value:
    """Write the look-up of rows of a matrix."""
    dtype = table.dtype
    y = w.temp(dtype, (*ids.shape, table.shape[1]))
    w.call(
        "embedding", dtype.short, tables=[table.view],
        ids=[ids.moved(ViewMove("unsqueeze", (0,))).view], y=y.view, count=1,
        table_type=dtype.short, index_type=ids.dtype.short,
    )  # fmt: skip
    return y


def _number_of_code(layout: BlockQuantized, at: int) -> Chain:
    """Return the chain of code ``at`` of a byte; operands are bytes, scales and zero points."""
    zeros = layout.zeros != "middle"
    steps, last = list[Step](), 0

    def add(op: str, *args: int | float) -> int:
        steps.append(Step(op, args))
        return 1 + zeros + len(steps)

    low, high = 2.0 ** (layout.bits * at), 2.0**layout.bits
    last = add("floor", add("mul", 0, 1 / low)) if at else 0
    if at + 1 < layout.codes_per_byte:
        above = add("mul", add("floor", add("mul", last, 1 / high)), high)
        last = add("sub", last, above)
    last = add("sub", last, 2 if zeros else float(layout.middle))
    last = add("mul", last, 1)
    return Chain((FULL,) * (2 + zeros), tuple(steps), (last,))
