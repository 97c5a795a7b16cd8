"""Matrices that were chosen to become others, where the caller accepted an error.

low-rank    FusedGemm(x, [K,N])    ->    FusedGemm(FusedGemm(x, [K,R]), [R,N])
prune       FusedGemm(x, panels)   ->    FusedGemm(x, stored blocks, map)

What was chosen for which matrix is decided before planning, from calibration data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Weight
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.panels import BLOCKS, PANEL, PANELS, SCATTER_SINCE, pack_panels
from tracea_graph.ops.weights import KN, NK, WeightLayout
from tracea_graph.passes.sparse.block_sparse import skipping
from tracea_graph.passes.sparse.exact_rank import LOW_RANK, two_products
from tracea_graph.passes.sparse.zeros import active_places
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["PRUNED", "STORED", "Compressed", "FactorOnRequest", "PruneBlocks", "pruned_for"]

Floats = npt.NDArray[np.floating[Any]]
PRUNED = "prune"
STORED: tuple[WeightLayout, ...] = (PANELS, NK, KN)
"""Layouts of a product's matrix that two factors may take the place of."""
_LEAST_SKIPPED = 0.1
"""Share of zero blocks below which storing only the others gains nothing."""


@dataclass(frozen=True)
class Compressed:
    """What stands for a matrix ``[K, N]``: two factors ``[K, R]``, ``[R, N]``, or itself with
    zeros; and the error predicted for the model's outputs."""

    matrices: tuple[Floats, ...]
    error: float


@dataclass(frozen=True)
class FactorOnRequest:
    """A product whose matrix two factors were chosen for."""

    chosen: Mapping[str, Compressed]
    name: str = LOW_RANK

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        found = chosen_for(self.chosen, region, STORED, 2)
        if found is None or region.rule == self.name:
            return
        shape = graph.spec(region.results[0]).shape
        if shape is None:
            yield Miss(self.name, region.id, f"the rank of {region.results[0]!r} is not known")
            return
        a, b = found.matrices
        yield two_products(self.name, region, a, b, shape[:-1], found.error)


@dataclass(frozen=True)
class PruneBlocks:
    """A product whose matrix was pruned stores the blocks that are left, if that is less."""

    chosen: Mapping[str, Compressed]
    blocks: tuple[int, ...] = BLOCKS
    name: str = PRUNED

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if (found := pruned_for(self.chosen, region)) is None:
            return
        if graph.opset < SCATTER_SINCE:
            reason = f"opset {graph.opset} has no ScatterND; {SCATTER_SINCE} is the first"
            yield Miss(self.name, region.id, reason)
            return
        (matrix,) = found.matrices
        panels = pack_panels(matrix)
        zeros = ~np.any(panels, axis=2)
        if zeros.mean() < _LEAST_SKIPPED:
            reason = f"the zeros of {region.operands[1]!r} do not fill runs of {PANEL} columns"
            yield Miss(self.name, region.id, reason)
            return
        name = f"{region.operands[1]}_pruned"
        weight = Weight(name, DType.F32, panels.shape, lambda: panels)
        for block in self.blocks:
            places = active_places(zeros, block)
            if len(places) * block <= (1 - _LEAST_SKIPPED) * zeros.size:
                yield skipping(self.name, region, weight, block, places, found.error)


def chosen_for(
    chosen: Mapping[str, Compressed], region: Region, layouts: Sequence[WeightLayout], count: int
) -> Compressed | None:
    """So many matrices, if they were chosen for that of a product in one of some layouts."""
    params = region.params
    if not isinstance(params, GemmParams) or params.layout not in layouts:
        return None
    found = chosen.get(region.operands[1])
    return found if found is not None and len(found.matrices) == count else None


def pruned_for(chosen: Mapping[str, Compressed], region: Region) -> Compressed | None:
    """The matrix with zeros that was chosen for that of a product in panels, if one was."""
    return chosen_for(chosen, region, STORED[:1], 1)
