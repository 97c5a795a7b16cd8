"""Fuse two elementwise regions into one with two results if that saves reading a value.

y = f(x), z = g(y), y has other readers   -> FusedElementwise(x) giving y and z
y = f(x), z = g(x, r)                     -> FusedElementwise(x, r) giving y and z
"""

from __future__ import annotations

from collections.abc import Iterator

from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.index_map import IndexMap
from tracea_graph.passes.pointwise.compose_elementwise import fuse_siblings, results_fit
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["HorizontalFusion"]

_MOST_READERS = 8
"""Readers above which a value counts as shared by the whole model; they are not paired."""


class HorizontalFusion:
    """Fuse two elementwise regions into one that writes both results.

    The first region computes an operand of the second, or both read one value in the same order.
    """

    name = "horizontal-fusion"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not _plain(region):
            return
        for other in _neighbours(graph, region):
            pair = (region, other) if region.results[0] in other.operands else (other, region)
            joined = fuse_siblings(graph, *pair)
            if joined is None:
                continue
            results = (*pair[0].results, *pair[1].results)
            if not results_fit(
                graph, joined.params, joined.names, [graph.spec(v) for v in results]
            ):
                continue
            new = fused_region(self.name, joined.params, joined.names, results, pair)
            yield Proposal(self.name, pair, (new,))


def _plain(region: Region) -> bool:
    params = region.params
    return (
        isinstance(params, ElementwiseParams)
        and not params.target
        and not params.moves_only
        and len(region.results) == 1
    )


def _neighbours(graph: TileGraph, region: Region) -> list[Region]:
    """Return elementwise regions of equal shape that write or read an operand of this region."""
    near: dict[str, Region] = {}
    shape = graph.spec(region.results[0]).shape
    for value, index_map in zip(region.operands, region.params.views, strict=True):
        first = graph.producer(value)
        if first is not None and index_map == IndexMap():
            near[first.id] = first
        uses = graph.uses(value)
        for use in uses if len(uses) <= _MOST_READERS else ():
            params = use.region.params
            if isinstance(params, ElementwiseParams) and params.views[use.operand] == index_map:
                near[use.region.id] = use.region
    near.pop(region.id, None)
    return [r for r in near.values() if _plain(r) and graph.spec(r.results[0]).shape == shape]
