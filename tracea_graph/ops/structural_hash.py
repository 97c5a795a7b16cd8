"""Structural hashes of a graph's values: how each is computed, independent of names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from tracea_graph.ir import Weight
from tracea_graph.ops.function_body import attribute_text
from tracea_graph.ttg import TileGraph

__all__ = ["graph_key", "structural_keys"]

_LITERAL = 64
"""Constants of up to this many elements are hashed by value, larger ones by shape."""


def structural_keys(graph: TileGraph) -> dict[str, str]:
    """Return a key for every value of an imported graph: a hash of all that it is computed from.

    Inputs are identified by position, dtype and shape; names and trained weights do not affect
    keys.  If several values have identical computations, all but the first get a serial number, in
    graph order, at the end of their keys.
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
    """Return a key of the whole graph: its opset and all its computations."""
    return _hash(graph.opset, [keys.get(v, "") for v in graph.outputs])


def _weight_key(weight: Weight) -> str:
    return _hash("weight", weight.digest if weight.count <= _LITERAL else weight.spec)


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr([str(part) for part in parts]).encode()).hexdigest()[:16]
