"""What a quantised model computes before it rounds: that stays as it is.

A sum in another order is off by a few units in the last place.  Where it is rounded to eight bits
afterwards, now and then one of them tips a number over, by a share of about 1/255: far more than
is allowed, and no made-up input tells when.  ONNX Runtime also knows operators between
DequantizeLinear and QuantizeLinear as ones over integers, as long as it sees all of them.
"""

from __future__ import annotations

from tracea_graph.ttg import TileGraph

__all__ = ["rounded_later"]

_QUANTISERS = frozenset(
    {
        "QuantizeLinear", "DynamicQuantizeLinear", "com.microsoft::QuantizeLinear",
        "com.microsoft::DynamicQuantizeMatMul", "com.microsoft::DynamicQuantizeLSTM",
    }
)  # fmt: skip


def rounded_later(graph: TileGraph) -> dict[str, str]:
    """The values that reach a quantiser, each with the reason why what writes it stays."""
    found: dict[str, str] = {}
    quantisers = [r for r in graph.regions() if r.op in _QUANTISERS]
    for quantiser in quantisers:
        waiting = [quantiser.operands[0]]
        while waiting:
            value = waiting.pop()
            producer = graph.producer(value) if value not in found else None
            if producer is None:
                continue
            why = f"{quantiser.operands[0]!r} is rounded to integers, which one bit can tip over"
            found |= dict.fromkeys(producer.writes, why)
            waiting += producer.reads
    return found
