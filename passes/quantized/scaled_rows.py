"""Recognise rows of 8-bit floats that have a computed scale each.

Mul(Cast(q), scales)                                  scales are [..., 1]
DequantizeLinear(q, scales, axis=-1, block_size=K)    the same, since opset 21
Cast(q)                                               without scales, which follow the product
"""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.ir import DType
from tracea_graph.ops.chain import FLOATS8
from tracea_graph.passes.quantized.scale_checks import are_zero
from tracea_graph.passes.region_helpers import attribute, operand_producer
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ScaledRows", "scale_each_row", "scaled_rows"]


@dataclass(frozen=True)
class ScaledRows:
    """Rows ``codes`` of 8-bit floats, and their scales ``[..., 1]``, "" if there are none.

    ``regions`` are those that convert them to float32, in graph order.
    """

    codes: str
    scales: str
    regions: tuple[Region, ...]


def scaled_rows(graph: TileGraph, value: str) -> ScaledRows | None:
    """Return the rows of 8-bit floats of which ``value`` is the float32 form, or None."""
    made = graph.producer(value)
    if made is None or made.fused or graph.spec(value).dtype is not DType.F32:
        return None
    if made.op == "Cast":
        codes = made.operands[0]
        float8 = graph.spec(codes).dtype in FLOATS8 and graph.weight(codes) is None
        return ScaledRows(codes, "", (made,)) if float8 else None
    if made.op == "DequantizeLinear":
        codes, scales, *_ = made.operands
        rows = graph.spec(codes).dtype in FLOATS8 and scale_each_row(graph, made, codes)
        return ScaledRows(codes, scales, (made,)) if rows else None
    if made.op != "Mul":
        return None
    for x, scales in (made.operands, made.operands[::-1]):
        cast = operand_producer(graph, x, "Cast")
        plain = scaled_rows(graph, x) if cast is not None else None
        if plain is not None and _one_each(graph, scales, x):
            return ScaledRows(plain.codes, scales, (*plain.regions, made))
    return None


def scale_each_row(graph: TileGraph, region: Region, x: str) -> bool:
    """Whether a QuantizeLinear or DequantizeLinear has a computed scale for each row of ``x``."""
    scales, zero = (*region.operands[1:], "")[:2]
    shape = graph.spec(x).shape
    if not shape or graph.weight(scales) is not None or not _one_each(graph, scales, x):
        return False
    last = int(attribute(region, "axis", 1)) % len(shape) == len(shape) - 1  # type: ignore[call-overload]
    return last and attribute(region, "block_size", 0) == shape[-1] and are_zero(graph, zero)


def _one_each(graph: TileGraph, scales: str, x: str) -> bool:
    """Whether ``scales`` are float32 and one for each row of ``x``."""
    spec, shape = graph.spec(scales), graph.spec(x).shape
    return spec.dtype is DType.F32 and bool(shape) and spec.shape == (*(shape or ())[:-1], 1)
