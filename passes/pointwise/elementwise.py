"""Convert single elementwise operators, and fuse sums into the norms that read them.

any elementwise operator                         -> FusedElementwise
FusedNorm(elementwise(a, b))                     -> FusedNorm(a, b, prologue)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracea_graph.ops.chain import FULL
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.passes.pointwise.read_elementwise import read_chain
from tracea_graph.passes.region_helpers import broadcasts_over_matrix, fused_region
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ElementwiseOp", "NormPrologue"]


class ElementwiseOp:
    """Convert one elementwise operator to a chain."""

    name = "elementwise-op"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.fused or (bound_chain := read_chain(graph, region)) is None:
            return
        chain, names = bound_chain
        new = fused_region(self.name, ElementwiseParams(chain), names, region.results, [region])
        yield Proposal(self.name, (region,), (new,))


class NormPrologue:
    """Fuse an elementwise op into the normalisation that reads its result.

    The normalisation then computes the op row by row.
    """

    name = "norm-prologue"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not isinstance(region.params, NormParams) or region.params.prologue is not None:
            return
        value = region.operands[0]
        first = graph.producer(value)
        bound_chain = read_chain(graph, first) if first is not None else None
        if first is None or bound_chain is None or len(first.results) != 1:
            why = unsuited_reason("its input does not come from an elementwise operator")
            yield Miss(self.name, region.id, why)
            return
        chain, names = bound_chain
        result = graph.spec(value)
        if FULL not in chain.operands or not all(
            broadcasts_over_matrix(graph.spec(n), result) for n in names
        ):
            yield Miss(
                self.name,
                region.id,
                "an operand of the prologue does not broadcast over rows and columns",
            )
            return
        keep = graph.is_output(value) or any(u.region.id != region.id for u in graph.uses(value))
        params = NormParams(region.params.norm, chain, keep)
        results = (region.results[0], *([value] if keep else []))
        operands = (*names, *region.operands[1:])
        new = fused_region(self.name, params, operands, results, (first, region))
        yield Proposal(self.name, (first, region), (new,))
