"""Compute integer products whose int32 sums are read as such.

MatMulInteger(x, w), ConvInteger(x, w)    ->    Cast to int32 of their sums as float32

Kernels round sums to float32, which holds all integers up to 2^24: no sum exceeds the largest
number of the input times the sum of a column's magnitudes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = ["decompose_integer_sums"]

_EXACT = 1 << 24
_LARGEST = 255
"""Largest magnitude of an 8-bit number less its zero point."""
_BYTES = (DType.U8, DType.I8)


def decompose_integer_sums(s: OnnxBuilder) -> OnnxBuilder:
    x, w, zero, zeros = s.operands[:4]
    made = s.graph.spec(s.region.results[0])
    if any(r.op == "Cast" for r in s.graph.readers(s.region)):
        raise CannotDecompose("")
    weight, offsets = s.graph.weight(w), s.graph.weight(zeros) if zeros else None
    if weight is None or (zeros and offsets is None) or s.spec(x).dtype not in _BYTES:
        raise CannotDecompose("its matrix is not constant, or its input is not of 8 bits")
    if not made.rank or len(weight.shape) != (2 if s.region.op == "MatMulInteger" else 4):
        raise CannotDecompose("its matrix is not one matrix, or its filters not those of images")
    first = s.region.op == "ConvInteger"  # filters lie along the first axis
    columns = np.moveaxis(np.asarray(weight.array(), np.int64), 0 if first else -1, 0)
    columns = columns.reshape(len(columns), -1)
    if offsets is not None:
        columns = columns - np.asarray(offsets.array(), np.int64).reshape(-1, 1)
    if _LARGEST * int(np.abs(columns).sum(1).max(initial=0)) > _EXACT:
        raise CannotDecompose("its sums may exceed what float32 holds exactly")
    operands = [x, w, *([zero] if zero or zeros else []), *([zeros] if zeros else [])]
    attrs: dict[str, Any] = dict(s.region.node.attrs)
    y = s(s.region.op, *operands, spec=made, **attrs)
    y = s("Cast", y, spec=TensorSpec(DType.F32, made.shape), to=DType.F32.onnx)
    s("Cast", y, spec=made, to=DType.I32.onnx)
    return s
