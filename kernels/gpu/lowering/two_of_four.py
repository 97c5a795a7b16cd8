"""Lower matmuls with 2:4 sparse matrices, and fold norms into them.

As with dense matrices, the first matmul after a norm reads the rows from before the norm, and its
matrix is multiplied by gamma.  Sums of the matrix's columns, and beta times the matrix, are 2:4
sparse products of one row each, which run once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.lowering.norm_folding import moments_of, normalised_later
from tracea_graph.kernels.gpu.lowering.program_writer import (
    HALVES,
    GpuProgramWriter,
    with_row_operands,
)
from tracea_graph.kernels.gpu.lowering.row_sums import likely_width, sums_of_rows
from tracea_graph.kernels.program import Call
from tracea_graph.kernels.program_writer import LackingError, Value
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.index_map import ViewMove

__all__ = ["epilogue_chain", "two_of_four_call"]

_WIDEST = 128
"""Most columns of the tile of a matmul that computes a norm: with more sums of a thread, the norm
takes longer than a launch.
"""
_SUM = Chain((FULL, FULL), (Step("add", (0, 1)),), (2,))
_ONE = Chain((), (Step("add", (1.0, 0.0)),), (0,))
_STORED = Chain((FULL,), (), (0,))


@dataclass(frozen=True)
class _Factors:
    """Operands of a matmul; ``more`` are the arguments for a norm of the rows of x."""

    x: Value
    values: Value
    positions: Value
    bias: Value | None
    more: Mapping[str, Any] = field(default_factory=dict)


def two_of_four_call(
    w: GpuProgramWriter, p: GemmParams, operands: Sequence[Value], chain: Chain | None,
    seen: Sequence[Value], made: Sequence[Value],
) -> None:  # fmt: skip
    """Write a matmul with a 2:4 sparse matrix, whose epilogue reads ``seen``."""
    if w.narrow not in HALVES:
        raise LackingError("2:4 sparse matrices are multiplied in 16 bits only")
    (x, values, positions), bias = (operands[0], *p.stored(operands)), p.split(operands)[2]
    values, bias = w.typed_as(values, w.narrow), w.typed_as(bias, DType.F32) if bias else None
    plain = _Factors(w.matrix(x), values, positions, bias)
    call = _call(w, plain, epilogue_chain(w, chain, seen, made), seen, made)
    factors = (_normed(w, p, plain) if likely_width(w, call) <= _WIDEST else None) or plain
    if chain is not None:
        chain, seen = normalised_later(w, chain, seen)
    last = epilogue_chain(w, chain, seen, made)
    last = with_row_operands(last, [v.view for v in seen]) if last else None
    w.calls.append(_call(w, factors, last, seen, made))


def _call(
    w: GpuProgramWriter, f: _Factors, chain: Chain | None, seen: Sequence[Value],
    made: Sequence[Value],
) -> Call:  # fmt: skip
    return CALLS.make(
        "gemm_two_of_four", w.multiplied, x=w.typed_as(f.x, w.narrow).view, values=f.values.view,
        positions=f.positions.view, bias=f.bias.view if f.bias else None,
        inputs=[v.view for v in seen], y=[v.view for v in made], chain=chain, **f.more,
    )  # fmt: skip


def _normed(w: GpuProgramWriter, p: GemmParams, f: _Factors) -> _Factors | None:
    """Return the operands of a matmul that computes the norm whose result x is.

    Returns None if x is not such a norm, or if no matmul writes sums of the norm's rows.
    """
    held = w.normed.get(f.x.view.buffer)
    if held is None or held.y != f.x.view or (sums := sums_of_rows(w, p, held)) is None:
        return None
    values, bias = f.values, f.bias
    if held.gamma is not None:
        values = w.temp(w.narrow, f.values.shape)
        w.call(
            "scaled_two_of_four", w.narrow.short, values=f.values.view, y=values.view,
            positions=f.positions.view, gamma=w.typed_as(held.gamma, DType.F32).view,
        )  # fmt: skip
    more: dict[str, Any] = {"norm": held.norm.kind, "epsilon": held.norm.epsilon, "x_sums": sums}
    if held.norm.kind == "layer":
        ones = w.temp(w.narrow, (1, p.k))
        w.chain(_ONE, [], [ones])
        more["column_sums"] = _one_row(w, p, ones, values, f.positions).view
    if held.beta is not None:
        row = held.beta.moved(ViewMove("unsqueeze", (0,)))
        own = _one_row(w, p, row, f.values, f.positions)
        if bias is not None:
            both = w.temp(DType.F32, (p.n,))
            w.chain(_SUM, [own, bias], [both])
            own = both
        bias = own
    return _Factors(held.rows, values, f.positions, bias, more | moments_of(w, held))


def _one_row(
    w: GpuProgramWriter, p: GemmParams, x: Value, values: Value, positions: Value
) -> Value:  # fmt: skip
    """Return one row times the matrix, in float32."""
    y = w.temp(DType.F32, (1, p.n))
    stored = epilogue_chain(w, _STORED, (), [y])
    w.calls.append(_call(w, _Factors(x, values, positions, None), stored, (), [y]))
    return y.moved(ViewMove("squeeze", (0,)))


def epilogue_chain(
    w: GpuProgramWriter, chain: Chain | None, seen: Sequence[Value], made: Sequence[Value]
) -> Chain | None:
    """Return the epilogue of a sparse matmul, typed as its operands and results are stored."""
    if chain is None and all(v.dtype is w.narrow for v in made):
        return None
    plain = chain or Chain((FULL,), (), (0,))
    found = w.typed(plain, [Value(made[0].view, DType.F32), *seen], made)
    return replace(found, operands=(FULL, *found.operands[1:]))
