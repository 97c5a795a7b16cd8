"""Schemas of the GPU backend's calls for windows of images with what is behind them."""

from __future__ import annotations

from tracea_graph.kernels.gpu.call_operands import BYTES, DTYPES
from tracea_graph.kernels.gpu.call_operands import operand as _op
from tracea_graph.kernels.gpu.call_operands import written as _out
from tracea_graph.kernels.schema import CallSchema, Sizes, choice, number, numbers

__all__ = ["PROJECTED_WINDOWS"]

_MOST = 1 << 16
"""Upper bound of strides, pads and sides of images."""
_MOST_LEVEL = 255
"""Largest magnitude of a byte minus a zero point."""
_BETWEEN = ("none", "relu", "relu6", "silu", "hard_swish", "levels")
"""Activations between a depthwise convolution and the 1 × 1 convolution behind it."""


def _size(s: Sizes) -> tuple[int, ...]:
    """Return the 1 × 1 convolution as one matmul: pixels × filters × channels."""
    return 1, *s.of("y"), s.of("x")[-1]


def _depthwise_projection(dtype: str) -> CallSchema:
    """Schema of ``y = epilogue(w2 · activation((x * w) scale1 + bias1) + bias)``, * depthwise.

    ``image`` is height and width of what both convolutions make; y has its pixels as rows.  The
    activation "levels" rounds and clips to the two integers of ``levels``: what is between the
    convolutions of a quantized network, minus its zero point.  Bytes of x have the zero point
    ``zero``; w is in bytes then, of which four of a channel are a row of its window, and a zero.
    """
    return CallSchema(
        "depthwise_projection",
        (
            _op("x", "N H W C", dtype, *BYTES), _op("w", "kh kw C", "f32", "i8"),
            _op("scale1", "C", optional=True), _op("bias1", "C", optional=True),
            _op("w2", "O C", dtype), _op("bias", "O", optional=True),
            _op("inputs", "M O", "chain", many="inputs"),
            _out("y", "M O", "chain", many="results"),
        ),
        (
            numbers("strides", 2, 1, _MOST), numbers("pads", 2, 0, _MOST),
            numbers("image", 2, 1, _MOST), choice("activation", _BETWEEN),
            numbers("levels", 2, -_MOST_LEVEL, _MOST_LEVEL), choice("x_type", (dtype, *BYTES)),
            number("zero", -128, _MOST_LEVEL),
        ),
        dtype,
        chain="epilogue",
        problem=_size,
    )  # fmt: skip


PROJECTED_WINDOWS = tuple(map(_depthwise_projection, DTYPES[1:]))
"""Schemas of a depthwise convolution with the 1 × 1 convolution behind it."""
