"""Remove input channels that compression chose to prune from a product.

FusedGemm(FusedGemm(x, A), B)    ->    both with fewer columns in A and fewer rows in B
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tracea_graph.ops.gemm import GemmParams
from tracea_graph.passes.sparse.chosen_compression import (
    CompressedMatrix,
    pruned_for,
    reason_not_compressed,
)
from tracea_graph.passes.sparse.dead_channels import (
    channel_producers,
    remove_channels,
    whole_vectors,
)
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["PruneChannels"]


@dataclass(frozen=True)
class PruneChannels:
    """Remove the channels that are multiplied by rows of zeros of a product's chosen matrix.

    The producers of the channels then compute only the others.
    """

    chosen: Mapping[str, CompressedMatrix]
    name: str = "prune-channels"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not isinstance(region.params, GemmParams):
            return
        if (found := pruned_for(self.chosen, graph, region)) is None:
            yield Miss(self.name, region.id, reason_not_compressed(region.operands[1]))
            return
        (matrix,) = found.matrices
        kept = whole_vectors(np.any(matrix, axis=1))
        makers = channel_producers(graph, region)
        if kept.all() or not makers:
            why = f"no product with removable channels computes {region.operands[0]!r}"
            few = Reason(f"too few rows of {region.operands[1]!r} are zero", Code.DENSE_WEIGHTS)
            yield Miss(self.name, region.id, few if kept.all() else why)
            return
        nothing = np.zeros(len(kept))
        yield remove_channels(self.name, graph, makers, region, kept, nothing, matrix, found.error)
