"""Let norms, matmuls, attention and chains store results in 8 bits instead of another call.

Matmuls, attention and chains store 8-bit floats so; for integers they do so already in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracea_graph.ir import DType, Extent, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import FLOAT8, FULL, Chain, Step
from tracea_graph.ops.index_map import dense_strides

__all__ = ["round_where_computed"]

_TO_STEPS_FROM_ZERO = ("div", "round", "saturate")
_TO_STEPS = ("div", "round", "add", "saturate")
"""Steps from a number to an 8-bit integer: without and with a zero point."""
_CHAINED = ("elementwise", "float8_gemm")
"""Calls whose chain can end with the rounding."""


def round_where_computed(w: GpuProgramWriter) -> None:
    """Replace each call that rounds a whole result to 8 bits by a result of its maker.

    A maker stores its result in 16 bits too only if another call reads that.
    """
    for rounding in [c for c in w.calls if _factor(c) or _stepped(c)]:
        uses = BufferUses(w.calls)
        x, _ = rounding.views
        makers = uses.writers.get(x.buffer, []) if x else []
        made = _rounded(uses, makers[0], rounding) if len(makers) == 1 else None
        if made is None:
            continue
        at = next(i for i, call in enumerate(w.calls) if call is makers[0])
        w.calls[at] = replace(made, step=makers[0].step)
        w.drop(rounding)
        if x and x.buffer.kind == "temp" and uses.readers[x.buffer] == [rounding]:
            w.temps[x.buffer.index] = w.temps[x.buffer.index][0], 0


def _factor(call: Call) -> float:
    """Return by what a call multiplies the numbers that it rounds; 0 for other calls."""
    chain = call.chain
    if call.op != "elementwise" or chain is None or chain.result_types != (FLOAT8,):
        return 0.0
    if chain.operands != (FULL,) or len(chain.steps) != 1 or chain.steps[0].op != "mul":
        return 0.0
    value, factor = chain.steps[0].args
    return factor if value == 0 and isinstance(factor, float) else 0.0


def _stepped(call: Call) -> Mapping[str, Any]:
    """Return how a call rounds one value to 8-bit integers, as a norm says it; {} for others."""
    chain = call.chain
    if call.op != "elementwise" or chain is None or chain.operands != (FULL,):
        return {}
    (kind, *more), ops = chain.result_types, tuple(s.op for s in chain.steps)
    if more or kind not in (DType.U8, DType.I8) or ops not in (_TO_STEPS, _TO_STEPS_FROM_ZERO):
        return {}
    if any(s.args[0] != i for i, s in enumerate(chain.steps)) or chain.results != (len(ops),):
        return {}
    numbers = [n for s in chain.steps for n in s.args[1:]]
    if any(not isinstance(n, float) for n in numbers):
        return {}
    step, *zero, low, high = numbers
    made = {"step": step, "zero": zero[0] if zero else 0.0, "low": low, "high": high}
    return {"rounded_type": kind.short, **made}


def _rounded(uses: BufferUses, maker: Call, rounding: Call) -> Call | None:
    """Return the maker of a value with 8 bits as result; None if it cannot store them."""
    x, y = rounding.views
    assert x is not None and y is not None
    alone = uses.only_for(x, rounding) is maker
    if maker.op == "attention":
        return _attention(maker, x, y, _factor(rounding)) if alone else None
    if maker.op == "norm":
        return _norm(maker, x, y, _stepped(rounding) or {"factor": _factor(rounding)}, alone)
    written = [v for o, v in CALLS.of(maker).each(maker) if o.written]
    if not _factor(rounding) or maker.op not in _CHAINED or maker.chain is None:
        return None
    if not alone or len(written) != 1:
        return None
    own = written[0]
    if own is None or not _covers(own, x, y):
        return None
    views = tuple(_moved(own, y) if v is own else v for v in maker.views)
    return replace(maker, views=views, chain=_ended(maker.chain, _factor(rounding)))


def _norm(
    norm: Call, x: View, y: View, rounding: Mapping[str, Any], alone: bool
) -> Call | None:  # fmt: skip
    named = CALLS.of(norm).named(norm)
    own = named["y"]
    if not isinstance(own, View) or named["rounded"] is not None or not _covers(own, x, y):
        return None
    kept = None if alone else own
    more = {**named, **norm.attributes, "y": kept, "rounded": _moved(own, y), **rounding}
    return CALLS.make("norm", norm.dtype, **more, chain=norm.chain)


def _attention(maker: Call, x: View, y: View, factor: float) -> Call | None:
    """Return an attention that stores 8-bit floats, whose heads lie side by side; else None."""
    own = CALLS.of(maker).named(maker)["y"]
    if not factor or not isinstance(own, View):
        return None
    order = (0, 2, 1, 3)  # batch, queries, heads, columns
    rows = View(own.buffer, tuple(own.dims[axis] for axis in order),
                tuple(own.strides[axis] for axis in order), own.offset)  # fmt: skip
    if not _covers(rows, x, y):
        return None
    named = {**CALLS.of(maker).named(maker), **maker.attributes}
    made = {**named, "y": _moved(own, y), "factor": factor}
    return CALLS.make("attention", maker.dtype, schedules=maker.schedules, **made)


def _covers(own: View, x: View, y: View) -> bool:
    """Whether a maker's result is all that a call rounds, in the order in which it stores it."""
    whole = own.buffer == x.buffer and _count(own) == _count(x) == _count(y)
    return whole and all(v.offset == 0 and v.strides == dense_strides(v.dims) for v in (own, x, y))


def _count(view: View) -> Extent:
    return product(view.dims)


def _moved(own: View, y: View) -> View:
    return replace(own, buffer=y.buffer)


def _ended(chain: Chain, factor: float) -> Chain:
    """Return a chain whose only result is multiplied by ``factor`` and stored in 8 bits."""
    (result,) = chain.results
    steps = (*chain.steps, Step("mul", (result, factor)))
    last = len(chain.operands) + len(steps) - 1
    return replace(chain, steps=steps, results=(last,), stores=(FLOAT8,))
