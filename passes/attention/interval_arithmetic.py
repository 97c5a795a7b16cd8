"""Bound float32 values by interval arithmetic over their producers.

(1 − Cast(bool)) · c        lies in [min(c, 0), max(c, 0)]
Where(keep, 0, c)           lies in [min(c, 0), max(c, 0)]
Cast(any int64)             lies in [−2^63, 2^63]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, isnan
from types import MappingProxyType

import numpy as np

from tracea_graph.ir import DType
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.ttg import Region, TileGraph

__all__ = ["UNBOUNDED", "Interval", "interval"]

Interval = tuple[float, float]

UNBOUNDED: Interval = (-inf, inf)
_LARGEST = float(np.finfo(np.float32).max)
_MAX_DEPTH = 16
_MAX_CONSTANT = 1 << 22
"""Number of elements up to which a constant is read to find its bounds."""

_COPIES = (
    "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
)  # fmt: skip


def interval(graph: TileGraph, value: str, depth: int = 0) -> Interval:
    """Return the lower and upper bound of a value's elements; :data:`UNBOUNDED` if unknown."""
    weight = graph.weight(value)
    if weight is not None:
        return _of_constant(graph, value)
    if graph.spec(value).dtype is DType.BOOL:
        return 0.0, 1.0
    region = graph.producer(value)
    if region is None or region.fused or depth > _MAX_DEPTH:
        return UNBOUNDED
    if region.op in _COPIES:
        return interval(graph, region.operands[0], depth + 1)
    if region.op == "Cast":
        return _of_cast(graph, region, depth)
    if region.op == "Where":
        a, b = (interval(graph, v, depth + 1) for v in region.operands[1:])
        return min(a[0], b[0]), max(a[1], b[1])
    if region.op in _UNARY and graph.spec(value).dtype is DType.F32:
        return _UNARY[region.op](interval(graph, region.operands[0], depth + 1))
    rule = _ARITHMETIC.get(region.op)
    if rule is None or len(region.operands) != 2 or graph.spec(value).dtype is not DType.F32:
        return UNBOUNDED
    return _rounded(rule(*(interval(graph, v, depth + 1) for v in region.operands)))


def _of_constant(graph: TileGraph, value: str) -> Interval:
    weight = graph.weights[value]
    if not 0 < weight.count <= _MAX_CONSTANT or weight.dtype not in (DType.F32, DType.BOOL):
        return UNBOUNDED
    array = weight.array()
    low, high = float(array.min()), float(array.max())
    return UNBOUNDED if isnan(low) else (low, high)


def _of_cast(graph: TileGraph, region: Region, depth: int) -> Interval:
    """Bound casts from bool or float32 to float32 or integers; other casts may wrap or
    overflow."""
    source = graph.spec(region.operands[0]).dtype
    if source is DType.BOOL:
        return 0.0, 1.0
    single = attribute(region, "to", 0) == DType.F32.onnx
    if source not in (DType.I32, DType.I64, DType.F32) or (source is DType.F32 and not single):
        return UNBOUNDED
    low, high = interval(graph, region.operands[0], depth + 1)
    most = 2.0 ** (31 if source is DType.I32 else 63)
    return (low, high) if source is DType.F32 else (max(low, -most), min(high, most))


def _products(a: Interval, b: Interval) -> Interval:
    every = [x * y for x in a for y in b]
    return UNBOUNDED if any(map(isnan, every)) else (min(every), max(every))


_UNARY: Mapping[str, Callable[[Interval], Interval]] = MappingProxyType(
    {
        "Neg": lambda a: (-a[1], -a[0]),
        "Abs": lambda a: (max(a[0], -a[1], 0.0), max(abs(a[0]), abs(a[1]))),
    }
)

_ARITHMETIC: Mapping[str, Callable[[Interval, Interval], Interval]] = MappingProxyType(
    {
        "Add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
        "Sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
        "Mul": _products,
        "Max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
        "Min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    }
)


def _rounded(bounds: Interval) -> Interval:
    """Round bounds to float32: overflow becomes infinity, NaN becomes unbounded."""
    low, high = bounds
    if isnan(low) or isnan(high):
        return UNBOUNDED
    return (-inf if low < -_LARGEST else low), (inf if high > _LARGEST else high)
