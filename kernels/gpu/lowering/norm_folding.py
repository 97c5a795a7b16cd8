"""Fold norms into the matmuls that read them, so that no launch computes a norm alone.

The first matmul after a norm reads the rows from before the norm, multiplies them by weights that
include gamma, and corrects its sums in the epilogue.  A matmul of few rows computes the rows'
moments while it multiplies; one of many rows computes them from sums that the previous matmul
wrote.  Later epilogues normalise the same rows with these moments.  A norm that has no readers
left is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracea_graph.ir import DType, product
from tracea_graph.kernels.gpu.lowering.program_writer import (
    HALVES,
    SCALED,
    GpuProgramWriter,
    NormedRows,
)
from tracea_graph.kernels.gpu.lowering.row_sums import sums_of_rows
from tracea_graph.kernels.gpu.tile_choice import most_few
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import IDENTITY, Value
from tracea_graph.ops.chain import FULL, MAX_OPERANDS, Chain, Step
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import KN

__all__ = [
    "FoldedMatmul",
    "by_columns",
    "few_rows",
    "fold_norm",
    "moments_of",
    "normalised_later",
]

_BLOCK = 64
"""The depth of a matmul of few rows must be a multiple of this."""
_SUM = Chain((FULL, FULL), (Step("add", (0, 1)),), (2,))


@dataclass(frozen=True)
class FoldedMatmul:
    """Operands of a matmul that normalises the rows of x; ``more`` are further call arguments."""

    x: Value
    weight: Value
    bias: Value | None
    more: dict[str, Any]


def few_rows(w: GpuProgramWriter, p: GemmParams, x: Value) -> bool:
    """Whether a matmul uses the kernels of few rows at the likely sizes."""
    rows = w.about(product(x.shape[:-1]))
    if w.narrow not in HALVES or p.k % _BLOCK or rows is None:
        return False
    return 0 < rows <= most_few(p.n)


def by_columns(w: GpuProgramWriter, p: GemmParams, weight: Value) -> Value:
    """Return a weight in the type that the matmul uses, stored column by column (NK)."""
    if p.layout != KN:
        return w.typed_as(weight, w.narrow)
    return w.again(weight, w.narrow, (1, 0)).transposed((1, 0))


def fold_norm(
    w: GpuProgramWriter, p: GemmParams, x: Value, weight: Value, bias: Value | None
) -> FoldedMatmul | None:
    """Return the operands of a matmul that itself computes the norm that x is the result of.

    Returns None if x is not such a norm, or if no kernel computes it in this matmul.
    """
    held = w.normed.get(x.view.buffer)
    if held is None or held.y != w.matrix(x).view:
        return None
    few = few_rows(w, p, x)
    sums = None if few else sums_of_rows(w, p, held)
    if not few and sums is None:
        return None
    whole = (p.n, p.k)
    columns = weight.transposed((1, 0)) if p.layout == KN else weight
    if held.gamma is None:
        scaled = by_columns(w, p, weight)
    else:
        scaled = w.temp(w.narrow, whole)
        w.chain(SCALED, [columns, held.gamma.stretched(whole)], [scaled])
    more: dict[str, Any] = {"norm": held.norm.kind, "epsilon": held.norm.epsilon}
    if sums is not None:
        more["x_sums"] = sums
    if held.norm.kind == "layer":
        more["column_sums"] = _sums(w, [scaled], IDENTITY).view
    if held.beta is not None:
        own = _sums(w, [columns, held.beta.stretched(whole)], SCALED)
        if bias is not None:
            both = w.temp(DType.F32, (p.n,))
            w.chain(_SUM, [own, bias], [both])
            own = both
        bias = own
    return FoldedMatmul(held.rows, scaled, bias, more | moments_of(w, held))


def moments_of(w: GpuProgramWriter, held: NormedRows) -> dict[str, View]:
    """Return the operands to which a matmul writes the moments of rows that it normalises."""
    rows = held.rows.shape[0]
    moments = w.temp(DType.F32, (rows,)), w.temp(DType.F32, (rows,))
    held.moments = held.moments or moments
    return {"mean": moments[0].view, "inverse": moments[1].view}


def _sums(w: GpuProgramWriter, data: Sequence[Value], chain: Chain) -> Value:
    """Return the sums of rows, in float32."""
    y = w.temp(DType.F32, data[0].shape[:1])
    w.call(
        "reduce", "f32", x=[v.view for v in data], y=y.view, kind="sum", mean=False,
        chain=w.typed(chain, data, [y]),
    )  # fmt: skip
    return y


def normalised_later(
    w: GpuProgramWriter, chain: Chain, inputs: Sequence[Value]
) -> tuple[Chain, list[Value]]:
    """Let an epilogue compute some of its inputs, which are norms, from the rows before the norm.

    Inputs are matrices.  A norm remains an input if no matmul has computed its moments yet, or if
    the chain would have too many operands.  Returns the chain and its inputs.
    """
    made = list(inputs)
    for place, value in enumerate(inputs, 1):
        held = w.normed.get(value.view.buffer)
        if held is None or held.moments is None or held.y != value.view:
            continue
        layer = held.norm.kind == "layer"
        parts = [("sub", held.moments[0])] * layer + [("mul", held.moments[1])]
        parts += [("mul", held.gamma)] if held.gamma else []
        parts += [("add", held.beta)] if held.beta else []
        if 1 + len(made) + len(parts) > MAX_OPERANDS:
            continue
        added = [_spread(one, value.view, tall=i < 1 + layer) for i, (_, one) in enumerate(parts)]
        chain = _before(chain, place, [op for op, _ in parts])
        made[place - 1] = held.rows
        made += added
    return chain, made


def _spread(value: Value, whole: View, tall: bool) -> Value:
    """View a vector as a matrix: one number for each row (``tall``), or for each column."""
    step = value.view.strides[-1]
    strides = (step, 0) if tall else (0, step)
    return replace(value, view=View(value.view.buffer, whole.dims, strides, value.view.offset))


def _before(chain: Chain, place: int, ops: Sequence[str]) -> Chain:
    """Return a chain that first applies ``ops`` to the operand ``place``, with added operands."""
    count, more = len(chain.operands), len(ops)
    first = tuple(
        Step(op, (place if not i else count + more + i - 1, count + i)) for i, op in enumerate(ops)
    )
    last = count + 2 * more - 1

    def moved(a: int | float) -> int | float:
        if isinstance(a, float):
            return a
        return last if a == place else a if a < count else a + 2 * more

    steps = tuple(Step(s.op, tuple(map(moved, s.args))) for s in chain.steps)
    return replace(
        chain, operands=(*chain.operands, *(FULL,) * more), steps=(*first, *steps),
        results=tuple(int(moved(r)) for r in chain.results),
        dtypes=(*chain.operand_types, *(DType.F32,) * more),
    )  # fmt: skip
