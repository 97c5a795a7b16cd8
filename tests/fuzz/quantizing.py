"""Steps in 8-bit integers: between conversions, with scales of each run, and as QLinear operators.

What is rounded to integers comes straight from inputs, whose numbers all ways to compute it share.
"""

from __future__ import annotations

import numpy as np

from tests.fuzz.draft import Dims, Draft, Value, fixed
from tests.fuzz.pointwise import activation

__all__ = ["QUANTIZED"]

WIDTHS = (1, 4, 8, 16, 17, 24, 32, 33)
_SINCE, _DYNAMIC_SINCE = 13, 11
"""First opsets with a scale for each column, and with DynamicQuantizeLinear."""


def _numbers(d: Draft, rank: int = 0) -> Value:
    """An input of its own: neither NaN nor a jitter, which would cross edges, is fed there."""
    return d.input(rank or d.number(2, 3), prefix="rounded")


def _bytes(d: Draft, x: Value) -> tuple[Value, Value, Value]:
    """x in bytes, with a scale and a zero point."""
    kind = d.choose((np.uint8, np.int8))
    scale = d.const(np.float32(6 / 251.7))
    zero = d.const(np.array(d.number(*((110, 140) if kind is np.uint8 else (-10, 10))), kind))
    return d.add("QuantizeLinear", [x, scale, zero], x.dims, "q", exact=True), scale, zero


def _matrix(d: Draft, *dims: int) -> tuple[Value, np.random.Generator]:
    rng = np.random.default_rng([11, *dims])
    return d.const(rng.integers(-128, 128, dims), np.int8), rng


def _dequantized(d: Draft, dims: Dims, axis: int) -> Value:
    """A constant with a scale for each index of an axis, or one."""
    w, rng = _matrix(d, *map(fixed, dims))
    shape = (fixed(dims[axis]),) if d.often(60) else ()
    depth = np.prod([fixed(v) for i, v in enumerate(dims) if i != axis])
    scales = d.const(rng.uniform(0.5, 1, shape) / 128 / depth**0.5, np.float32)
    zeros = [d.const(rng.integers(-9, 9, shape), np.int8)] if d.often(30) else []
    more = {"axis": axis} if shape else {}
    return d.add("DequantizeLinear", [w, scales, *zeros], dims, **more)


def converted_matmul(d: Draft) -> None:
    """A product between conversions."""
    d.need(_SINCE)
    x = _numbers(d)
    k, n = fixed(x.dims[-1]), d.choose(WIDTHS)
    again = d.add("DequantizeLinear", [*_bytes(d, x)], x.dims)
    y = d.add("MatMul", [again, _dequantized(d, (k, n), 1)], (*x.dims[:-1], n))
    if d.often(60):
        y = d.add("Add", [y, d.weight(n)], y.dims)
    if d.often(40):
        activation(d, y)


def converted_attention(d: Draft) -> None:
    """A product of two values that are both converted, and one by the softmax of it.

    Edges between the two would be crossed by rounding, so the second one reads numbers.
    """
    d.need(_SINCE)
    x, y = _numbers(d, 3), _numbers(d, 3)
    if x.dims[0] != y.dims[0] or x.dims[2] != y.dims[2]:
        y = x
    (batch, queries, depth), keys = x.dims, y.dims[1]
    a, b = (d.add("DequantizeLinear", [*_bytes(d, v)], v.dims) for v in (x, y))
    turned = d.add("Transpose", [b], (batch, depth, keys), perm=[0, 2, 1])
    scores = d.add("MatMul", [a, turned], (batch, queries, keys))
    if d.often(60):
        scores = d.add("Mul", [scores, d.const(np.float32(0.2))], scores.dims)
    weights = d.add("Softmax", [scores], scores.dims, axis=-1)
    if d.often(50):
        d.add("MatMul", [weights, b], (batch, queries, depth))


def converted_conv(d: Draft) -> None:
    """A convolution between conversions."""
    d.need(_SINCE)
    x = _numbers(d, 4)
    channels, n, k = fixed(x.dims[1]), d.choose(WIDTHS), d.choose((1, 3))
    again = d.add("DequantizeLinear", [*_bytes(d, x)], x.dims)
    filters = _dequantized(d, (n, channels, k, k), 0)
    bias = [d.weight(n)] if d.often(60) else []
    dims = (x.dims[0], n, *x.dims[2:])
    y = d.add("Conv", [again, filters, *bias], dims, pads=[k // 2] * 4, kernel_shape=[k, k])
    if d.often(60):
        d.add("Relu", [y], y.dims)


def dynamic_matmul(d: Draft) -> None:
    """A product of integers whose scale is found in each run."""
    d.need(_DYNAMIC_SINCE)
    x = _numbers(d)
    k, n = fixed(x.dims[-1]), d.choose(WIDTHS)
    numbers, scale, zero = d.many("DynamicQuantizeLinear", [x], [x.dims, (), ()], "q")
    w, rng = _matrix(d, k, n)
    own = [d.const(rng.integers(-9, 9, (n,)), np.int8)] if d.often(30) else []
    sums = d.add("MatMulInteger", [numbers, w, zero, *own], (*x.dims[:-1], n), "n")
    y = d.add("Cast", [sums], sums.dims, to=1)
    by = d.const(rng.uniform(0.5, 1, (n,)) / 128 / k**0.5, np.float32)
    d.add("Mul", [d.add("Mul", [y, Value(scale.name, ())], y.dims), by], y.dims)


def qlinear_matmul(d: Draft) -> None:
    """A product whose result is rounded to bytes."""
    d.need(_SINCE)
    x = _numbers(d)
    k, n = fixed(x.dims[-1]), d.choose(WIDTHS)
    numbers, scale, zero = _bytes(d, x)
    w, rng = _matrix(d, k, n)
    of_w = [d.const(np.float32(0.0071 / k**0.5)), d.const(np.int8(0))]
    result = [d.const(np.float32(rng.uniform(0.02, 0.04))), zero]
    y = d.add("QLinearMatMul", [numbers, scale, zero, w, *of_w, *result], (*x.dims[:-1], n), "q")
    d.add("DequantizeLinear", [y, *result], y.dims)


QUANTIZED = (converted_matmul, dynamic_matmul, converted_attention, converted_conv, qlinear_matmul)
