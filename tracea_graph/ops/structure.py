"""Structural hashes of a graph's values: what computes them, whatever anything is called."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from tracea_graph.ir import Weight
from tracea_graph.ops.body import attribute_text
from tracea_graph.ttg import TileGraph

__all__ = ["graph_key", "value_keys"]

_LITERAL = 64
"""Constants of at most so many elements count with their numbers, larger ones by their shape."""


def value_keys(graph: TileGraph) -> dict[str, str]:
    """A key for every value of an imported graph, over all that it is computed from.

    Inputs count by position, dtype and shape; names count nowhere, nor do trained weights.
    What is computed twice alike has the same key with a number behind it, in graph order.
    """
    keys = {v: _hash("input", i, graph.spec(v)) for i, v in enumerate(graph.inputs)}
    keys |= {name: _weight_key(weight) for name, weight in graph.weights.items()}
    seen: dict[str, int] = {}
    for region in graph.regions():
        attrs = sorted((k, attribute_text(v)) for k, v in region.node.attrs.items())
        reads = [keys.get(v, "") for v in (*region.operands, *region.captures)]
        for i, value in enumerate(region.results):
            key = _hash(region.op, attrs, reads, i)
            seen[key] = seen.get(key, 0) + 1
            keys[value] = key if seen[key] == 1 else f"{key}.{seen[key]}"
    return keys


def graph_key(graph: TileGraph, keys: Mapping[str, str]) -> str:
    """A key of the whole graph: its opset and all it computes."""
    return _hash(graph.opset, [keys.get(v, "") for v in graph.outputs])


def _weight_key(weight: Weight) -> str:
    return _hash("weight", weight.digest if weight.count <= _LITERAL else weight.spec)


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr([str(part) for part in parts]).encode()).hexdigest()[:16]
