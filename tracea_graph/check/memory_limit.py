"""Reject models whose values exceed the memory limit; sizes are computed, nothing is allocated.

A damaged or hostile file of a few bytes can ask for a value of terabytes (a Pad, an Expand, an
input's dims), and some systems overcommit until no memory is left.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter

from tracea_graph.check.symbol_bindings import Binding
from tracea_graph.ir import TensorSpec, evaluate, symbols_of
from tracea_graph.ttg.region_graph import TileGraph

__all__ = ["largest_oversized_value", "unpacks"]

LARGEST = 1 << 30
"""Maximum bytes of a value in any model."""
TIMES = 256
"""Maximum bytes of a value in larger models, as a multiple of the weights' bytes; attention scores
of a decoder can take 100 times the weights at full context.
"""
COPIES = 5
"""Copies of the weights that verification may hold at a time if function bodies run too."""


def largest_oversized_value(
    graph: TileGraph, sizes: Sequence[Binding], values: Collection[str] | None = None
) -> str:
    """Return a clause about the largest value above the memory limit; empty if there is none.

    The limit is the larger of :data:`LARGEST` and :data:`TIMES` times the bytes of the weights,
    but at most this machine's memory.  ``sizes`` are the bindings to check.  ``values`` are the
    values to check, by default all inputs and results; a value whose dims are unknown before the
    run is ignored.
    """
    weights = sum(weight.nbytes for weight in graph.weights.values())
    limit = min(max(LARGEST, TIMES * weights), _installed())
    if values is None:
        values = [*graph.inputs, *(v for region in graph.regions() for v in region.results if v)]
    found = [
        (_bytes(graph.spec(v), b.symbols), v, f" with {b.label}" if b.symbols else "")
        for b in sizes
        for v in values
    ]
    count, value, sized = max(found, key=itemgetter(0), default=(0, "", ""))
    if count <= limit:
        return ""
    size, most = (f"{n / 2**30:,.1f} GiB" for n in (count, limit))
    return f"the value {value!r} would take {size}{sized}, but at most {most} are allowed"


def unpacks(graph: TileGraph) -> bool:
    """Return whether memory holds a session on function bodies, which unpacks all weights.

    Beside the file's weights there are those of the original's session and their copies.
    """
    return COPIES * sum(weight.nbytes for weight in graph.weights.values()) < _installed()


def _installed() -> float:
    """Return the bytes of this machine's memory; infinity where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _bytes(spec: TensorSpec, symbols: Mapping[str, int]) -> float:
    """Return the bytes of a value under these sizes; 0 if unknown."""
    if spec.shape is None or spec.dtype is None:
        return 0
    if any(s not in symbols for dim in spec.shape for s in symbols_of(dim)):
        return 0
    try:
        return math.prod(evaluate(dim, symbols) for dim in spec.shape) * spec.dtype.size
    except ZeroDivisionError:
        return 0
