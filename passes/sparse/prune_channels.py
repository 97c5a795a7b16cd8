"""Products whose matrix was chosen to do without some of the channels it reads.

FusedGemm(FusedGemm(x, A), B)    ->    the same with fewer columns in A and fewer rows in B
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
    """A product with rows of zeros in the matrix chosen for it, and what makes its channels."""

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
