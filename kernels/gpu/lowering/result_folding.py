"""Let calls store what a call behind them would make of their results.

Attention of 8-bit integers rounds its weights to steps, and reorders the rounded results of its
heads; convolutions in fp16 read bytes minus a zero point.  Each of these would read and write a
whole tensor again.
"""

from __future__ import annotations

from dataclasses import replace

from tracea_graph.ir import DType, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.chain_parameters import is_whole_byte
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import FAST_MATH, FULL, Chain, Step
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.passes.prove_extents import equal_as_polynomials

__all__ = ["fold_results"]

_ROUNDED = ("div", "round", "saturate", "mul")
"""Steps of a value that is rounded to a multiple of a number, within bounds."""
_MATMULS = ("gemm", "integer_gemm")
_OF_INTEGERS = ("integer_gemm", "integer_conv")
_CHAINED = (*_MATMULS, "integer_conv", "conv", "depthwise", "depthwise_projection", "elementwise")
"""Calls whose chain can end with a conversion."""


def fold_results(w: GpuProgramWriter) -> None:
    """Replace roundings of softmaxes, and copies of matmuls' results, by results of their makers.

    A result that another call reads too is left as it is.
    """
    for call in [c for c in w.calls if c.op in ("elementwise", "copy")]:
        uses = BufferUses(w.calls)
        x, y = (call.views[0], call.views[-1])
        maker = uses.only_for(x, call) if x else None
        if x is None or y is None or maker is None or len(uses.writers[y.buffer]) > 1:
            continue
        if call.op == "elementwise":
            made = _stepped(maker, call, x, y) or _converted(w, maker, call)
        else:
            made = _moved(maker, x, y)
        if made is None or _touched_between(w.calls, maker, call, y):
            continue
        at = next(i for i, one in enumerate(w.calls) if one is maker)
        w.calls[at] = replace(made, step=maker.step)
        w.drop(call)
        w.temps[x.buffer.index] = w.temps[x.buffer.index][0], 0


def _touched_between(calls: list[Call], maker: Call, last: Call, y: View) -> bool:
    """Whether a call from ``maker`` on uses the buffer of y before ``last`` does."""
    places = [next(i for i, c in enumerate(calls) if c is one) for one in (maker, last)]
    between = calls[places[0] : places[1]]
    return any(v is not None and v.buffer == y.buffer for c in between for v in c.views)


def _stepped(softmax: Call, rounding: Call, x: View, y: View) -> Call | None:
    """Return a softmax whose results are rounded to steps; None for other calls."""
    found = _steps(rounding.chain)
    if softmax.op != "softmax" or found is None or softmax.attributes["log"]:
        return None
    named = CALLS.of(softmax).named(softmax)
    own = named["y"]
    assert isinstance(own, View) and rounding.chain is not None
    whole = product(own.dims)
    alike = all(equal_as_polynomials(product(v.dims), whole) for v in (x, y))
    if not alike or not all(_dense(v) for v in (own, x, y)):
        return None
    if rounding.chain.result_types[0].short != softmax.dtype:
        return None
    step, low, high = found
    more = {**named, "y": replace(own, buffer=y.buffer), "log": False, "stepped": True}
    return CALLS.make(
        "softmax", softmax.dtype, **more, step=step, low=low, high=high, chain=softmax.chain
    )


def _steps(chain: Chain | None) -> tuple[float, float, float] | None:
    """Return step and bounds if a chain rounds one value to multiples of a step, else None."""
    if chain is None or chain.operands != (FULL,) or chain.results != (len(_ROUNDED),):
        return None
    if tuple(s.op for s in chain.steps) != _ROUNDED:
        return None
    (x, step), rounded, (inner, low, high), (last, again) = (s.args for s in chain.steps)
    plain = (x, rounded, inner, last) == (0, (1,), 2, 3) and step == again
    numbers = [n for n in (step, low, high) if isinstance(n, float)]
    return (numbers[0], numbers[1], numbers[2]) if plain and len(numbers) == 3 else None


def _converted(w: GpuProgramWriter, maker: Call, conversion: Call) -> Call | None:
    """Return a call that stores its bytes as 16-bit or scaled numbers; None for other calls.

    The conversion reads all of a buffer, which only the maker writes.
    """
    chain, own = maker.chain, conversion.chain
    written = [v for o, v in CALLS.of(maker).each(maker) if o.written and v is not None]
    if maker.op not in _CHAINED or len(written) != 1 or chain is None or own is None:
        return None
    if own.operands != (FULL,) or not _is_conversion(own, maker):
        return None
    x, y = conversion.views
    assert x is not None and y is not None
    if any(s.op in FAST_MATH for s in chain.steps) or not is_whole_byte(chain):
        return None
    (made,), count = written, w.temps[x.buffer.index][1]
    if made.buffer != x.buffer or not equal_as_polynomials(count, product(x.dims)):
        return None
    if not all(_dense(v) for v in (made, x, y)):
        return None
    (value,), steps, first = chain.results, [*chain.steps], len(chain.operands)
    for step in own.steps:
        steps.append(Step(step.op, (value, step.args[1])))
        value = first + len(steps) - 1
    longer = replace(chain, steps=tuple(steps), results=(value,), stores=own.stores)
    there = replace(made, buffer=y.buffer)
    views = tuple(there if v is made else v for v in maker.views)
    return replace(maker, views=views, chain=longer)


def _is_conversion(own: Chain, maker: Call) -> bool:
    """Whether a chain only subtracts a zero point, or, behind integers, also scales to float32."""
    ops = [s.op for s in own.steps]
    straight = [s.args[0] for s in own.steps] == [*range(len(ops))] and own.results == (len(ops),)
    if not straight or any(isinstance(s.args[1], int) for s in own.steps if len(s.args) > 1):
        return False
    if own.result_types == (DType.F32,):
        return maker.op in _OF_INTEGERS and ops in (["mul"], ["sub", "mul"])
    return own.result_types in ((DType.F16,), (DType.BF16,)) and ops == ["sub"]


def _moved(matmul: Call, x: View, y: View) -> Call | None:
    """Return a matmul whose results lie as a copy would leave them; None for other calls."""
    written = [v for o, v in CALLS.of(matmul).each(matmul) if o.written and v is not None]
    if matmul.op not in _MATMULS or len(written) != 1:
        return None
    own = written[0]
    if own.offset != 0 or x.offset != 0 or own.strides != dense_strides(own.dims):
        return None
    axes = list(zip(x.dims, x.strides, strict=True))
    if len(axes) != len(own.dims) or any(axes.count(one) != 1 for one in axes):
        return None
    try:
        order = [axes.index(one) for one in zip(own.dims, own.strides, strict=True)]
    except ValueError:
        return None
    strides = tuple(y.strides[axis] for axis in order)
    if strides[-1] != 1:
        return None
    there = replace(own, buffer=y.buffer, strides=strides, offset=y.offset)
    return replace(matmul, views=tuple(there if v is own else v for v in matmul.views))


def _dense(view: View) -> bool:
    return view.offset == 0 and view.strides == dense_strides(view.dims)
