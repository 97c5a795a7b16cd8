"""Constraints that operators put on their operands' values.

Tables keyed by ``(operator, operand)``: indices below a limit, exact numbers (shapes, axes,
counts) and which of them may be replaced, positive numbers, booleans.  Operator domains are not
distinguished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["ADJUSTABLE", "EXACT", "FLAGS", "INDEX", "POSITIVE", "Dims", "Vector"]

Dims = Callable[[str], tuple[int | None, ...] | None]
"""Function from a value to its dims under a binding; None for an unknown rank or dim."""

Vector = tuple[float, ...]
"""Exact numbers for an operand; a single number applies to all its elements."""

ExclusiveLimit = Callable[[TileGraph, Region, Dims], int | None]
Exact = Callable[[TileGraph, Region, Dims], Vector | None]

_END = float(2**31 - 1)


def _dim(operand: int, axis: int = 0) -> ExclusiveLimit:
    """Limit by a dim of another operand; the ``axis`` attribute overrides the axis."""

    def limit(graph: TileGraph, region: Region, dims: Dims) -> int | None:
        shape = dims(region.operands[operand])
        at = region.node.attrs.get("axis", axis)
        if not shape or not isinstance(at, int) or not -len(shape) <= at < len(shape):
            return None
        return shape[at]

    return limit


def _smallest(graph: TileGraph, region: Region, dims: Dims) -> int | None:
    """Limit by the smallest dim, so that every component of an N-D index is valid."""
    shape = dims(region.operands[0])
    return min((d for d in shape if d is not None), default=None) if shape else None


def _cached_positions(table: int) -> ExclusiveLimit:
    """Limit positions by the length of a RotaryEmbedding's cosine table, operand ``table``.

    ONNX's operator and that of ``com.microsoft`` take the positions as different operands.
    """

    def limit(graph: TileGraph, region: Region, dims: Dims) -> int | None:
        contrib = region.op != "RotaryEmbedding"
        return _dim(table)(graph, region, dims) if contrib == (table == 2) else None

    return limit


def _depth(graph: TileGraph, region: Region, dims: Dims) -> int | None:
    weight = graph.weight(region.operands[1])
    return int(weight.array().flat[0]) if weight is not None and weight.count == 1 else 8


def _always(*numbers: float) -> Exact:
    return lambda graph, region, dims: numbers


def _output(fallback: float) -> Exact:
    """The result's dims if all are known, else ``fallback`` everywhere."""

    def wanted(graph: TileGraph, region: Region, dims: Dims) -> Vector | None:
        shape = dims(region.results[0])
        known = shape is not None and None not in shape
        return tuple(float(d or 0) for d in shape or ()) if known else (fallback,)

    return wanted


def _reshape(graph: TileGraph, region: Region, dims: Dims) -> Vector | None:
    """The result's dims, at most one unknown (−1); else copied dims and a final −1."""
    shape, length = dims(region.results[0]), (dims(region.operands[1]) or (None,))[0]
    if shape is not None and shape.count(None) <= 1:
        return tuple(-1.0 if d is None else float(d) for d in shape)
    if length is None:
        return None
    rank = len(dims(region.operands[0]) or ())
    copied = 0 if region.node.attrs.get("allowzero") else min(length, rank) - 1
    return ((0.0,) * max(copied, 0) + (-1.0,) + (1.0,) * length)[:length]


def _axes(graph: TileGraph, region: Region, dims: Dims) -> Vector | None:
    length = (dims(region.operands[3]) or (1,))[0] or 1
    return tuple(float(i) for i in range(length))


def _sizes(graph: TileGraph, region: Region, dims: Dims) -> Vector | None:
    """The result's dims for Resize if known, else the operand's."""
    for shape in (dims(region.results[0]), dims(region.operands[0])):
        if shape is not None and None not in shape:
            return tuple(float(d or 0) for d in shape)
    return None


def _scales(graph: TileGraph, region: Region, dims: Dims) -> Vector | None:
    """The ratio of result to data dims if known, else 2 for spatial axes."""
    data, result = dims(region.operands[0]), dims(region.results[0])
    if data is None:
        return None
    if result is not None and None not in (*data, *result) and all(data):
        return tuple((r or 0) / (d or 1) for d, r in zip(data, result, strict=True))
    return tuple(2.0 if i >= 2 else 1.0 for i in range(len(data)))


def _repeats(graph: TileGraph, region: Region, dims: Dims) -> Vector | None:
    data, result = dims(region.operands[0]), dims(region.results[0])
    if data is None or result is None or None in (*data, *result) or not all(data):
        return (1.0,)
    return tuple(float((r or 0) // (d or 1)) for d, r in zip(data, result, strict=True))


def _steps_of(operand: int, axis: int) -> Exact:
    """Full sequence lengths: a dim of another operand."""

    def wanted(graph: TileGraph, region: Region, dims: Dims) -> Vector | None:
        limit = _dim(operand, axis)(graph, region, dims)
        return None if limit is None else (float(limit),)

    return wanted


def _total(graph: TileGraph, region: Region, dims: Dims) -> float | None:
    """Number of keys of a GroupQueryAttention: cached and new ones."""
    past, query = dims(region.operands[3]) or (), dims(region.operands[0]) or ()
    if len(past) != 4 or len(query) != 3 or past[2] is None or query[1] is None:
        return None
    return float(past[2] + query[1])


def _seqlens(graph: TileGraph, region: Region, dims: Dims) -> Vector | None:
    total = _total(graph, region, dims)
    return None if total is None else (total - 1,)


def _keys(graph: TileGraph, region: Region, dims: Dims) -> Vector | None:
    total = _total(graph, region, dims)
    return None if total is None else (total,)


INDEX: Mapping[tuple[str, int], ExclusiveLimit] = MappingProxyType(
    {
        ("Gather", 1): _dim(0),
        ("GatherElements", 1): _dim(0),
        ("GatherND", 1): _smallest,
        ("ScatterElements", 1): _dim(0),
        ("ScatterND", 1): _smallest,
        ("OneHot", 0): _depth,
        ("RoiAlign", 2): _dim(0),
        ("NegativeLogLikelihoodLoss", 1): _dim(0, 1),
        ("SoftmaxCrossEntropyLoss", 1): _dim(0, 1),
        ("RotaryEmbedding", 1): _cached_positions(2),
        ("RotaryEmbedding", 3): _cached_positions(1),
        ("GatherBlockQuantized", 1): _dim(0),
        ("EmbedLayerNormalization", 0): _dim(2),
        ("EmbedLayerNormalization", 1): _dim(4),
        ("EmbedLayerNormalization", 8): _dim(3),
        ("BitShift", 1): lambda graph, region, dims: 8,
    }
)

EXACT: Mapping[tuple[str, int], Exact] = MappingProxyType(
    {
        ("Reshape", 1): _reshape,
        ("Expand", 1): _output(1.0),
        ("ConstantOfShape", 0): _output(2.0),
        ("Tile", 1): _repeats,
        ("Slice", 1): _always(0.0),
        ("Slice", 2): _always(_END),
        ("Slice", 3): _axes,
        ("Slice", 4): _always(1.0),
        ("Range", 0): _always(0.0),
        ("Range", 1): _output(8.0),
        ("Range", 2): _always(1.0),
        ("TopK", 1): _always(1.0),
        ("OneHot", 1): _always(8.0),
        ("Trilu", 1): _always(0.0),
        ("CumSum", 1): _always(0.0),
        ("Pad", 1): _always(0.0),
        ("Resize", 1): _scales,
        ("Resize", 2): _scales,
        ("Resize", 3): _sizes,
        ("Upsample", 1): _scales,
        ("Squeeze", 1): _always(0.0),
        ("Unsqueeze", 1): _always(0.0),
        ("ReduceSum", 1): _always(-1.0),
        ("ReduceMean", 1): _always(-1.0),
        ("NonMaxSuppression", 2): _always(10.0),
        ("NonMaxSuppression", 3): _always(0.5),
        ("NonMaxSuppression", 4): _always(0.1),
        ("Clip", 1): _always(-1.0),
        ("Clip", 2): _always(1.0),
        ("Dropout", 1): _always(0.5),
        ("Dropout", 2): _always(0.0),
        ("Loop", 0): _always(3.0),
        ("Loop", 1): _always(1.0),
        ("QuantizeLinear", 1): _always(0.05),
        ("DequantizeLinear", 1): _always(0.05),
        ("QuantizeLinear", 2): _always(0.0),
        ("DequantizeLinear", 2): _always(0.0),
        ("RNN", 4): _steps_of(0, 0),
        ("LSTM", 4): _steps_of(0, 0),
        ("GRU", 4): _steps_of(0, 0),
        ("GroupQueryAttention", 5): _seqlens,
        ("GroupQueryAttention", 6): _keys,
    }
)

Range = Callable[[TileGraph, Region, Dims], tuple[int | None, int | None]]
"""The smallest integer and the exclusive limit; None for no limit."""


def _from(low: int | None) -> Range:
    return lambda graph, region, dims: (low, None)


def _up_to_dim(graph: TileGraph, region: Region, dims: Dims) -> tuple[int | None, int | None]:
    limit = _dim(0, -1)(graph, region, dims)
    return 1, None if limit is None else limit + 1


ADJUSTABLE: Mapping[tuple[str, int], Range] = MappingProxyType(
    {
        ("Slice", 1): _from(None),
        ("Slice", 2): _from(None),
        ("Slice", 4): _from(1),
        ("Range", 0): _from(None),
        ("Range", 1): _from(None),
        ("TopK", 1): _up_to_dim,
        ("OneHot", 1): _from(1),
        ("Trilu", 1): _from(None),
        ("Pad", 1): _from(0),
        ("NonMaxSuppression", 2): _from(0),
        ("Loop", 0): _from(0),
    }
)
"""Operands in :data:`EXACT` that may have other numbers too, with the range of these numbers."""

POSITIVE = frozenset(
    {("Div", 1), ("Mod", 1), ("Sqrt", 0), ("Log", 0), ("Reciprocal", 0), ("BatchNormalization", 4)}
)
"""Operands that should be positive; integers are drawn from ``[1, 8)``."""

FLAGS = frozenset({("If", 0), ("And", 0), ("And", 1), ("Or", 0), ("Or", 1), ("Compress", 1)})
"""Operands that are conditions or masks."""
