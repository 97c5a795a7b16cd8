"""Refuse models whose values exceed the memory limit; sizes are computed, nothing is allocated.

A damaged or hostile file of a few bytes can ask for a value of terabytes (a Pad, an Expand, an
input's dims); some systems hand out such memory until there is none left.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter

from tracea_graph.check.bindings import Binding
from tracea_graph.ir import TensorSpec, evaluate, symbols_of
from tracea_graph.ttg.graph import TileGraph

__all__ = ["oversized"]

LARGEST = 1 << 30
"""Bytes of a value that any model may have."""
TIMES = 256
"""How many times its weights' bytes a value of a larger model may have: the scores of a decoder
are 100 times as large where its window is filled."""


def oversized(
    graph: TileGraph, sizes: Sequence[Binding], values: Collection[str] | None = None
) -> str:
    """The largest of the values that is beyond :data:`LARGEST` and :data:`TIMES`, as a clause.

    ``values`` are all that the graph reads and makes, if not given.  Empty if none is; values that
    a dim unknown before the run decides about are not counted.
    """
    limit = max(LARGEST, TIMES * sum(weight.nbytes for weight in graph.weights.values()))
    if values is None:
        values = [*graph.inputs, *(v for region in graph.regions() for v in region.results if v)]
    found = [(_bytes(graph.spec(v), b.symbols), v, b.label) for b in sizes for v in values]
    count, value, label = max(found, key=itemgetter(0), default=(0, "", ""))
    if count <= limit:
        return ""
    size, most = (f"{n / 2**30:,.1f} GiB" for n in (count, limit))
    return f"the value {value!r} would take {size} with {label}, where {most} are allowed"


def _bytes(spec: TensorSpec, symbols: Mapping[str, int]) -> float:
    """Bytes of a value under these sizes; 0 where they cannot be told."""
    if spec.shape is None or spec.dtype is None:
        return 0
    if any(s not in symbols for dim in spec.shape for s in symbols_of(dim)):
        return 0
    try:
        return math.prod(evaluate(dim, symbols) for dim in spec.shape) * spec.dtype.size
    except ZeroDivisionError:
        return 0
