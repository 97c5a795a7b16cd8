"""Split QAttention into products of integers and plain attention.

QAttention(x, W, bias, scale, scales, mask, zero, zeros, past)
    -> MatMulInteger, Cast, Mul and Add for each of q, k and v, and a MultiHeadAttention

Source: ONNX Runtime's documentation of its contributed operators, and its CPU kernel.
"""

from __future__ import annotations

import numpy as np

from tracea_graph.ir import Array, DType, TensorSpec, Weight
from tracea_graph.passes.decompose.contrib_attention import plain_attention, why_no_mask
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = ["decompose_qattention"]


def decompose_qattention(s: OnnxBuilder) -> OnnxBuilder:
    """Write the projections of a QAttention as products of integers with rescaled results."""
    x, weight, bias, scale, scales, mask, zero, zeros, past = s.operands[:9]
    if s.attribute("do_rotary", 0):
        raise CannotDecompose("its rotary embedding (do_rotary) is not supported")
    if why := why_no_mask(s, mask):
        raise CannotDecompose(why)
    shape, stored = s.spec(x).shape, s.graph.weight(weight)
    own, factors = (s.graph.weight(v) if v else None for v in (zeros, scales))
    if shape is None or len(shape) != 3 or stored is None or len(stored.shape) != 2:
        raise CannotDecompose(
            "its weights are not a constant matrix, or x is not known to have rank 3"
        )
    if factors is None or (zeros and own is None) or s.spec(scale).dtype is not DType.F32:
        raise CannotDecompose(
            "its weights' scales or zero points are not constant, or the scale of x is not float32"
        )
    depth, wide = stored.shape
    given = s.graph.weight(bias)
    if wide % 3 or shape[-1] != depth or given is None or given.dtype is not DType.F32:
        raise CannotDecompose(
            "its weights do not have the sizes of x, q, k, v, or its bias is not constant float32"
        )
    if factors.count not in (1, wide) or (own and own.count not in (1, wide)):
        raise CannotDecompose(
            "its weights do not have one scale and zero point in all, or one per column"
        )
    width, moved = wide // 3, list[str]()
    for start in range(0, wide, width):
        part = slice(start, start + width)
        spec = TensorSpec(DType.F32, (*shape[:2], width))
        right = _part(s, stored, part, 1)
        beside = [zero or _no_zero(s, x)] if zero or own else []
        beside += [_part(s, own, part, 0)] if own else []
        sums = s("MatMulInteger", x, right, *beside, spec=TensorSpec(DType.I32, spec.shape))
        y = s("Cast", sums, spec=spec, to=DType.F32.onnx)
        both = s("Mul", scale, _part(s, factors, part, 0), spec=_row(factors, width))
        y = s("Mul", y, both, spec=spec)
        moved.append(s("Add", y, s.derived(given, (width,), part), spec=spec))
    return plain_attention(s, moved, (*shape[:2],), width, mask, past)


def _row(factors: Weight, width: int) -> TensorSpec:
    return TensorSpec(DType.F32, () if factors.count == 1 else (width,))


def _no_zero(s: OnnxBuilder, x: str) -> str:
    """Add a constant zero point 0 of the type of x; return its name."""
    dtype = s.spec(x).dtype
    if dtype not in (DType.U8, DType.I8):
        raise CannotDecompose("x does not hold 8-bit integers")
    kind = np.uint8 if dtype is DType.U8 else np.int8
    return _entered(s, dtype, (), np.zeros((), kind))


def _part(s: OnnxBuilder, weight: Weight, part: slice, axis: int) -> str:
    """Add the columns of a constant that belong to q, k or v as a new constant; return its name.

    A constant of one element serves all columns.
    """
    if weight.count == 1:
        return _entered(s, weight.dtype, (), np.asarray(weight.load()).reshape(()))
    load, width = weight.load, part.stop - part.start
    shape = (*weight.shape[:axis], width)

    def array() -> Array:
        return np.ascontiguousarray(
            np.asarray(load()).reshape(*weight.shape[:axis], -1)[..., part]
        )

    return s.entered(weight.dtype, shape, array)


def _entered(s: OnnxBuilder, dtype: DType, shape: tuple[int, ...], array: Array) -> str:
    return s.entered(dtype, shape, lambda: array)
