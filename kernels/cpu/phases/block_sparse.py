"""Skip the zero blocks of a product's constant matrix.

FusedGemm(x, [K, N])    ->    FusedGemm(x, stored blocks, map)

The result is exact: a skipped block would have added zeros, and the kernel returns NaN for rows
where a NaN or an infinity would have been multiplied by a skipped zero.  There is one proposal per
block size; the cost model picks one, and it is kept if it was measured faster than the dense form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tracea_graph.ir import DType, Weight
from tracea_graph.kernels.cpu.panels import (
    PANEL,
    SCATTER_SINCE,
    BlockSparsePanels,
    pack_block_sparse,
    pack_panels,
)
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import BLOCKS, Floats
from tracea_graph.passes.matmul.constant_matrices import (
    gemm_pattern,
    hand_tiled_matrix,
    matrix_of,
    replaceable_matrix,
    why_not_replaceable,
)
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.passes.sparse.chosen_compression import (
    CompressedMatrix,
    pruned_for,
    reason_not_compressed,
)
from tracea_graph.passes.sparse.low_rank_exact import LOW_RANK, LOW_RANK_EXACT
from tracea_graph.passes.sparse.sampled_zero_scan import nonzero_tiles, zero_map
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.reason_codes import Code, Reason, not_constant_reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.tile_set import Ids

__all__ = [
    "BlockSparseGemm", "PruneBlocks", "TiledGemm", "dense_matrix", "sources_of", "why_dense",
    "without_scatter",
]  # fmt: skip

_MOST_STORED = 0.9
"""Share of blocks above which skipping the others is not worth a proposal."""


@dataclass(frozen=True)
class BlockSparseGemm(PatternPass):
    """Store only the nonzero blocks of a product's matrix.

    If ``twice``, the rule also applies if other nodes need the dense matrix; it is then stored as
    well.
    """

    scan: WeightScan = field(default_factory=WeightScan)
    blocks: tuple[int, ...] = BLOCKS
    twice: bool = False
    name: str = "block-sparse-gemm"
    patterns = (gemm_pattern,)

    def rewrite(self, m: Match) -> Sequence[Rewrite] | str:
        graph, region = m.graph, m.root
        weight = dense_matrix(graph, region, self.twice)
        if weight is None:
            return why_dense(graph, region, self.twice)
        matrix = partial(matrix_of, region.params, weight)
        zeros = self.scan.zeros.zeros(sources_of(graph, region), weight, region.params)
        if not zeros.size:
            return Reason(f"{weight.name!r} has few zeros", Code.DENSE_WEIGHTS)
        if reason := without_scatter(graph):
            return reason
        maps = {block: nonzero_tiles(zeros, block).l1_map for block in self.blocks}
        stored = {b: len(places) * b / zeros.size for b, places in maps.items()}
        if min(stored.values()) > _MOST_STORED:
            return f"too few zeros of {weight.name!r} fill runs of {PANEL} columns"
        return [
            _skipping(self.name, region, weight.name, matrix, block, places)
            for block, places in maps.items() if stored[block] <= _MOST_STORED
        ]  # fmt: skip


@dataclass(frozen=True)
class TiledGemm(PatternPass):
    """Store and multiply only those tiles of a product's matrix that the user declared by hand."""

    blocks: tuple[int, ...] = BLOCKS
    name: str = "tiled-gemm"
    patterns = (gemm_pattern,)

    def rewrite(self, m: Match) -> Sequence[Rewrite] | str:
        graph, region = m.graph, m.root
        found = hand_tiled_matrix(graph, region)
        if isinstance(found, Reason):
            return found
        (pattern, weight), params = found, region.params
        if reason := without_scatter(graph):
            return reason
        width = pattern.tiles.tile[1]
        if pattern.tiles.grid[1] > 1 and width % PANEL:
            return f"tiles of {width} columns do not fill panels of {PANEL}"
        starts = [t.k_start for t in pattern.tiles]
        ends = [t.k_end for t in pattern.tiles if t.k_end < params.k]
        fitting = [b for b in self.blocks if not any(k % b for k in (*starts, *ends))]
        if not fitting:
            return f"the tiles do not begin and end at multiples of {self.blocks[0]} along k"
        active = pattern.mask(params.k, params.n)
        places = nonzero_tiles(zero_map(active), max(fitting)).l1_map
        matrix = partial(matrix_of, params, weight)
        return [_skipping(self.name, region, weight.name, matrix, max(fitting), places)]


@dataclass(frozen=True)
class PruneBlocks(PatternPass):
    """Store only the remaining blocks of a pruned matrix, if that takes fewer bytes."""

    chosen: Mapping[str, CompressedMatrix]
    blocks: tuple[int, ...] = BLOCKS
    name: str = "prune-blocks"
    patterns = (gemm_pattern,)

    def rewrite(self, m: Match) -> Sequence[Rewrite] | str:
        region = m.root
        if (found := pruned_for(self.chosen, m.graph, region)) is None:
            return reason_not_compressed(region.operands[1])
        if reason := without_scatter(m.graph):
            return reason
        (matrix,) = found.matrices
        zeros = zero_map(matrix)
        if zeros.mean() < 1 - _MOST_STORED:
            return f"too few zeros of {region.operands[1]!r} fill runs of {PANEL} columns"
        maps = {block: nonzero_tiles(zeros, block).l1_map for block in self.blocks}
        name = f"{region.operands[1]}_pruned"
        made = [
            _skipping(self.name, region, name, lambda: matrix, block, places, found.error)
            for block, places in maps.items()
            if len(places) * block <= _MOST_STORED * zeros.size
        ]
        return made or f"too few zeros of {region.operands[1]!r} fill whole blocks"


def _skipping(
    rule: str,
    region: Region,
    name: str,
    matrix: Callable[[], Floats],
    block: int,
    places: Ids,
    error: float = 0.0,
) -> Rewrite:
    """The product over the blocks at ``places``; a zero matrix keeps one block."""
    if not len(places):
        places = np.zeros(1, np.int32)
    params: GemmParams = dataclasses.replace(region.params, layout=BlockSparsePanels(block))
    stem, shape = f"{name}_blocks{block}", (len(places), block, PANEL)
    blocks = Weight(
        stem, DType.F32, shape, lambda: pack_block_sparse(pack_panels(matrix()), places, block)
    )
    at = Weight(f"{blocks.name}_map", DType.I32, places.shape, lambda: places)
    operands = (region.operands[0], blocks.name, *region.operands[2:], at.name)
    new = fused_region(rule, params, operands, region.results, [region])
    weights = {w.name: w for w in (blocks, at)}
    return Rewrite((new,), weights=weights, error=error)


def dense_matrix(graph: TileGraph, region: Region, twice: bool) -> Weight | None:
    """Return a product's matrix if it consists of initializers and may be replaced, else None.

    With ``twice``, it may be replaced even if other regions read it.
    """
    if region.rule in (LOW_RANK_EXACT, *LOW_RANK) or not sources_of(graph, region):
        return None
    return replaceable_matrix(graph, region, twice)


def why_dense(graph: TileGraph, region: Region, twice: bool) -> Reason:
    """The reason why :func:`dense_matrix` finds no matrix in a product."""
    if region.rule in (LOW_RANK_EXACT, *LOW_RANK):
        return Reason("its matrix is a factor of a low-rank form", Code.OTHER_FORM)
    if not sources_of(graph, region):
        return not_constant_reason(region.operands[1])
    return why_not_replaceable(graph, region, twice)


def without_scatter(graph: TileGraph) -> str:
    """Return why the opset cannot express a scatter of the stored blocks; empty if it can."""
    if graph.opset >= SCATTER_SINCE:
        return ""
    return f"opset {graph.opset} has no ScatterND; {SCATTER_SINCE} is the first"


def sources_of(graph: TileGraph, region: Region) -> list[Weight]:
    """The initializers that a product's matrix is computed from."""
    values = (n.inputs[1] for n in region.nodes if n.op in ("MatMul", "Gemm"))
    found = [graph.weight(v) for v in values]
    return [w for w in found if w is not None]
