"""Lower matmuls and maxima of 8-bit integers, and dynamic quantization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tracea_graph.ir import DType, TensorSpec, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.convolution import as_pixel_rows
from tracea_graph.kernels.gpu.kernel_selection import INTEGERS, variants_of
from tracea_graph.kernels.gpu.lowering.elementwise_ops import Targets
from tracea_graph.kernels.gpu.lowering.program_writer import (
    GpuProgramWriter,
    with_row_operands,
)
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import IDENTITY, LackingError, Shape, Value
from tracea_graph.ops.chain import FULL, Chain
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.dynamic_quantize import QUANTIZE, DynamicQuantizeParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.weight_layouts import KN

__all__ = [
    "append_integers", "integer_call", "integer_pool", "lower_dynamic_quantize", "plane_of",
    "typed_epilogue", "window_of",
]  # fmt: skip

_SUMS = Chain((FULL,), (), (0,))
_RANGE_RUN, _MOST_BLOCKS = 4096, 264
"""Elements of which a block finds the range, and the maximum number of blocks: two for each SM."""


def integer_call(
    w: GpuProgramWriter, p: GemmParams, operands: Sequence[Value], seen: Sequence[Value],
    made: Sequence[Value],
) -> None:  # fmt: skip
    """Write an integer matmul whose epilogue reads ``seen`` and writes the results ``made``."""
    assert p.integers is not None
    x, weight = operands[:2]
    right = w.again(weight, DType.I8, (1, 0)).transposed((1, 0)) if p.layout == KN else weight
    chain = typed_epilogue(w, p.epilogue, made[0], seen, made)
    append_integers(w, "integer_gemm", w.matrix(x), right, chain, seen, made, p.integers,
            operands[2 : p.first], {})  # fmt: skip


def typed_epilogue(
    w: GpuProgramWriter,
    chain: Chain | None,
    like: Value,
    seen: Sequence[Value],
    made: Sequence[Value],
) -> Chain:
    """Return the typed epilogue of sums that have the layout of ``like``."""
    found = w.typed(chain or _SUMS, [Value(like.view, DType.F32), *seen], made)
    images = len(like.shape) > 2
    return with_row_operands(found, [as_pixel_rows(v.view) if images else v.view for v in seen])


def append_integers(
    w: GpuProgramWriter, op: str, x: Value, weight: Value, chain: Chain, seen: Sequence[Value],
    made: Sequence[Value], integers: IntegerOperand, zeros: Sequence[Value], more: dict[str, Any],
) -> None:  # fmt: skip
    given, own = integers.split(zeros)
    shifted = given is not None or bool(integers.zero)
    named: dict[str, Any] = {
        "x": x.view, "w": weight.view, "w_zeros": own.view if own else None,
        "x_zero": given.flat(len(given.shape)).view if given else None,
        "inputs": [v.view for v in seen], "y": [v.view for v in made], "chain": chain,
        "shifted": shifted, "zero": integers.zero or 0, **more,
    }  # fmt: skip
    if shifted and op != "integer_depthwise":
        some = View.dense(weight.view.buffer, weight.shape[:1])
        asked = CALLS.make(op, integers.dtype.short, **named, column_sums=some)
        if any(v.template in INTEGERS for v, _ in variants_of(asked)):
            named["column_sums"] = _sums_of_columns(w, weight).view
    w.calls.append(CALLS.make(op, integers.dtype.short, **named))


def _sums_of_columns(w: GpuProgramWriter, weight: Value) -> Value:
    """Return the sums of the rows of ``[N, K]`` integers, which are exact in float32."""
    y = w.temp(DType.F32, weight.shape[:1])
    chain = w.typed(IDENTITY, [weight], [y])
    w.call("reduce", "f32", x=[weight.view], y=y.view, kind="sum", mean=False, chain=chain)
    return y


def plane_of(value: Value) -> Value:
    """View channels-last images as 2-D images, whose pixels have one stride.

    A 1-D image has a height of 1; volumes are the images of all depths.  Raises ValueError if
    volumes are not contiguous.
    """
    if len(value.shape) > 3:
        return value.flat(len(value.shape) - 3, 1, 1, 1)
    (n, length, c), (image, pixel, step) = value.shape, value.view.strides
    steps = image, combine("mul", pixel, length), pixel, step
    return replace(value, view=replace(value.view, dims=(n, 1, length, c), strides=steps))


def window_of(window: ConvWindow) -> dict[str, tuple[int, ...]]:
    """Return the attributes of a 1-D or 2-D window for two axes."""

    def two(numbers: Sequence[int], alone: int) -> tuple[int, ...]:
        return (alone, *numbers) if window.rank == 1 else tuple(numbers)

    before = [pair[0] for pair in window.pairs]
    return {"kernel": two(window.kernel, 1), "strides": two(window.strides, 1),
            "dilations": two(window.dilations, 1), "pads": two(before, 0)}  # fmt: skip


def integer_pool(w: GpuProgramWriter, p: PoolParams, x: Value) -> Value:
    """Write max-pooling of 8-bit integers, channels last."""
    assert p.window is not None
    if p.window.rank > 2:
        raise LackingError("GPU kernels pool over one or two spatial axes only")
    (spec,) = p.infer([TensorSpec(x.dtype, x.shape)])
    y = w.temp(x.dtype, spec.shape or ())
    w.call(
        "integer_pool",
        x.dtype.short,
        x=plane_of(x).view,
        y=plane_of(y).view,
        **window_of(p.window),
    )
    return y


def lower_dynamic_quantize(
    w: GpuProgramWriter, p: DynamicQuantizeParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    """Write two calls: one computes scale and zero point, the other quantizes with these."""
    x = w.dense(operands[0])
    types = (DType.U8, DType.F32, DType.U8)
    shapes: tuple[Shape, ...] = (x.shape, (), ())
    y, scale, zero = (t or w.temp(d, s) for t, d, s in zip(targets, types, shapes, strict=True))
    count = product(x.shape)
    blocks = combine("max", combine("min", combine("ceildiv", count, _RANGE_RUN), _MOST_BLOCKS), 1)
    one = [v.flat(len(v.shape)) for v in (scale, zero)]
    w.call(
        "value_range", x.dtype.short, x=x.flat(len(x.shape)).view, scale=one[0].view,
        zero=one[1].view, partial=w.temp(DType.F32, (blocks, 4)).view, arrivals=w.arrivals(1),
    )  # fmt: skip
    w.chain(QUANTIZE, [x, *(v.stretched(x.shape) for v in (scale, zero))], [y])
    return [y, scale, zero]
