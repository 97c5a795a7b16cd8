"""Tile graphs: the tiles of one region as arrays, their order, and the edges between them.

The **L2 table** has one row per tile; the **L1 map** lists the ids of active tiles in launch
order: block ``i`` runs tile ``l1_map[i]``.  A dense problem in row-major order is the identity
map; reordering, windows and block sparsity are other maps over one inner loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from tracea_graph.errors import GraphError
from tracea_graph.ttg.iteration_space import Ints, Ranges
from tracea_graph.ttg.loop_nest_model import BoundModel, Tiles
from tracea_graph.ttg.tile_orders import CRITICAL_PATH, order_keys

__all__ = [
    "EDGE",
    "TILE",
    "EdgeKind",
    "TileMetadata",
    "TileReuse",
    "TileRole",
    "TileSet",
    "dense_tiles",
    "expand_tiles",
]  # fmt: skip

TILE = np.dtype([(name, "<i4") for name in ("region_m", "region_n", "k_start", "k_end", "role")])
"""A row of the L2 table."""
EDGE = np.dtype([(name, "<i4") for name in ("source", "target", "kind")])

Records = npt.NDArray[Any]
Ids = npt.NDArray[np.int32]
Shape = tuple[int, int, int]
NO_EDGES = np.empty(0, EDGE)


class TileRole(IntEnum):
    """How a tile runs: at full size, clipped by an edge, or not at all."""

    MAIN = 0
    BOUNDARY = 1
    SKIP = 2


class EdgeKind(IntEnum):
    """Why one tile follows another.

    ``DATA`` and ``K_PIPELINE`` (the next slice of one sum) are dependences.  ``ROW_ADJACENT`` and
    ``COL_ADJACENT`` lead to the next active tile that shares rows of A or columns of B.
    """

    DATA = 0
    ROW_ADJACENT = 1
    COL_ADJACENT = 2
    K_PIPELINE = 3


class TileReuse(IntFlag):
    """What a tile shares with the tile launched before it: rows of A, columns of B, the result."""

    ROWS = 1
    COLUMNS = 2
    RESULT = 4


@dataclass(frozen=True)
class TileMetadata:
    """One tile: its grid position (in tiles) and its slice of the reduction (in elements)."""

    region_m: int
    region_n: int
    k_start: int
    k_end: int
    role: TileRole = TileRole.MAIN

    @property
    def label(self) -> str:
        """Role, position and slice, for messages."""
        role = TileRole(self.role).name.lower()
        place = f"({self.region_m}, {self.region_n})"
        return f"{role} tile {place} k [{self.k_start}, {self.k_end})"


@dataclass(frozen=True, eq=False)
class TileSet:
    """The tiles of one region.

    ``grid`` is the number of tile rows, over all ``batch`` problems, and of tile columns.
    ``tile`` is the size of a full tile (m, n, k) in elements.  ``model`` is None for hand-built
    tiles.  ``data`` are DATA edges between tiles of this set.
    """

    table: Records = field(repr=False)
    order: Ids = field(repr=False)
    grid: tuple[int, int]
    tile: Shape = (1, 1, 1)
    batch: int = 1
    model: BoundModel | None = field(default=None, repr=False)
    data: Records = field(default_factory=NO_EDGES.copy, repr=False)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, tile: int) -> TileMetadata:
        m, n, start, end, role = self.table[tile].tolist()
        return TileMetadata(m, n, start, end, TileRole(role))

    def __iter__(self) -> Iterator[TileMetadata]:
        """Iterate over active tiles in launch order."""
        return (self[i] for i in self.order.tolist())

    @property
    def l1_map(self) -> Ids:
        """L1 map: the tile id for each linear block id."""
        return self.order

    @property
    def l2_table(self) -> Records:
        """L2 table: the metadata of each tile id, dtype :data:`TILE`."""
        return self.table

    @property
    def nbytes(self) -> int:
        """Bytes of the L1 map, the L2 table and the edges."""
        return self.order.nbytes + self.table.nbytes + self.edges.nbytes

    def ordered(self, order: str) -> TileSet:
        """Return these tiles in another order.

        Split-K slices of one sum stay together, first slice first.  Only ``critical-path`` may
        separate them: it launches first the tiles that most work waits for, without violating
        dependences.
        """
        if order == CRITICAL_PATH:
            ids = np.flatnonzero(self.table["role"] != TileRole.SKIP).astype(np.int32)
            return replace(
                self, order=ids[np.argsort(-self.critical_path_lengths[ids], kind="stable")]
            )
        return replace(self, order=_launch_order(self.table, order))

    @cached_property
    def critical_path_lengths(self) -> Ints:
        """Length of the longest path from each tile, itself included, to the end.

        Lengths count reduction steps along dependences (``DATA``, ``K_PIPELINE``).  Raises
        GraphError for a cycle.
        """
        own = (self.table["k_end"] - self.table["k_start"]).astype(np.int64).clip(1)
        binding = np.isin(self.edges["kind"], (EdgeKind.DATA, EdgeKind.K_PIPELINE))
        source, target = (self.edges[end][binding] for end in ("source", "target"))
        height: Ints = own.copy()
        for _ in range(len(own)):
            longer = own.copy()
            np.maximum.at(longer, source, own[source] + height[target])
            if np.array_equal(longer, height):
                return height
            height = longer
        raise GraphError("tiles wait for each other in a cycle: there is no critical path")

    @property
    def critical_path(self) -> int:
        """Reduction steps on the critical path, a lower bound with unlimited parallelism."""
        return int(self.critical_path_lengths[self.order].max(initial=0))

    @cached_property
    def reuse(self) -> npt.NDArray[np.uint8]:
        """Flags (:class:`TileReuse`) of what each launched tile shares with the previous one."""
        rows = self.table[self.order]
        before, after = rows[:-1], rows[1:]
        same = {name: before[name] == after[name] for name in TILE.names or ()}
        problem = rows["region_m"] // max(self.grid[0] // max(self.batch, 1), 1)
        slices = same["k_start"] & same["k_end"]
        hints = np.zeros(len(rows), np.uint8)
        for flag, kept in (
            (TileReuse.ROWS, same["region_m"] & slices),
            (TileReuse.COLUMNS, same["region_n"] & slices & (problem[:-1] == problem[1:])),
            (TileReuse.RESULT, same["region_m"] & same["region_n"]),
        ):
            hints[1:][kept] |= np.uint8(flag)
        return hints

    def skipping(self, skip: npt.NDArray[np.bool_], order: str = "row-major") -> TileSet:
        """Return these tiles, of which those where ``skip`` is true are inactive.

        ``skip`` has the shape ``[tiles]`` or that of the grid.
        """
        if skip.shape == self.grid:
            skip = skip[self.table["region_m"], self.table["region_n"]]
        if skip.shape != self.table.shape:
            raise GraphError(
                f"the skip mask has shape {skip.shape}, but the tile grid is {self.grid}"
            )
        table = self.table.copy()
        table["role"][skip] = TileRole.SKIP
        left = np.flatnonzero(table["role"] != TileRole.SKIP).astype(np.int32)
        return replace(self, table=table, order=left).ordered(order)

    @cached_property
    def edges(self) -> Records:
        """Every edge, dtype :data:`EDGE`, grouped by kind; at most four edges leave a tile."""
        active = self.table["role"] != TileRole.SKIP
        ids = np.flatnonzero(active).astype(np.int32)
        rows = self.table if active.all() else self.table[ids]
        m, n, k = rows["region_m"], rows["region_n"], rows["k_start"]
        problem = m // max(self.grid[0] // max(self.batch, 1), 1)
        links = (
            _links(ids, (m, k), n, EdgeKind.ROW_ADJACENT),
            _links(ids, (problem, n, k), m, EdgeKind.COL_ADJACENT),
            _links(ids, (m, n), k, EdgeKind.K_PIPELINE),
        )
        return np.concatenate((self.data, *links))

    def flat_ranges(self, ids: Ids | None = None) -> Tiles:
        """Return the element ranges of tiles along flat batch, rows, columns and depth.

        ``ids`` are the tiles, by default the active ones in launch order.
        """
        _, m, n, k = self._bound.problem
        rows = self.table[self.order if ids is None else ids]
        per_problem = max(self.grid[0] // max(self.batch, 1), 1)
        problem, row = np.divmod(rows["region_m"].astype(np.int64), per_problem)
        return (
            (problem, problem + 1),
            _cut(row, self.tile[0], m),
            _cut(rows["region_n"].astype(np.int64), self.tile[1], n),
            (rows["k_start"].astype(np.int64), np.minimum(rows["k_end"], k).astype(np.int64)),
        )

    def ranges(self, ids: Ids | None = None) -> Ranges:
        """Return axis ranges (starts, stops) ``[tiles, axes]``, by default in launch order."""
        return self._bound.ranges(self.flat_ranges(ids))

    @property
    def _bound(self) -> BoundModel:
        if self.model is None:
            raise GraphError("hand-built tiles have no access maps: expand a region")
        return self.model

    def to_networkx(self) -> nx.MultiDiGraph:
        """Return a graph: nodes have metadata and launch position, edges have a kind."""
        position = np.full(len(self), -1)
        position[self.order] = np.arange(len(self.order))
        view = nx.MultiDiGraph()
        for i, place in enumerate(position.tolist()):
            view.add_node(i, position=place, **vars(self[i]))
        for source, target, kind in self.edges.tolist():
            view.add_edge(source, target, key=EdgeKind(kind).name, kind=EdgeKind(kind))
        return view

    def __str__(self) -> str:
        counts = np.bincount(self.table["role"], minlength=len(TileRole)).tolist()
        roles = ", ".join(
            f"{n} {role.name}" for role, n in zip(TileRole, counts, strict=True) if n
        )
        return f"{self.grid[0]}x{self.grid[1]} tiles of {self.tile}: {roles or 'none'}"


def expand_tiles(model: BoundModel, tile: Shape = (0, 0, 0), order: str = "row-major") -> TileSet:
    """Return the dense tiles of a region; a size of 0, or above the extent, means the extent.

    Raises GraphError for a negative tile size, an unknown order, or more than 2³¹ tiles.
    """
    tiles = replace(dense_tiles(model.problem, tile), model=model)
    return tiles if order == "row-major" else tiles.ordered(order)


def dense_tiles(problem: tuple[int, int, int, int], tile: Shape = (0, 0, 0)) -> TileSet:
    """Return all tiles of a problem (batch, m, n, k), row-major; see :func:`expand_tiles`.

    A tile's id is its flat index in the grid ``[batch · rows, columns, slices of k]``.
    """
    batch, m, n, k = problem
    if min(tile) < 0:
        raise GraphError(f"tile sizes {tile} must not be negative")
    sizes = [min(t or e, e) or 1 for t, e in zip(tile, (m, n, k), strict=True)]
    per_problem, columns = -(-m // sizes[0]), -(-n // sizes[1])
    slices = max(-(-k // sizes[2]), 1)  # an empty sum still has a result
    rows = batch * per_problem
    if rows * columns * slices >= 2**31:
        raise GraphError(f"{rows}x{columns}x{slices} tiles are too many: choose larger tiles")
    table = np.empty((rows, columns, slices), TILE)
    i, j, s = np.ogrid[:rows, :columns, :slices]
    table["region_m"], table["region_n"] = i, j
    table["k_start"], table["k_end"] = s * sizes[2], np.minimum((s + 1) * sizes[2], k)
    cut_row, cut_column = m % sizes[0] != 0, n % sizes[1] != 0
    cut = (i % max(per_problem, 1) == per_problem - 1) & cut_row
    cut = cut | ((j == columns - 1) & cut_column) | ((s == slices - 1) & (k % sizes[2] != 0))
    table["role"] = np.where(cut, TileRole.BOUNDARY, TileRole.MAIN)
    flat = table.reshape(-1)
    order = np.arange(len(flat), dtype=np.int32)
    return TileSet(flat, order, (rows, columns), (sizes[0], sizes[1], sizes[2]), batch)


def _cut(index: Ints, size: int, extent: int) -> Ranges:
    return index * size, np.minimum((index + 1) * size, extent)


def _launch_order(table: Records, order: str) -> Ids:
    """Active tiles by the order's key; the sort is stable, which keeps slices in sequence."""
    ids = np.flatnonzero(table["role"] != TileRole.SKIP).astype(np.int32)
    keys = order_keys(order, table["region_m"][ids], table["region_n"][ids])
    return ids if (np.diff(keys) >= 0).all() else ids[np.argsort(keys, kind="stable")]


def _links(ids: Ids, same: tuple[Records, ...], along: Records, kind: EdgeKind) -> Records:
    """Edges from each tile to the next one along a key among tiles that agree in other keys."""
    path = np.lexsort((along, *reversed(same)))
    linked = np.ones(max(len(path) - 1, 0), bool)
    for key in same:
        linked &= key[path[1:]] == key[path[:-1]]
    edges = np.empty(np.count_nonzero(linked), EDGE)
    edges["source"], edges["target"] = ids[path[:-1][linked]], ids[path[1:][linked]]
    edges["kind"] = kind
    return edges
