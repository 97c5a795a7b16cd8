"""Hand-built tile graphs: custom sparse patterns over the kernels' dense inner loop."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import numpy.typing as npt

from tracea_graph.errors import GraphError
from tracea_graph.ttg.tile_set import (
    EDGE,
    TILE,
    EdgeKind,
    Shape,
    TileMetadata,
    TileSet,
    dense_tiles,
)

__all__ = ["TTGBuilder"]


class TTGBuilder:
    """Collects tiles of an ``m`` x ``n`` grid, checks them, and builds a :class:`TileSet`.

    ``m`` and ``n`` count tiles, ``k`` counts elements of the reduction (default: the end of the
    last tile).  ``tile`` is the size of a full tile in elements, for kernels that need it::

        TTGBuilder(2, 2).add_tile(TileMetadata(0, 0, 0, 64)).build_sparse()
    """

    def __init__(self, m: int, n: int, k: int | None = None, tile: Shape = (1, 1, 1)) -> None:
        """Raise GraphError unless every size is at least one."""
        if min(m, n, 1 if k is None else k, *tile) < 1:
            raise GraphError(f"grid {m}x{n}, k={k}, tile {tile}: every size must be at least 1")
        self.m, self.n, self.k, self.tile = m, n, k, tile
        self._tiles: list[TileMetadata] = []
        self._edges: list[tuple[TileMetadata, TileMetadata]] = []

    def add_tile(self, tile: TileMetadata) -> TTGBuilder:
        """Add one tile; raises GraphError if it is outside the grid or its slice of k is empty."""
        if not (0 <= tile.region_m < self.m and 0 <= tile.region_n < self.n):
            raise GraphError(f"{tile.label} lies outside the {self.m}x{self.n} grid")
        if not 0 <= tile.k_start < tile.k_end:
            raise GraphError(f"{tile.label} has an empty or negative slice of k")
        if self.k is not None and tile.k_end > self.k:
            raise GraphError(f"{tile.label} ends beyond k={self.k}")
        self._tiles.append(tile)
        return self

    def add_edge(self, source: TileMetadata, target: TileMetadata) -> TTGBuilder:
        """Let ``target`` wait for ``source`` (a DATA edge); a tile may wait for only one tile."""
        self._edges.append((source, target))
        return self

    def build_dense(self, order: str = "row-major") -> TileSet:
        """Return the tiles, which must cover the whole grid and all of k.

        Raises GraphError for an overlap, a gap, an edge to an unknown tile, or a cycle.
        """
        tiles = self._sorted()
        _check_overlap(tiles)
        self._check_gaps(tiles)
        return self._build(tiles, order)

    def build_sparse(self, order: str = "row-major") -> TileSet:
        """Return the tiles; grid positions and slices of k without a tile are skipped.

        Raises GraphError for an overlap, an edge to an unknown tile, or a cycle.
        """
        tiles = self._sorted()
        _check_overlap(tiles)
        return self._build(tiles, order)

    def build_active(self, active: npt.NDArray[np.bool_], order: str = "row-major") -> TileSet:
        """Return the full tiles of the grid where ``active`` (``[m, n, slices of k]``) is true.

        Tile ids count the whole grid, so that a tile's metadata follows from its id: kernels need
        the L1 map alone.  Raises GraphError if ``k`` is not set, if tiles were added by
        :meth:`add_tile`, or if the shape of ``active`` does not fit the grid.
        """
        if self.k is None or self._tiles:
            raise GraphError("build_active needs k, and excludes tiles added by add_tile")
        rows, columns, depth = self.tile
        problem = (1, self.m * rows, self.n * columns, self.k)
        dense = dense_tiles(problem, (rows, columns, depth))
        if active.shape != (self.m, self.n, -(-self.k // depth)):
            raise GraphError(
                f"active tiles {active.shape} do not fit {self.m}x{self.n} tiles, k={self.k}"
            )
        return dense.skipping(~active.reshape(-1), order)

    def _sorted(self) -> list[TileMetadata]:
        return sorted(self._tiles, key=lambda t: (t.region_m, t.region_n, t.k_start, t.k_end))

    def _check_gaps(self, tiles: list[TileMetadata]) -> None:
        """Raise GraphError for a gap: sorted tiles that do not overlap must be contiguous."""
        end = self.k if self.k is not None else max((t.k_end for t in tiles), default=0)
        places = {(t.region_m, t.region_n) for t in tiles}
        if len(places) < self.m * self.n:
            m, n = next(p for p in np.ndindex(self.m, self.n) if p not in places)
            raise GraphError(f"no tile covers ({m}, {n}): add it, or use build_sparse")
        reached: dict[tuple[int, int], int] = {}
        for tile in tiles:
            if (done := reached.get(_place(tile), 0)) < tile.k_start:
                raise GraphError(f"k [{done}, {tile.k_start}) before {tile.label} has no tile")
            reached[_place(tile)] = tile.k_end
        if short := next((t for t in tiles if reached[_place(t)] < end), None):
            done = reached[_place(short)]
            raise GraphError(f"k [{done}, {end}) has no tile at {_place(short)}")

    def _build(self, tiles: list[TileMetadata], order: str) -> TileSet:
        rows = [(t.region_m, t.region_n, t.k_start, t.k_end, int(t.role)) for t in tiles]
        table = np.array(rows, TILE)
        ids = {tile: i for i, tile in enumerate(tiles)}
        for tile in (t for edge in self._edges for t in edge):
            if tile not in ids:
                raise GraphError(f"an edge names {tile.label}, which was not added")
        waiting = Counter(target for _, target in self._edges)
        if twice := next((t for t, count in waiting.items() if count > 1), None):
            raise GraphError(f"{twice.label} waits for several tiles: one DATA edge is allowed")
        links = [(ids[a], ids[b], int(EdgeKind.DATA)) for a, b in self._edges]
        data, unordered = np.array(links, EDGE), np.zeros(0, np.int32)
        made = TileSet(table, unordered, (self.m, self.n), self.tile, data=data).ordered(order)
        return _dependences_first(made) if links else made


def _place(tile: TileMetadata) -> tuple[int, int]:
    return tile.region_m, tile.region_n


def _check_overlap(tiles: list[TileMetadata]) -> None:
    for a, b in pairwise(tiles):
        if _place(a) == _place(b) and b.k_start < a.k_end:
            raise GraphError(f"{b.label} overlaps {a.label}")


def _dependences_first(tiles: TileSet) -> TileSet:
    """Launch every tile after those it waits for, in the given order otherwise."""
    graph = nx.DiGraph()
    graph.add_nodes_from(tiles.order.tolist())
    waits = tiles.edges[np.isin(tiles.edges["kind"], (EdgeKind.DATA, EdgeKind.K_PIPELINE))]
    graph.add_edges_from((a, b) for a, b, _ in waits.tolist())
    if not nx.is_directed_acyclic_graph(graph):
        loop = [tiles[edge[0]] for edge in nx.find_cycle(graph)]
        raise GraphError(f"tiles wait for each other: {' → '.join(t.label for t in loop)}")
    position = {tile: i for i, tile in enumerate(tiles.order.tolist())}
    path = nx.lexicographical_topological_sort(graph, key=lambda t: position.get(t, -1))
    return replace(tiles, order=np.array([t for t in path if t in position], np.int32))
