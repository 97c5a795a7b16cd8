"""Skip blocks of a matmul's constant matrix on GPUs: zero blocks, or all but tiles set by hand.

FusedGemm(x, [K, N])    ->    FusedGemm(x, blocks, map)

The result is exact: a skipped block would have added zeros.  Where a skipped zero would have been
multiplied by an infinity or NaN, the result is NaN, as in the dense matmul.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tracea_graph.ir import DType, Weight
from tracea_graph.kernels.gpu.zero_block_storage import COLUMN_BLOCKS, SIDE, active_tiles
from tracea_graph.ops.weight_layouts import ALIGNED, Floats
from tracea_graph.passes.matmul.constant_matrices import (
    gemm_pattern,
    hand_tiled_matrix,
    matrix_of,
    replaceable_matrix,
    why_not_replaceable,
)
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.passes.sparse.sampled_zero_scan import zero_map
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite
from tracea_graph.ttg import Region, TileSet

__all__ = ["ColumnBlockGemm", "TiledColumnBlockGemm"]

_MOST_STORED = 0.75
"""Maximum share of stored blocks for which skipping the others is worth a proposal."""
_SCATTER_SINCE = 11
"""First opset with ScatterND, with which function bodies scatter blocks."""


@dataclass(frozen=True)
class ColumnBlockGemm(PatternPass):
    """Store only the nonzero blocks of a matmul's matrix."""

    scan: WeightScan = field(default_factory=WeightScan)
    name: str = "column-block-gemm"
    patterns = (gemm_pattern,)

    def rewrite(self, m: Match) -> Sequence[Rewrite] | str:
        graph, region = m.graph, m.root
        weight = replaceable_matrix(graph, region)
        if weight is None:
            return why_not_replaceable(graph, region)
        zeros = self.scan.zeros.zeros([weight], weight, region.params)
        if not zeros.size:
            return Reason(f"{weight.name!r} has few zeros", Code.DENSE_WEIGHTS)
        if why := _unfit(graph.opset, region):
            return why
        matrix = partial(matrix_of, region.params, weight)
        tiles = active_tiles(zeros)
        if len(tiles.l1_map) > _MOST_STORED * len(tiles):
            return f"the zeros of {weight.name!r} do not fill blocks of {SIDE} × {SIDE}"
        return [_skipping(self.name, region, weight.name, matrix, tiles)]


@dataclass(frozen=True)
class TiledColumnBlockGemm(PatternPass):
    """Store and visit exactly the tiles that were set by hand for a matmul's matrix."""

    name: str = "tiled-column-block-gemm"
    patterns = (gemm_pattern,)

    def rewrite(self, m: Match) -> Sequence[Rewrite] | str:
        graph, region = m.graph, m.root
        found = hand_tiled_matrix(graph, region)
        if isinstance(found, Reason):
            return found
        (pattern, weight), params = found, region.params
        if why := _unfit(graph.opset, region):
            return why
        active = pattern.mask(params.k, params.n)
        tiles = active_tiles(zero_map(active))
        matrix = partial(matrix_of, params, weight)

        def masked() -> Floats:  # blocks may reach beyond the tiles
            return np.where(active, matrix(), np.float32(0))

        return [_skipping(self.name, region, weight.name, masked, tiles)]


def _unfit(opset: int, region: Region) -> str:
    """Return why a matmul's matrix cannot be stored in blocks; empty if it can."""
    p = region.params
    if opset < _SCATTER_SINCE:
        return f"opset {opset} has no ScatterND, which opset {_SCATTER_SINCE} added"
    if p.integers:
        return "its matrix holds integers"
    try:
        COLUMN_BLOCKS.check(p.k, p.n)
    except ValueError as why:
        return str(why)
    return ""


def _skipping(
    rule: str, region: Region, name: str, matrix: Callable[[], Floats], tiles: TileSet
) -> Rewrite:
    """Return the matmul over active tiles; a zero matrix keeps one block."""
    if not len(tiles.l1_map):
        zeros = np.ones((tiles.grid[1] * SIDE // ALIGNED, region.params.k), np.bool_)
        zeros[0, 0] = False
        tiles = active_tiles(zeros)
    places = COLUMN_BLOCKS.map_of(tiles)
    blocks = Weight(
        f"{name}_blocks{SIDE}", DType.F32, (len(tiles.l1_map), SIDE, SIDE),
        lambda: COLUMN_BLOCKS.packed(matrix(), tiles.l1_map),
    )  # fmt: skip
    at = Weight(f"{blocks.name}_map", DType.I32, places.shape, lambda: places)
    params = dataclasses.replace(region.params, layout=COLUMN_BLOCKS)
    operands = (region.operands[0], blocks.name, *region.operands[2:], at.name)
    new = fused_region(rule, params, operands, region.results, [region])
    return Rewrite((new,), weights={w.name: w for w in (blocks, at)})
