"""Matrices that were chosen to become others, where the caller accepted an error.

FusedGemm(x, [K,N])    ->    FusedGemm(FusedGemm(x, [K,R]), [R,N])

What was chosen for which matrix is decided before planning, from calibration data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weights import Plain
from tracea_graph.passes.products.matrices import own_matrix
from tracea_graph.passes.sparse.exact_rank import two_products
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["PRUNED", "Compressed", "LowRankGemm", "pruned_for"]

Floats = npt.NDArray[np.floating[Any]]
PRUNED = ("prune-blocks", "prune-channels", "prune-heads")
"""Rules that make use of zeros that were chosen."""


@dataclass(frozen=True)
class Compressed:
    """What stands for a matrix ``[K, N]``: two factors ``[K, R]``, ``[R, N]``, or itself with
    zeros; and the error predicted for the model's outputs."""

    matrices: tuple[Floats, ...]
    error: float


@dataclass(frozen=True)
class LowRankGemm:
    """A product whose matrix two factors were chosen for."""

    chosen: Mapping[str, Compressed]
    name: str = "low-rank-gemm"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        found = _chosen_for(self.chosen, region, 2)
        if found is None or region.rule == self.name:
            return
        shape = graph.spec(region.results[0]).shape
        if shape is None:
            yield Miss(self.name, region.id, f"the rank of {region.results[0]!r} is not known")
            return
        a, b = found.matrices
        yield two_products(self.name, region, a, b, shape[:-1], found.error)


def pruned_for(
    chosen: Mapping[str, Compressed], graph: TileGraph, region: Region
) -> Compressed | None:
    """The matrix with zeros that was chosen for that of a product, if one was and may stand."""
    found = _chosen_for(chosen, region, 1)
    return found if found is None or own_matrix(graph, region) is not None else None


def _chosen_for(chosen: Mapping[str, Compressed], region: Region, count: int) -> Compressed | None:
    """So many matrices, if they were chosen for that of a product."""
    params = region.params
    if not isinstance(params, GemmParams) or not isinstance(params.layout, Plain):
        return None
    found = chosen.get(region.operands[1])
    return found if found is not None and len(found.matrices) == count else None
