"""Lower 1 × 1 convolutions of many pixels to matmuls, whose rows are pixels.

Kernels copy rows of x in pieces of 128 bytes.  With few channels most of a piece is filled with
zeros, and with few filters most columns of a tile stay empty.  Neighbouring pixels can share a row
instead, whose weight is block-diagonal; x and y stay as they are in memory.  Tensor cores then
multiply zeros, which takes less time than copying single pixels.

Squeeze-and-excitation scales each channel of each image by a factor.  The matmul behind it can
read the image from before, with a weight for each image that holds the factors; no launch scales
the pixels then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.ir import Extent, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.convolution import as_pixel_rows
from tracea_graph.kernels.gpu.lowering.product_calls import product_call
from tracea_graph.kernels.gpu.lowering.program_writer import (
    SCALED,
    ZERO,
    GpuProgramWriter,
    ScaledImage,
)
from tracea_graph.kernels.gpu.tile_choice import pixels_of_a_row
from tracea_graph.kernels.program import Call, View
from tracea_graph.kernels.program_writer import Value
from tracea_graph.ops.chain import Chain

__all__ = ["multiply_pixels", "repeated"]

_WHOLE = 64
"""Numbers of a row that a tensor map copies at a time."""
_PIXELS_OF_A_FILTER = 4
"""Least number of pixels of an image, for each filter, for which its weight is scaled instead."""


@dataclass(frozen=True)
class _Matmul:
    """Operands of a matmul: matrices whose rows hold ``pixels`` pixels each, and a vector."""

    x: Value
    weight: Value
    bias: Value | None
    inputs: tuple[Value, ...]
    y: Value
    pixels: int = 1


def multiply_pixels(
    w: GpuProgramWriter, call: Call, chain: Chain | None, inputs: Sequence[Value],
    bias: Value | None,
) -> bool:  # fmt: skip
    """Write a 1 × 1 convolution as a matmul; return False for other convolutions.

    ``call`` is the convolution; ``inputs`` are those of ``chain``, its epilogue.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, weight, (y,) = named["x"], named["w"], named["y"]
    if weight.dims[1:-1] != (1, 1) or x.dims[:3] != y.dims[:3]:
        return False
    images, image = x.dims[0], product(x.dims[1:3])
    try:
        matrices = [as_pixel_rows(v) for v in (x, weight, *named["inputs"], y)]
    except GraphError:
        return False
    stored = call.chain.result_types[0] if call.chain else w.narrow
    dtypes = [w.narrow, w.narrow, *(v.dtype for v in inputs), stored]
    first, second, *others, last = map(Value, matrices, dtypes)
    plain = _Matmul(first, second, bias, tuple(others), last)
    count = _pixels_of_a_row(w, plain, image)
    held = _scaled(w, x, plain, count)
    if held is not None:
        plain = replace(plain, x=Value(as_pixel_rows(held.x), w.narrow))
    made = _folded(w, plain, images, image, count)
    if held is not None:
        made = _with_scaled_weights(w, made, held.factors, combine("floordiv", image, count))
    product_call(w, made.x, made.weight, "nk", chain, made.inputs, [made.y], made.bias)
    return True


def _pixels_of_a_row(w: GpuProgramWriter, plain: _Matmul, image: Extent) -> int:
    """Return how many pixels share a row; 1 if pixels do not lie side by side."""
    filters, channels = plain.weight.shape
    if not (isinstance(filters, int) and isinstance(channels, int) and isinstance(image, int)):
        return 1
    tall = [plain.x, plain.y, *(v for v in plain.inputs if v.view.strides[0] != 0)]
    if any(v.view.strides != (v.shape[1], 1) for v in tall):
        return 1
    return pixels_of_a_row(w.about(plain.x.shape[0]) or 0, image, filters, channels)


def _folded(
    w: GpuProgramWriter, plain: _Matmul, images: Extent, image: Extent, count: int
) -> _Matmul:
    """Let ``count`` pixels share a row, for images of ``image`` pixels each."""
    filters, channels = plain.weight.shape
    if not isinstance(channels, int) or (count == 1 and channels >= _WHOLE):
        return plain
    weight = _block_diagonal(w, plain.weight, count, filters, channels)
    if count == 1:
        return replace(plain, weight=weight)
    rows = product((images, combine("floordiv", image, count)))

    def wide(value: Value) -> Value:
        columns, (step, last) = value.shape[1], value.view.strides
        if step == 0 and last != 0:
            value = repeated(w, value, count)
        view = View(value.view.buffer, (rows, combine("mul", columns, count)),
                    (combine("mul", step, count), last), value.view.offset)  # fmt: skip
        return replace(value, view=view)

    bias = plain.bias
    if bias is not None:
        bias = repeated(w, replace(bias, view=bias.view.stretched((1, filters))), count).flat(2)
    inputs = tuple(map(wide, plain.inputs))
    return _Matmul(wide(plain.x), weight, bias, inputs, wide(plain.y), count)


def repeated(w: GpuProgramWriter, row: Value, count: int) -> Value:
    """Return a matrix whose rows are ``count`` times the same row."""
    made = w.temp(row.dtype, (count, row.shape[1]))
    steps = 0, row.view.strides[1]
    w.copy(Value(View(row.view.buffer, made.shape, steps, row.view.offset), row.dtype), made)
    return made


def _block_diagonal(
    w: GpuProgramWriter, weight: Value, count: int, filters: Extent, channels: int
) -> Value:
    """Return a matrix that holds ``weight`` ``count`` times along its diagonal, and zeros.

    Its rows are at least as long as a copy of a tensor map: kernels copy such rows faster.
    """
    depth = max(_WHOLE, count * channels)
    made, own = w.temp(weight.dtype, (combine("mul", filters, count), depth)), weight.view
    w.chain(ZERO, [], [made.flat(2)])
    down = combine("add", combine("mul", filters, depth), channels)
    blocks = View(made.view.buffer, (count, filters, channels), (down, depth, 1))
    source = View(own.buffer, blocks.dims, (0, *own.strides), own.offset)
    w.copy(replace(weight, view=source), replace(made, view=blocks))
    return made


def _scaled(w: GpuProgramWriter, x: View, plain: _Matmul, count: int) -> ScaledImage | None:
    """Return what x was scaled from, if weights that hold the factors are far smaller than x."""
    held, pixels = w.scaled.get(x.buffer), product(x.dims[1:3])
    filters, channels = plain.weight.shape
    if held is None or held.y != x or held.x.strides != x.strides:
        return None
    if not (isinstance(pixels, int) and isinstance(filters, int) and isinstance(channels, int)):
        return None
    few = filters * count * count * _PIXELS_OF_A_FILTER <= pixels and count * channels >= _WHOLE
    return held if few else None


def _with_scaled_weights(
    w: GpuProgramWriter, plain: _Matmul, factors: View, rows: Extent
) -> _Matmul:
    """Return a batch of matmuls, one for each image of ``rows`` rows, with weights of its own."""
    (images, channels), (filters, depth) = factors.dims, plain.weight.shape
    made, own = w.temp(w.narrow, (images, filters, depth)), plain.weight.view
    whole = (images, filters, plain.pixels, channels)
    down, across = factors.strides
    views = (
        View(own.buffer, whole, (0, own.strides[0], channels, 1), own.offset),
        View(factors.buffer, whole, (down, 0, 0, across), factors.offset),
        View(made.view.buffer, whole, (*made.view.strides[:2], channels, 1)),
    )
    first, second, target = (Value(v, w.narrow) for v in views)
    w.chain(SCALED, [first, second], [target])

    def batched(value: Value) -> Value:
        step, last = value.view.strides
        view = View(value.view.buffer, (images, rows, value.shape[1]),
                    (combine("mul", step, rows), step, last), value.view.offset)  # fmt: skip
        return replace(value, view=view)

    inputs = tuple(map(batched, plain.inputs))
    return replace(plain, x=batched(plain.x), weight=made, inputs=inputs, y=batched(plain.y))
