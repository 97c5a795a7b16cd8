"""Fuse elementwise producers into their consumers.

elementwise(elementwise(a, b), c)   ->   FusedElementwise(a, b, c)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tracea_graph.ir import DType
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.passes.pointwise.bound_expressions import inline_producer, matrix_broadcast_kind
from tracea_graph.passes.pointwise.read_elementwise import read_chain
from tracea_graph.passes.region_helpers import fused_region, same_shape
from tracea_graph.reason_codes import Code, Reason, other_readers_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["VerticalFusion"]


_MOST_STEPS = 8
"""Number of elementwise operators to go back through in search of a convolution."""
_LONGEST = 256
"""Most steps of a chain.

Beside so many, the load and the store that fusing saves do not count, and each fusion copies all
steps: a graph of thousands would take quadratic time.
"""


def _belongs_to_conv(graph: TileGraph, first: Region) -> bool:
    """Return whether a convolution of integers can store the region's result in 8 bits."""
    if graph.spec(first.results[0]).dtype not in (DType.U8, DType.I8):
        return False
    found: Region | None = first
    for _ in range(_MOST_STEPS):
        if found is None or found.op == "FusedConvInteger":
            break
        chain = read_chain(graph, found)
        found = graph.producer(chain[1][0]) if chain is not None else None
    return found is not None and found.op == "FusedConvInteger"


class VerticalFusion:
    """Fuse two elementwise regions, the first read only by the second, into one loop."""

    name = "vertical-fusion"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        bound_chain = read_chain(graph, region)
        if bound_chain is None or len(region.results) != 1:
            return
        result = graph.spec(region.results[0])
        for value in dict.fromkeys(bound_chain[1]):
            first = graph.producer(value)
            inner = read_chain(graph, first) if first is not None else None
            if first is None or inner is None or len(first.results) != 1:
                continue
            uses = graph.uses(value)
            if graph.is_output(value) or any(u.region.id != region.id for u in uses):
                yield Miss(
                    self.name,
                    region.id,
                    other_readers_reason(value),
                )
                continue
            if not same_shape(graph.spec(value), result):
                yield Miss(self.name, region.id, f"{value!r} is broadcast")
                continue
            if _belongs_to_conv(graph, first):
                yield Miss(self.name, region.id, f"a convolution can store {value!r} in 8 bits")
                continue
            if len(bound_chain[0].steps) + len(inner[0].steps) > _LONGEST:
                yield Miss(self.name, region.id, f"the chain would have over {_LONGEST} steps")
                continue
            if (joined := inline_producer(bound_chain, value, inner)) is None:
                yield Miss(
                    self.name,
                    region.id,
                    Reason("the chain would have too many operands", Code.TOO_MANY_OPERANDS),
                )
                continue
            chain, names = joined
            kinds = tuple(matrix_broadcast_kind(graph.spec(n), result) for n in names)
            params = ElementwiseParams(dataclasses.replace(chain, operands=kinds))
            new = fused_region(self.name, params, names, region.results, (first, region))
            yield Proposal(self.name, (first, region), (new,))
            return
