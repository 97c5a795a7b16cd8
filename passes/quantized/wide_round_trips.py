"""Round to 16-bit integers and back in float32, which holds all of these integers.

DequantizeLinear(QuantizeLinear(x))    -> FusedElementwise(x), if the integers have 16 bits

Kernels store and multiply integers of 8 bits; between others a product is one of float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.passes.quantized.scale_checks import is_ordinary
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    is_f32,
    only_read_by,
    operand_producer,
)
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Match, Rewrite, Rule, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["WIDE_ROUND_TRIP"]

_RANGES: Mapping[DType, tuple[float, float]] = MappingProxyType(
    {DType.U16: (0.0, 65535.0), DType.I16: (-32768.0, 32767.0)}
)


def _dequantized(op: Any, q: Any) -> Any:
    return op.DequantizeLinear(q, ...)


def _check(m: Match) -> str | None:
    graph, rounds = m.graph, operand_producer(m.graph, m.values["q"], "QuantizeLinear")
    if rounds is None or m.spec("q").dtype not in _RANGES:
        return unsuited_reason("its operand is not rounded to 16 bits here")
    if _scale(graph, rounds) is None or _scale(graph, m.root) is None:
        return "its scales or zero points are not one number each"
    x = rounds.operands[0]
    if not is_f32(graph, x, m.root.results[0]) or graph.weight(x) is not None:
        return "what it rounds is constant, or not float32"
    if attribute(rounds, "precision", 0) not in (0, DType.F32.onnx) or graph.opset < 11:
        return "it rounds in another precision"
    return None


def _rewrite(m: Match) -> Rewrite | str:
    """Round in float32; other readers of the integers keep the QuantizeLinear."""
    graph, rounds = m.graph, operand_producer(m.graph, m.values["q"], "QuantizeLinear")
    before = None if rounds is None else _scale(graph, rounds)
    after, dtype = _scale(graph, m.root), m.spec("q").dtype
    if rounds is None or before is None or after is None or dtype is None:
        return "its operand is not rounded by constants"
    steps = (
        Step("div", (0, before[0])), Step("round", (1,)), Step("add", (2, before[1])),
        Step("saturate", (3, *_RANGES[dtype])), Step("sub", (4, after[1])),
        Step("mul", (5, after[0])),
    )  # fmt: skip
    params = ElementwiseParams(Chain((FULL,), steps, (6,)))
    alone = only_read_by(graph, rounds.results[0], m.root)
    old = (rounds, m.root) if alone else (m.root,)
    new = fused_region(WIDE_ROUND_TRIP.name, params, (rounds.operands[0],), m.root.results, old)
    return Rewrite((new,), old)


def _scale(graph: TileGraph, region: Region) -> tuple[float, float] | None:
    """Return the scale and zero point of a conversion, if these are one number each."""
    scale = constant_number(graph, region.operands[1])
    zero = constant_number(graph, region.operands[2]) if len(region.operands) > 2 else 0.0
    ordinary = scale is not None and is_ordinary(scale) and is_f32(graph, region.operands[1])
    return (scale, zero) if ordinary and scale is not None and zero is not None else None


WIDE_ROUND_TRIP = Rule("wide-round-trip", (_dequantized,), _rewrite, _check)
