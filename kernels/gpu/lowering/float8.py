"""Lower matmuls whose factors are rounded to 8-bit floats (e4m3) with scales.

The left operand has the constant scale that its step says, each column of the matrix one by its
largest magnitude; the epilogue undoes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter, with_row_operands
from tracea_graph.kernels.gpu.lowering.row_ops import rows_call
from tracea_graph.kernels.program_writer import Value
from tracea_graph.ops.chain import (
    COL,
    FLOAT8,
    FULL,
    LARGEST_FLOAT8,
    MAX_OPERANDS,
    ROW,
    Chain,
    Step,
)
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.index_map import ViewMove
from tracea_graph.ops.weight_layouts import KN

__all__ = ["MOST_BESIDE", "float8_call", "quantized_float8_call"]

MOST_BESIDE = MAX_OPERANDS - 3
"""Maximum operands of an epilogue besides sums, the scales of columns and a bias."""
_NOTHING = 1e-30
"""Magnitude below which a column counts as zero."""
_MAGNITUDE = Chain((FULL,), (Step("abs", (0,)), Step("max", (1, _NOTHING))), (2,))
_COLUMNS = Chain(
    (FULL, COL), (Step("div", (LARGEST_FLOAT8, 1)), Step("mul", (0, 2))), (3,), (), (FLOAT8,)
)


def float8_call(
    w: GpuProgramWriter, p: GemmParams, x: Value, weight: Value, bias: Value | None,
    seen: Sequence[Value], made: Sequence[Value],
) -> None:  # fmt: skip
    """Write a matmul whose epilogue reads ``seen`` and writes ``made``."""
    matrix, scales = _rounded_columns(w, p, weight)
    full = made[0].shape
    rows = [scales, *([w.typed_as(bias, DType.F32)] if bias else [])]
    beside = [*(v.stretched(full) for v in rows), *seen]
    chain = _rescaled(p.epilogue, bias is not None)
    found = w.typed(chain, [Value(made[0].view, DType.F32), *beside], made)
    kinds = [FULL, *(ROW for _ in rows), *found.operands[1 + len(rows) :]]
    w.calls.append(CALLS.make(
        "float8_gemm", FLOAT8.short, x=_rounded(w, w.matrix(x)).view, w=matrix.view,
        inputs=[v.view for v in beside], y=[v.view for v in made],
        chain=replace(found, operands=tuple(kinds)), promoted=w.promoted,
    ))  # fmt: skip


def quantized_float8_call(
    w: GpuProgramWriter, p: GemmParams, operands: Sequence[Value], seen: Sequence[Value],
    made: Sequence[Value],
) -> None:  # fmt: skip
    """Write a matmul of numbers that a model holds in 8 bits; its epilogue has their scales.

    Sums are promoted, because the model's own are in float32.
    """
    x, weight = operands[:2]
    right = weight
    if p.layout == KN:
        right = w.again(weight, weight.dtype, (1, 0)).transposed((1, 0))
    own = p.epilogue or Chain((FULL,), (), (0,))
    found = w.typed(own, [Value(made[0].view, DType.F32), *seen], made)
    w.calls.append(CALLS.make(
        "float8_gemm", x.dtype.short, x=w.matrix(x).view, w=right.view, w_type=right.dtype.short,
        inputs=[v.view for v in seen], y=[v.view for v in made],
        chain=with_row_operands(found, [v.view for v in seen]), promoted=True,
    ))  # fmt: skip


def _rounded(w: GpuProgramWriter, x: Value) -> Value:
    """Return rows times the step's factor in 8-bit floats, which several matmuls may share."""
    key = x, "float8", w.factor
    if key not in w.made:
        target = w.temp(FLOAT8, x.shape)
        scaled = Chain((FULL,), (Step("mul", (0, w.factor)),), (1,), (), (FLOAT8,))
        w.chain(scaled, [x], [target])
        w.made[key] = target
    return w.made[key]


def _rounded_columns(w: GpuProgramWriter, p: GemmParams, weight: Value) -> tuple[Value, Value]:
    """Return a matrix ``[N, K]`` in 8-bit floats, and the scales ``[N]`` of sums of x times it."""
    key = weight, "float8 columns", w.factor, p.layout == KN
    if key in w.made:
        return w.made[key], w.made[(*key, "scales")]
    columns = weight.transposed((1, 0)) if p.layout == KN else weight
    largest, scales = (w.temp(DType.F32, (p.n,)) for _ in range(2))
    rows_call(w, "reduce", [columns], _MAGNITUDE, largest, kind="max", mean=False)
    undone = Step("mul", (0, 1.0 / (LARGEST_FLOAT8 * w.factor)))
    w.chain(Chain((FULL,), (undone,), (1,)), [largest], [scales])
    made = w.temp(FLOAT8, columns.shape)
    column = largest.moved(ViewMove("unsqueeze", (1,))).stretched(columns.shape)
    w.chain(_COLUMNS, [columns, column], [made])
    w.made[key], w.made[(*key, "scales")] = made, scales
    return made, scales


def _rescaled(epilogue: Chain | None, bias: bool) -> Chain:
    """Return an epilogue of sums that are scaled, with a bias if there is one, before the others.

    The scales and the bias are operands 1 and 2.
    """
    own = epilogue or Chain((FULL,), (), (0,))
    more = 1 + bias
    count = len(own.operands) + more
    first = [Step("mul", (0, 1))] + [Step("add", (count, 2))] * bias

    def ref(a: int | float) -> int | float:
        if isinstance(a, float):
            return a
        if a == 0:
            return count + len(first) - 1
        return a + more if a < len(own.operands) else a + more + len(first)

    steps = [*first, *(Step(s.op, tuple(map(ref, s.args))) for s in own.steps)]
    types = (DType.F32,) * (1 + more) + own.operand_types[1:]
    kinds = (FULL, *(ROW for _ in range(more)), *own.operands[1:])
    return Chain(kinds, tuple(steps), tuple(int(ref(r)) for r in own.results), types, own.stores)
