"""Round the values between convolutions of integers too, for models without custom ops.

v = op(…)    ->    all readers of v read DequantizeLinear(QuantizeLinear(v))

ONNX Runtime computes an operator in integers only if it lies between such conversions.  Only
values that reach another convolution or product are rounded: results behind the last one keep
their precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tracea_graph.passes.quantized.calibrated_rounding import UNCALIBRATED, CalibratedRounding
from tracea_graph.passes.quantized.conv_int8 import RoundedValue, why_no_integers
from tracea_graph.passes.region_helpers import is_f32, operand_producer
from tracea_graph.reason_codes import other_readers_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["RoundResults", "values_between"]

_COMPUTED = ("Add", "Concat", "Conv", "GlobalAveragePool", "Mul", "Sigmoid")
_CLAMPS = ("Clip", "Relu")
"""Operators that ONNX Runtime folds into the range of the integers quantized after them."""
_THROUGH = (*_CLAMPS, "MaxPool")
"""Operators after which a value is rounded instead of before them, if they alone read it."""
_MOST_STEPS = 48
"""Number of operators searched between a value and a convolution."""


def values_between(graph: TileGraph) -> Iterator[str]:
    """Yield, in graph order, the values that lie between operators to compute in integers."""
    for region in graph.regions():
        if region.fused or region.op not in (*_COMPUTED, *_CLAMPS) or len(region.results) != 1:
            continue
        value = region.results[0]
        first = _clamped(graph, region)
        known = first.op in _COMPUTED and is_f32(graph, value) and graph.spec(value).shape
        if known and not _goes_through(graph, region) and _reaches(graph, region):
            yield value


def _clamped(graph: TileGraph, region: Region) -> Region:
    """Return the region that computes the operand of a clamp; for other regions, the region."""
    source = graph.producer(region.operands[0]) if region.op in _CLAMPS else None
    return source or region


def _goes_through(graph: TileGraph, region: Region) -> bool:
    """Return whether the only reader of a region's result is a clamp or a pool."""
    uses = graph.uses(region.results[0])
    return len(uses) == 1 and uses[0].region.op in _THROUGH


def _reaches(graph: TileGraph, region: Region) -> bool:
    """Return whether a region's result reaches a product or convolution that may use integers."""
    todo, seen = graph.readers(region), set[str]()
    while todo and len(seen) < _MOST_STEPS:
        reader = todo.pop()
        if reader.id in seen or reader.fused:
            continue
        if reader.op == "Conv" and why_no_integers(graph, reader) is None:
            return True
        if reader.op in ("Gemm", "MatMul") and graph.weight(reader.operands[1]) is not None:
            return True
        seen.add(reader.id)
        todo += graph.readers(reader)
    return False


@dataclass(frozen=True)
class RoundResults:
    """Round a calibrated value for all its readers if its producer reads dequantized values."""

    calibrated: Mapping[str, CalibratedRounding] = field(default_factory=lambda: UNCALIBRATED)
    name: str = "round-results"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in (*_COMPUTED, *_CLAMPS) or region.fused or len(region.results) != 1:
            return
        value, first = region.results[0], _clamped(graph, region)
        chosen = self.calibrated.get(value, CalibratedRounding(0.0))
        rounded = any(operand_producer(graph, v, "DequantizeLinear") for v in first.operands if v)
        if not chosen.scale or not rounded:
            yield Miss(
                self.name,
                region.id,
                unsuited_reason(
                    "it reads no dequantized value, or calibration chose no scale for its result"
                ),
            )
            return
        readers = [r for r in graph.readers(region) if r.op != "QuantizeLinear"]
        if any(r.fused or value in r.captures for r in readers) or _goes_through(graph, region):
            yield Miss(self.name, region.id, other_readers_reason(value))
            return
        if not readers:
            yield Miss(
                self.name,
                region.id,
                unsuited_reason("all readers of its result already read the rounded form"),
            )
            return
        made = RoundedValue(value, graph.spec(value), region.node.label)
        shared = made.fixed(chosen)
        new = tuple(_reading(r, value, made.rounded) for r in readers)
        yield Proposal(
            self.name, tuple(readers), new, made.specs, made.weights, step=True, shared=shared
        )


def _reading(region: Region, old: str, new: str) -> Region:
    operands = tuple(new if v == old else v for v in region.operands)
    node = replace(region.node, inputs=operands, source=None)
    return replace(region, operands=operands, nodes=(node,))
