"""Let norms divide their rows by the rows' largest magnitudes, and store 8-bit floats.

Graphs quantized by rows do so in three calls behind a norm: the largest magnitudes, the scales,
and the rounding, each of which reads or writes all rows or is a launch of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.program import Buffer, Call, View
from tracea_graph.ops.chain import COL, FLOAT8, FULL

__all__ = ["scale_rows_where_computed"]

_READER = "float8_gemm"
"""The op whose epilogue multiplies by the scales."""


def scale_rows_where_computed(w: GpuProgramWriter) -> None:
    """Replace the calls that quantize the rows of a norm by results of the norm."""
    for rounding in [c for c in w.calls if _divides(c)]:
        uses = BufferUses(w.calls)
        x, scales, y = rounding.views
        assert x is not None and scales is not None and y is not None
        norm, scaling = (_only_writer(uses, v) for v in (x, scales))
        found = _scaling(scaling)
        high = _only_writer(uses, scaling.views[0]) if scaling and found else None
        if norm is None or found is None or scaling is None or high is None:
            continue
        if norm.op != "norm" or not _takes_largest(high, x) or not _alone(uses, high, scaling):
            continue
        if not _covers(norm, x, y) or not _in_float32(w, uses, scales.buffer, rounding):
            continue
        named: dict[str, Any] = {**CALLS.of(norm).named(norm), **norm.attributes}
        own = named["y"]
        others = [c for c in uses.readers[x.buffer] if c not in (rounding, high)]
        kept = own if others or x.buffer.kind != "temp" else None
        rows = View.dense(scales.buffer, own.dims[:1])
        made = {**named, "y": kept, "rounded": replace(own, buffer=y.buffer), "scales": rows,
                "step": found[0], "low": found[1]}  # fmt: skip
        at = next(i for i, call in enumerate(w.calls) if call is norm)
        new = CALLS.make("norm", norm.dtype, **made, chain=norm.chain)
        w.calls[at] = replace(new, step=norm.step)
        for call in (high, rounding):
            w.drop(call)
        w.calls = [call for call in w.calls if call is not scaling]
        if kept is None:
            w.temps[x.buffer.index] = w.temps[x.buffer.index][0], 0


def _divides(call: Call) -> bool:
    """Whether a call divides rows by a number each, and stores 8-bit floats."""
    chain = call.chain
    if call.op != "elementwise" or chain is None or chain.result_types != (FLOAT8,):
        return False
    one = chain.operands == (FULL, COL) and len(chain.steps) == 1 and chain.results == (2,)
    return one and (chain.steps[0].op, chain.steps[0].args) == ("div", (0, 1))


def _only_writer(uses: BufferUses, view: View | None) -> Call | None:
    writers = uses.writers.get(view.buffer, []) if view else []
    temp = view is not None and view.buffer.kind == "temp"
    return writers[0] if temp and len(writers) == 1 else None


def _scaling(call: Call | None) -> tuple[float, float] | None:
    """Return by what a call divides magnitudes and the least scale, 0 if there is none."""
    chain = call.chain if call and call.op == "elementwise" else None
    if chain is None or chain.operands != (FULL,) or chain.results != (len(chain.steps),):
        return None
    if any(s.args[0] != i or len(s.args) != 2 for i, s in enumerate(chain.steps)):
        return None
    numbers = [s.args[1] for s in chain.steps]
    if any(not isinstance(n, float) for n in numbers):
        return None
    step, least = [*map(float, numbers), 0.0][:2]
    return (step, least) if [s.op for s in chain.steps] in (["div"], ["div", "max"]) else None


def _takes_largest(call: Call, x: View) -> bool:
    """Whether a call finds the largest magnitude of each row of ``x``."""
    chain = call.chain
    if call.op != "reduce" or call.attributes["kind"] != "max" or chain is None:
        return False
    plain = chain.operands == (FULL,) and [s.op for s in chain.steps] == ["abs"]
    return plain and call.views[0] == x


def _alone(uses: BufferUses, writer: Call, reader: Call) -> bool:
    """Whether ``reader`` alone reads what ``writer`` writes."""
    (y,) = [v for o, v in CALLS.of(writer).each(writer) if o.written and v is not None]
    return uses.readers.get(y.buffer, []) == [reader]


def _covers(norm: Call, x: View, y: View) -> bool:
    """Whether a call rounds all of a norm's result, in the order in which it stores it."""
    named = CALLS.of(norm).named(norm)
    own = named["y"]
    return named["rounded"] is None and own == x and (x.dims, x.strides) == (y.dims, y.strides)


def _in_float32(w: GpuProgramWriter, uses: BufferUses, scales: Buffer, rounding: Call) -> bool:
    """Store scales in float32, if only epilogues and ``rounding`` read them."""
    readers = [c for c in uses.readers[scales] if c is not rounding]
    if any(c.op != _READER or c.chain is None for c in readers):
        return False
    for call in readers:
        named: dict[str, Any] = CALLS.of(call).named(call)
        assert call.chain is not None
        types = list(call.chain.operand_types)
        for i, view in enumerate(named["inputs"], 1):
            types[i] = DType.F32 if view.buffer == scales else types[i]
        at = next(i for i, one in enumerate(w.calls) if one is call)
        w.calls[at] = replace(call, chain=replace(call.chain, dtypes=tuple(types)))
    w.temps[scales.index] = DType.F32, w.temps[scales.index][1]
    return True
