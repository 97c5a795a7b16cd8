"""Fuse steps of a program over row tiles, so that the values between them stay in cache.

FusedRegion -> FusedRegion with ``row_tiles`` (``ops.region.RowTile``)

The tile graph's planner (``ttg.plan``) chooses the steps and the rows of a tile: it rejects tiles
whose footprint exceeds the cache, and proposes a few others, those that move the fewest bytes.
The first proposal is applied; the others, and the untiled program, are timed against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tracea_graph.errors import GraphError
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.kernels.cpu.lowering.row_tile_loops import NotTileable
from tracea_graph.ops.fused_region import RegionParams, RowTile
from tracea_graph.ops.program_row_tiling import plan_subgraph_by_size, row_tiles_of
from tracea_graph.ops.region_subgraph import Subgraph
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import CACHE_FRACTIONS, MemoryLevel, Region, TileGraph

__all__ = ["TILE_AND_FUSE", "TILE_SIZES", "TileAndFuse"]

TILE_AND_FUSE = "tile-and-fuse"
"""The rule's name."""
TILE_SIZES = (TILE_AND_FUSE, *(f"{TILE_AND_FUSE}-{i}" for i in range(2, len(CACHE_FRACTIONS) + 1)))
"""Names of the rule's proposals, the one with the largest tiles first."""

_OPEN = "{!r} has inputs whose sizes are known only at run time"


@dataclass(frozen=True)
class TileAndFuse:
    """Split a program into row tiles that fit into memory ``levels``, innermost level first.

    ``sizes`` are the values of symbols for which the tiles are planned.
    """

    sizes: Mapping[str, int]
    levels: Sequence[MemoryLevel]
    name: str = TILE_AND_FUSE

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, RegionParams) or params.row_tiles:
            return
        subgraph = Subgraph(graph, region)
        plans = plan_subgraph_by_size(subgraph, self.sizes, self.levels, CACHE_FRACTIONS)
        told, known = set[Miss](), set[tuple[RowTile, ...]]()
        for rule in TILE_SIZES:
            try:
                plan = next(plans)
            except GraphError:
                yield Miss(self.name, region.id, _OPEN.format(region.results[0]))
                return
            row_tiles, why = self._fit(graph, region, row_tiles_of(subgraph, plan))
            yield from (miss for miss in why if miss not in told)
            told |= {*why}
            if row_tiles and row_tiles not in known:
                known.add(row_tiles)
                new = replace(region, params=replace(params, row_tiles=row_tiles))
                yield Proposal(rule, (region,), (new,))

    def _fit(
        self, graph: TileGraph, region: Region, row_tiles: tuple[RowTile, ...]
    ) -> tuple[tuple[RowTile, ...], list[Miss]]:
        """The row tiles that kernels can run, and the reasons against the others.

        All are tried together first, since usually all can be tiled; if not, each is tried alone.
        """
        if not row_tiles or _why_not(graph, region, row_tiles) is None:
            return row_tiles, []
        why = {row_tile: _why_not(graph, region, (row_tile,)) for row_tile in row_tiles}
        misses = [
            Miss(self.name, region.id, f"{_steps(region, row_tile)}: {reason}")
            for row_tile, reason in why.items()
            if reason is not None
        ]
        return tuple(row_tile for row_tile in row_tiles if why[row_tile] is None), misses


def _steps(region: Region, row_tile: RowTile) -> str:
    """Describe the steps of a row tile by the values they read from outside their program."""
    params: RegionParams = region.params
    reads = [
        region.operands[i]
        for step in params.steps[row_tile.first : row_tile.last + 1]
        for i in step.operands
        if i < params.inputs
    ]
    if not reads:
        return f"{row_tile.last + 1 - row_tile.first} steps of {region.results[0]!r}"
    return f"from the step that reads {reads[0]!r} to the one that reads {reads[-1]!r}"


def _why_not(graph: TileGraph, region: Region, row_tiles: tuple[RowTile, ...]) -> str | None:
    """The reason why the calls of these steps cannot be tiled by rows; None if they can."""
    try:
        lower(graph, replace(region, params=replace(region.params, row_tiles=row_tiles)))
    except NotTileable as error:
        return str(error)
    return None
