"""Products that skip the zero blocks of their constant matrix.

FusedGemm(x, panels)    ->    FusedGemm(x, stored blocks, map)

Exact: a skipped block would have added zeros, and the kernel gives NaN where a row holds a NaN or
an infinity that a zero would have met.  One proposal per block size; the cost model chooses, and
timing decides against the dense form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tracea_graph.ir import DType, Weight
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.panels import BLOCKS, PANEL, PANELS, SCATTER_SINCE, Blocks, pack_blocks
from tracea_graph.passes.regions import fused
from tracea_graph.passes.sparse.exact_rank import FACTORED, LOW_RANK
from tracea_graph.passes.sparse.structure import WeightScan
from tracea_graph.passes.sparse.zeros import Places, active_places
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["SkipZeroBlocks", "own_panels", "skipping", "sources_of", "without_scatter"]

_MOST_STORED = 0.9
"""Share of blocks above which skipping the others is not worth a proposal."""


@dataclass(frozen=True)
class SkipZeroBlocks:
    """A product over packed float32 weights leaves out what is zero in them."""

    scan: WeightScan = field(default_factory=WeightScan)
    blocks: tuple[int, ...] = BLOCKS
    name: str = "zero-blocks"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        panels = own_panels(graph, region)
        if panels is None:
            return
        zeros = self.scan.zeros.zeros(sources_of(graph, region), panels.array)
        if not zeros.size:
            return
        if reason := without_scatter(graph):
            yield Miss(self.name, region.id, reason)
            return
        maps = {block: active_places(zeros, block) for block in self.blocks}
        stored = {b: len(places) * b / zeros.size for b, places in maps.items()}
        if min(stored.values()) > _MOST_STORED:
            reason = f"the zeros of {panels.name!r} do not fill runs of {PANEL} columns"
            yield Miss(self.name, region.id, reason)
            return
        for block, places in maps.items():
            if stored[block] <= _MOST_STORED:
                yield skipping(self.name, region, panels, block, places)


def skipping(
    rule: str, region: Region, panels: Weight, block: int, places: Places, error: float = 0.0
) -> Proposal:
    """The product over the blocks at ``places``; of a zero matrix one block stays."""
    if not len(places):
        places = np.zeros(1, np.int32)
    params: GemmParams = dataclasses.replace(region.params, layout=Blocks(block))
    blocks = _stored(panels, places, block)
    at = Weight(f"{blocks.name}_map", DType.I32, places.shape, lambda: places)
    operands = (region.operands[0], blocks.name, *region.operands[2:], at.name)
    new = fused(rule, params, operands, region.results, [region])
    weights = {w.name: w for w in (blocks, at)}
    return Proposal(rule, (region,), (new,), weights=weights, error=error)


def own_panels(graph: TileGraph, region: Region) -> Weight | None:
    """The packed float32 panels of a product, while they hold the model's own numbers."""
    params = region.params
    if not isinstance(params, GemmParams) or params.layout != PANELS:
        return None
    if region.rule in (FACTORED, LOW_RANK) or not sources_of(graph, region):
        return None
    return graph.weight(region.operands[1])


def without_scatter(graph: TileGraph) -> str:
    """Why bodies could not put stored numbers in their places, or nothing."""
    if graph.opset >= SCATTER_SINCE:
        return ""
    return f"opset {graph.opset} has no ScatterND; {SCATTER_SINCE} is the first"


def sources_of(graph: TileGraph, region: Region) -> list[Weight]:
    """The model's own constants a product's panels are made from."""
    values = (n.inputs[1] for n in region.nodes if n.op in ("MatMul", "Gemm"))
    found = [graph.weight(v) for v in values]
    return [w for w in found if w is not None]


def _stored(panels: Weight, places: Places, block: int) -> Weight:
    """The blocks at some places; nothing is kept between calls."""
    shape = (len(places), block, PANEL)
    return Weight(
        f"{panels.name}_blocks{block}",
        DType.F32,
        shape,
        lambda: pack_blocks(np.asarray(panels.array(), np.float32), places, block),
    )
