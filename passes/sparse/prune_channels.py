"""Remove input channels that compression chose to prune from a product.

FusedGemm(FusedGemm(x, A), B)    ->    both with fewer columns in A and fewer rows in B
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tracea_graph.passes.sparse.compressed import Compressed, pruned_for
from tracea_graph.passes.sparse.dead_channels import (
    channel_producers,
    remove_channels,
    whole_vectors,
)
from tracea_graph.rewrite import Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["PruneChannels"]


@dataclass(frozen=True)
class PruneChannels:
    """Match a product whose chosen matrix has rows of zeros, and the producers of its channels."""

    chosen: Mapping[str, Compressed]
    name: str = "prune-channels"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal]:
        if (found := pruned_for(self.chosen, graph, region)) is None:
            return
        (matrix,) = found.matrices
        kept = whole_vectors(np.any(matrix, axis=1))
        makers = channel_producers(graph, region)
        if kept.all() or not makers:
            return
        nothing = np.zeros(len(kept))
        yield remove_channels(self.name, graph, makers, region, kept, nothing, matrix, found.error)
