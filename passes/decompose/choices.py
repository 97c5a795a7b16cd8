"""Decompose operators that choose elements into those that rules match.

Hardmax                                        ->  ArgMax, compared with positions
OneHot                                         ->  indices compared with positions, then Where
TopK, GatherElements along another axis        ->  along the last one, between Transposes
Trilu of known sizes                           ->  Where with a constant mask
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracea_graph.ir import Array, DType, Extent, TensorSpec
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder
from tracea_graph.passes.region_helpers import COMPARED
from tracea_graph.rewrite import constant_number

__all__ = [
    "decompose_gather_elements",
    "decompose_hardmax",
    "decompose_one_hot",
    "decompose_top_k",
    "decompose_trilu",
]

_EXACT = 1 << 24
"""float32 holds all integers up to this one exactly."""
_SINCE = 13
"""Opset from which Hardmax works along one axis."""
_LARGEST_MASK = 1 << 24
"""Maximum number of elements of a constant mask."""


def decompose_hardmax(s: OnnxBuilder) -> OnnxBuilder:
    """Write 1 where the position is that of the maximum, and 0 elsewhere."""
    x = s.operands[0]
    shape = s.image(x)
    axis = int(s.attribute("axis", -1)) % max(len(shape), 1)
    if s.graph.opset < _SINCE or not shape:
        raise CannotDecompose(f"before opset {_SINCE} it works on matrices")
    length = _known(shape[axis])
    kept = tuple(1 if i == axis else d for i, d in enumerate(shape))
    place = s("ArgMax", x, spec=TensorSpec(DType.I64, kept), axis=axis, keepdims=1)
    place = s("Cast", place, spec=TensorSpec(DType.F32, kept), to=DType.F32.onnx)
    same = s("Equal", place, _positions(s, length, len(shape) - 1 - axis),
             spec=TensorSpec(DType.BOOL, shape))  # fmt: skip
    s("Cast", same, spec=TensorSpec(DType.F32, shape), to=DType.F32.onnx)
    return s


def decompose_one_hot(s: OnnxBuilder) -> OnnxBuilder:
    """Write ``on`` where the position is the index, and ``off`` elsewhere.

    Indices count from the end if they are negative.  float32 holds those that are positions.
    """
    ids, depth, values = s.operands[:3]
    spec, stored = s.spec(ids), s.graph.weight(values)
    count = constant_number(s.graph, depth)
    if spec.dtype not in (DType.I32, DType.I64) or spec.shape is None:
        raise CannotDecompose("its indices are not integers of known rank")
    if stored is None or count is None or not 0 < count < _EXACT:
        raise CannotDecompose("its depth or its values are not constant")
    off, on = (float(v) for v in stored.array().reshape(-1))
    if stored.dtype not in (DType.F32, DType.I32, DType.I64) or max(abs(off), abs(on)) > _EXACT:
        raise CannotDecompose("its values are neither float32 nor small integers")
    rank, length = len(spec.shape), int(count)
    axis = int(s.attribute("axis", -1)) % (rank + 1)
    shape = (*spec.shape[:axis], length, *spec.shape[axis:])
    x = s("Cast", ids, spec=TensorSpec(DType.F32, spec.shape), to=DType.F32.onnx)
    x = s.unsqueezed(x, axis)
    negative = s("Less", x, 0.0, spec=TensorSpec(DType.BOOL, s.spec(x).shape))
    x = s("Where", negative, s("Add", x, float(length)), x, spec=s.spec(x))
    same = s("Equal", x, _positions(s, length, rank - axis), spec=TensorSpec(DType.BOOL, shape))
    y = s("Where", same, on, off, spec=TensorSpec(DType.F32, shape))
    if stored.dtype is not DType.F32:
        s("Cast", y, spec=TensorSpec(stored.dtype, shape), to=stored.dtype.onnx)
    return s


def decompose_top_k(s: OnnxBuilder) -> OnnxBuilder:
    """Choose along the last axis of the transposed value."""
    x, k = s.operands[:2]
    shape, order = _last(s, x, -1)
    chosen = constant_number(s.graph, k) if k else s.attribute("k", None)
    if chosen is None or s.attribute("sorted", 1) != 1 or len(s.region.results) != 2:
        raise CannotDecompose("")
    dtype = s.spec(x).dtype
    turned = s("Transpose", x, perm=order, spec=TensorSpec(dtype, _permuted(shape, order)))
    made = (*_permuted(shape, order)[:-1], int(chosen))
    specs = [TensorSpec(t, made) for t in (dtype, DType.I64)]
    given = {name: s.attribute(name, None) for name in ("k", "largest")}
    attributes = {name: value for name, value in given.items() if value is not None}
    found = s.many("TopK", (turned, *filter(None, (k,))), specs, axis=len(shape) - 1, **attributes)
    back = [order.index(a) for a in range(len(shape))]
    for value, result in zip(found[::-1], s.region.results[::-1], strict=True):
        if result:
            spec = TensorSpec(s.spec(value).dtype, _permuted(made, back))
            s("Transpose", value, perm=tuple(back), spec=spec, result=result)
    return s


def decompose_gather_elements(s: OnnxBuilder) -> OnnxBuilder:
    """Look up along the last axis of transposed operands."""
    x, ids = s.operands[:2]
    shape, order = _last(s, x, 0)
    index = s.spec(ids)
    if s.spec(x).dtype not in COMPARED or index.shape is None or len(index.shape) != len(shape):
        raise CannotDecompose("its elements are neither float32 nor integers, or ranks differ")
    seen = [s("Transpose", v, perm=order, spec=TensorSpec(s.spec(v).dtype, _permuted(own, order)))
            for v, own in ((x, shape), (ids, index.shape))]  # fmt: skip
    made = TensorSpec(s.spec(x).dtype, _permuted(index.shape, order))
    y = s("GatherElements", *seen, spec=made, axis=len(shape) - 1)
    back = tuple(order.index(a) for a in range(len(shape)))
    s("Transpose", y, perm=back, spec=TensorSpec(made.dtype, index.shape))
    return s


def decompose_trilu(s: OnnxBuilder) -> OnnxBuilder:
    """Keep the elements on one side of a diagonal by a constant mask."""
    x, diagonal = s.operands[:2]
    shape = s.image(x)
    offset = constant_number(s.graph, diagonal) if diagonal else 0.0
    if s.graph.weight(x) is not None or _is_filled(s, x):
        raise CannotDecompose("")
    if offset is None or len(shape) < 2 or not all(isinstance(d, int) for d in shape[-2:]):
        raise CannotDecompose("its sizes or its diagonal are not known")
    rows, cols = (_known(d) for d in shape[-2:])
    if rows * cols > _LARGEST_MASK:
        raise CannotDecompose("its mask would be too large")
    upper, start = bool(s.attribute("upper", 1)), int(offset)

    def mask() -> Array:
        apart = np.arange(cols)[None] - np.arange(rows)[:, None]
        return np.asarray(apart >= start if upper else apart <= start)

    s("Where", s.entered(DType.BOOL, (rows, cols), mask), x, 0.0, spec=s.spec(x))
    return s


def _is_filled(s: OnnxBuilder, value: str) -> bool:
    """Return whether a value repeats one number, which other rules turn into a triangle."""
    made = s.graph.producer(value)
    return made is not None and made.op in ("ConstantOfShape", "Expand")


def _last(s: OnnxBuilder, x: str, default: int) -> tuple[tuple[Extent, ...], tuple[int, ...]]:
    """Return a value's shape, and the order of axes that puts the operator's axis last.

    Raises CannotDecompose if it is the last one.
    """
    shape = s.spec(x).shape
    if not shape:
        raise CannotDecompose("the rank of an operand is not known")
    axis = int(s.attribute("axis", default)) % len(shape)
    if axis == len(shape) - 1:
        raise CannotDecompose("")
    return shape, (*range(axis), *range(axis + 1, len(shape)), axis)


def _permuted(shape: Sequence[Extent], order: Sequence[int]) -> tuple[Extent, ...]:
    return tuple(shape[a] for a in order)


def _known(size: Extent) -> int:
    if not isinstance(size, int) or not 0 < size < _EXACT:
        raise CannotDecompose("the length of its axis is not known")
    return size


def _positions(s: OnnxBuilder, count: int, behind: int) -> str:
    """Return the constant 0 … ``count`` − 1 along an axis before ``behind`` others."""
    return s.constant(np.arange(count, dtype=np.float32).reshape(count, *[1] * behind))
