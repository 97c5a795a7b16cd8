"""What a quantised model computes before it rounds, and one with trees before those: that stays.

A sum in another order is off by a few units in the last place.  Where it is rounded to eight bits
afterwards, now and then one of them tips a number over, by a share of about 1/255: far more than
is allowed, and no made-up input tells when.  ONNX Runtime also knows operators between
DequantizeLinear and QuantizeLinear as ones over integers, as long as it sees all of them.

Trees, which compare numbers with thresholds, are as easily tipped over.

Numbers that are handed out in a map stay for a like reason: they become Python's own, which are
compared as they are, not within a tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tracea_graph.ttg import TileGraph

__all__ = ["rounded_later"]

_ROUNDED = "is rounded to integers, which one bit can tip over"
_COMPARED = "is compared with thresholds, which one bit can tip over"
_EXACT: Mapping[str, str] = MappingProxyType(
    {
        "QuantizeLinear": _ROUNDED,
        "DynamicQuantizeLinear": _ROUNDED,
        "com.microsoft::QuantizeLinear": _ROUNDED,
        "com.microsoft::DynamicQuantizeMatMul": _ROUNDED,
        "com.microsoft::DynamicQuantizeLSTM": _ROUNDED,
        "ai.onnx.ml::Binarizer": _COMPARED,
        "ai.onnx.ml::TreeEnsemble": _COMPARED,
        "ai.onnx.ml::TreeEnsembleClassifier": _COMPARED,
        "ai.onnx.ml::TreeEnsembleRegressor": _COMPARED,
        "ai.onnx.ml::ZipMap": "is handed out in a map, which is compared as it is",
    }
)
"""Operators whose first operand is to be what it was, bit by bit, and why."""


def rounded_later(graph: TileGraph) -> dict[str, str]:
    """The values that reach a quantiser, a tree or a map, each with why what writes it stays."""
    found: dict[str, str] = {}
    for region in graph.regions():
        if (reason := _EXACT.get(region.op)) is None:
            continue
        waiting = [region.operands[0]]
        while waiting:
            value = waiting.pop()
            producer = graph.producer(value) if value not in found else None
            if producer is None:
                continue
            found |= dict.fromkeys(producer.writes, f"{region.operands[0]!r} {reason}")
            waiting += producer.reads
    return found
