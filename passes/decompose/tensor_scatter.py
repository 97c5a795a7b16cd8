"""Decompose TensorScatter, which writes rows into caches at places of their own.

    TensorScatter(past, update, starts)  ->  ScatterElements(past, starts + 0 … S − 1, update)

A circular cache has places modulo its length.  Source: ONNX operator TensorScatter, opset 24.
"""

from __future__ import annotations

import numpy as np

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = ["decompose_tensor_scatter"]


def decompose_tensor_scatter(s: OnnxBuilder) -> OnnxBuilder:
    past, update, starts = s.operands[:3]
    held, shape = s.spec(past).shape, s.spec(update).shape
    if held is None or shape is None or len(held) != len(shape):
        raise CannotDecompose("the rank of its cache is not known")
    axis, circular = int(s.attribute("axis", -2)) % len(held), s.attribute("mode", b"linear")
    ones: list[Extent] = [1] * len(held)
    line = TensorSpec(DType.I64, (*ones[:axis], shape[axis], *ones[axis + 1 :]))
    places, spec = _counted(s, update, line, axis), line
    if starts:
        column = [-1, *[1] * (len(held) - 1)]
        first = TensorSpec(DType.I64, (held[0], *ones[1:]))
        start = s("Reshape", starts, s.indices(*column), spec=first)
        spec = TensorSpec(DType.I64, (held[0], *(line.shape or ())[1:]))
        places = s("Add", start, places, spec=spec)
    if circular in (b"circular", "circular"):
        if not isinstance(held[axis], int):
            raise CannotDecompose("the length of its circular cache is not known")
        places = s("Mod", places, s.constant(held[axis], np.int64), spec=spec)
    whole = TensorSpec(DType.I64, shape)
    size = s("Shape", update, spec=TensorSpec(DType.I64, (len(shape),)))
    places = s("Expand", places, size, spec=whole)
    s("ScatterElements", past, places, update, spec=s.spec(past), axis=axis)
    return s


def _counted(s: OnnxBuilder, update: str, line: TensorSpec, axis: int) -> str:
    """Return 0, 1, … along an axis of the rows that are written."""
    shape = line.shape or ()
    length = shape[axis]
    if isinstance(length, int):
        side = [length if i == axis else 1 for i in range(len(shape))]
        return s.constant(np.arange(length).reshape(side), np.int64)
    sizes = s("Shape", update, spec=TensorSpec(DType.I64, (len(shape),)))
    zero, one, at = (s.constant(n, np.int64) for n in (0, 1, axis))
    count = s("Gather", sizes, at, spec=TensorSpec(DType.I64, ()), axis=0)
    numbers = s("Range", zero, count, one, spec=TensorSpec(DType.I64, (length,)))
    target = [-1 if i == axis else 1 for i in range(len(shape))]
    return s("Reshape", numbers, s.indices(*target), spec=line)
