"""Compute a depthwise convolution and the 1 × 1 convolution behind it in one call.

Apart they store and read an image of many channels, of which the second convolution makes few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, combine
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.convolution import as_pixel_rows
from tracea_graph.kernels.gpu.families.depthwise_projection import BETWEEN, BYTES, LEVELS, refusal
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.program_writer import HALVES, ZERO, GpuProgramWriter
from tracea_graph.kernels.gpu.window_choice import projects_early
from tracea_graph.kernels.program import Call, View
from tracea_graph.kernels.program_writer import Value
from tracea_graph.ops.chain import FULL, Chain
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.fused_region import RegionParams

__all__ = ["project_integers_where_computed", "project_where_computed", "projecting_steps"]

_WORD = 4
"""Bytes of a word: a row of a channel's taps, and zeros."""
_TYPES = {dtype.short: dtype for dtype in HALVES}


def projecting_steps(p: RegionParams) -> frozenset[int]:
    """Return the numbers of the convolutions that alone read a depthwise convolution's result."""
    made, readers = p.makers, p.readers
    found = set[int]()
    for number, step in enumerate(p.steps):
        if not isinstance(step.params, ConvParams | ConvIntegerParams):
            continue
        value = step.operands[0]
        before = p.steps[made[value]].params if value in made else None
        alone = readers[value] == 1 and value not in p.results
        if alone and isinstance(before, type(step.params)):
            assert isinstance(before, ConvParams | ConvIntegerParams)
            if before.groups == before.channels > 1:
                found.add(number)
    return frozenset(found)


def project_where_computed(w: GpuProgramWriter, call: Call) -> bool:
    """Write a convolution and the depthwise one that it alone reads as one call.

    ``call`` is the convolution, which is not written yet.  Returns False if no kernel computes
    both, or not faster.
    """
    x = call.views[0]
    before = next((c for c in reversed(w.calls) if c.op == "depthwise" and x and _y(c) == x), None)
    made = before and call.dtype in _TYPES and _call_of(before, call)
    if not before or not made:
        return False
    return _joined(w, before, made)


def project_integers_where_computed(
    w: GpuProgramWriter, p: ConvIntegerParams, x: View, weight: Value, chain: Chain,
    inputs: Sequence[View], y: View,
) -> bool:  # fmt: skip
    """Write a 1 × 1 convolution of bytes and the depthwise one that it alone reads as one call.

    Both multiply bytes minus zero points in fp16, which is exact where float32 holds the sums.
    ``inputs`` and y are matrices of pixels, ``weight`` has a row for each filter.  Returns False
    if no kernel computes both, or not faster.
    """
    plain = {*p.window.kernel, *p.window.strides} == {1} and not any(map(any, p.window.pairs))
    before = next((c for c in reversed(w.calls) if c.op == "depthwise" and _y(c) == x), None)
    if before is None or not plain or p.groups > 1 or p.integers.operands:
        return False
    own: dict[str, Any] = CALLS.of(before).named(before)
    rounded = _levels(before, float(p.integers.zero or 0))
    windows = View.dense(own["w"].buffer, own["w"].dims)
    if rounded is None or own["w"] != windows or max(before.attributes["dilations"]) > 1:
        return False
    if not all(isinstance(size, int) for size in x.dims[1:3]):
        return False
    scale, bias, levels = rounded
    read, kind, zero = _bytes_of(w, own["x"])
    filters = w.typed_as(weight, DType.F16)
    made = CALLS.make(
        "depthwise_projection", before.dtype, x=read, w=windows, scale1=scale, bias1=bias,
        w2=filters.view, bias=None, inputs=list(inputs), y=[y], image=x.dims[1:3],
        activation=LEVELS, levels=levels, x_type=kind, zero=zero, chain=chain,
        **{n: before.attributes[n] for n in ("strides", "pads")},
    )  # fmt: skip
    return not refusal(made) and _joined(w, before, made)


def _bytes_of(w: GpuProgramWriter, x: View) -> tuple[View, str, int]:
    """Return the bytes from which a call has made an image in fp16, their type and zero point.

    The image itself, with a zero point of 0, if there are no such bytes.
    """
    for call in reversed(w.calls):
        if call.op == "elementwise" and (y := call.views[-1]) and y.buffer == x.buffer:
            source, chain = call.views[0], call.chain
            if chain is None or source is None or [s.op for s in chain.steps] != ["sub"]:
                break
            if chain.operand_types[0] not in BYTES:
                break
            zero, dense = chain.steps[0].args[1], View.dense(source.buffer, source.dims)
            if source != dense or y != View.dense(y.buffer, y.dims) or not isinstance(zero, float):
                break
            bytes_read = View(source.buffer, x.dims, x.strides, x.offset)
            return bytes_read, chain.operand_types[0].short, int(zero)
    return x, "f16", 0


def _levels(before: Call, zero: float) -> tuple[View, View, tuple[int, int]] | None:
    """Return scales, biases and bounds of the bytes that a convolution makes, minus a zero point.

    None if it makes other numbers.
    """
    chain = before.chain
    if before.dtype != "f16" or chain is None or len(chain.operands) != 3:
        return None
    ops, args = [s.op for s in chain.steps], [s.args for s in chain.steps]
    shifted = float(args[3][1]) if ops[3:4] == ["add"] and isinstance(args[3][1], float) else 0.0
    if ops != ["mul", "add", "round", *["add"] * (len(ops) == 5), "saturate"] or shifted != zero:
        return None
    # each step reads the one before it, and its own operand
    if [a[0] for a in args] != [0, *range(3, 2 + len(ops))] or (args[0][1], args[1][1]) != (1, 2):
        return None
    low, high = args[-1][1:]
    known = isinstance(low, float) and isinstance(high, float) and chain.results == (2 + len(ops),)
    if not known:
        return None
    named: dict[str, Any] = CALLS.of(before).named(before)
    rows = [v for v in named["inputs"] if v.strides[-1] == 1 and not any(v.strides[:-1])]
    if len(rows) < 2 or named["bias"] is not None:
        return None
    scale, bias = (View(v.buffer, v.dims[-1:], (1,), v.offset) for v in rows)
    return scale, bias, (int(low - zero), int(high - zero))


def _joined(w: GpuProgramWriter, before: Call, made: Call) -> bool:
    """Write the call of both convolutions, if it is faster, instead of the first one's."""
    if not projects_early(made, w.about(_y(made).dims[0]) or 0):
        return False
    w.drop(before)
    places, views = CALLS.of(made).slices(made), list(made.views)
    at = places["w"].start
    own = views[at]
    assert own is not None
    windows = Value(own, _TYPES[made.dtype])
    if made.attributes["x_type"] == made.dtype:
        wide = w.temp(DType.F32, own.dims)
    else:
        _drop_conversion(w, before.views[0])
        rows = w.temp(DType.I8, (own.dims[0], own.dims[2], _WORD))
        w.chain(ZERO, [], [rows.flat(3)])
        steps = (combine("mul", own.dims[2], _WORD), 1, _WORD)
        wide = replace(rows, view=View(rows.view.buffer, own.dims, steps))
    w.copy(windows, wide)
    views[at] = wide.view
    w.calls.append(replace(made, views=tuple(views)))
    return True


def _drop_conversion(w: GpuProgramWriter, x: View | None) -> None:
    """Drop the call that makes an image of bytes, if nothing reads the image any more."""
    uses = BufferUses(w.calls)
    if x is None or uses.readers.get(x.buffer):
        return
    for call in uses.writers.get(x.buffer, ()):
        w.drop(call)
    w.temps[x.buffer.index] = w.temps[x.buffer.index][0], 0
    for key in [k for k, value in w.made.items() if value.view.buffer == x.buffer]:
        del w.made[key]


def _y(call: Call) -> View:
    named: dict[str, Any] = CALLS.of(call).named(call)
    (y,) = named["y"]
    assert isinstance(y, View)
    return y


def _call_of(before: Call, call: Call) -> Call | None:
    """Return the call that stands for both; None if no kernel computes it."""
    own: dict[str, Any] = CALLS.of(before).named(before)
    named: dict[str, Any] = CALLS.of(call).named(call)
    image, activation = _y(before).dims[1:3], _activation(before)
    plain = named["w"].dims[1:-1] == call.attributes["strides"] == (1, 1)
    plain = plain and call.attributes["pads"] == (0, 0) and call.attributes["groups"] == 1
    if not plain or activation is None or max(before.attributes["dilations"]) > 1:
        return None
    if not all(isinstance(size, int) for size in image):
        return None
    try:
        rows: dict[str, Any] = {n: [as_pixel_rows(v) for v in named[n]] for n in ("inputs", "y")}
        rows["w2"] = as_pixel_rows(named["w"])
    except GraphError:
        return None
    dtype = _TYPES[call.dtype]
    windows = View.dense(own["w"].buffer, own["w"].dims)
    if own["w"] != windows:
        return None
    made = CALLS.make(
        "depthwise_projection", call.dtype, **rows, x=own["x"], w=windows, scale1=None,
        bias1=own["bias"], bias=named["bias"], image=image, activation=activation, levels=(0, 0),
        x_type=call.dtype, zero=0,
        chain=call.chain or Chain((FULL,), (), (0,), (DType.F32,), (dtype,)),
        **{n: before.attributes[n] for n in ("strides", "pads")},
    )  # fmt: skip
    return None if refusal(made) else made


def _activation(before: Call) -> str | None:
    """Return what a depthwise convolution applies to its sums; None if no kernel does."""
    chain = before.chain
    if chain is None:
        return "none"
    own = chain.result_types == (_TYPES[before.dtype],)
    if chain.operands != (FULL,) or chain.results != (len(chain.steps),) or not own:
        return None
    return next((name for name, steps in BETWEEN.items() if steps == chain.steps), None)
