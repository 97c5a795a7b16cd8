"""Hand-set tile patterns: the tiles of a region that are computed; all others are masked."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tracea_graph.errors import GraphError
from tracea_graph.ttg.tile_set import Shape, TileMetadata, TileSet

__all__ = ["PatternKind", "TilePattern", "check_pattern"]


class PatternKind(StrEnum):
    """What the tiles cover.

    * ``MATRIX``: the constant matrix ``[K, N]`` of a product; elements outside the tiles are zero.
    * ``SCORES``: the scores ``[queries, keys]`` of attention; scores outside the tiles are −∞.
    """

    MATRIX = "matrix"
    SCORES = "scores"


@dataclass(frozen=True, eq=False)
class TilePattern:
    """The active tiles of one operator's operand, on a regular grid of rows and columns.

    ``value`` is the name of the operator's result.  ``tiles.tile`` holds the sizes of full tiles.
    The tiles of a matrix are in one grid row, and each covers its own slice of k; the tiles of
    scores are never split along k.
    """

    kind: PatternKind
    value: str
    tiles: TileSet = field(repr=False)

    @property
    def extents(self) -> tuple[int, int]:
        """Number of rows (of scores) and of columns that all tiles of the grid cover together."""
        (rows, columns), (m, n, _) = self.tiles.grid, self.tiles.tile
        return rows * m, columns * n

    @property
    def constant(self) -> str:
        """Name of a written model's constant that holds the masked matrix or the mask."""
        return f"{self.value}_tiles"

    def mask(self, rows: int, columns: int) -> npt.NDArray[np.bool_]:
        """Return a mask of this shape, true in the tiles of the matrix or scores."""
        kept = np.zeros((rows, columns), np.bool_)
        m, n, _ = self.tiles.tile
        for t in self.tiles:
            along = slice(t.k_start, t.k_end)
            if self.kind is PatternKind.SCORES:
                along = slice(t.region_m * m, (t.region_m + 1) * m)
            kept[along, t.region_n * n : (t.region_n + 1) * n] = True
        return kept


def check_pattern(
    tiles: TileSet, kind: PatternKind, rows: int | None, columns: int | None
) -> Shape:
    """Return the tile size of a pattern for a matrix ``[K, N]`` or scores.

    ``rows`` and ``columns`` are the extents of the matrix or scores, None if unknown.  A tile size
    of one element, the builder's default, stands for equal tiles that fill the extent.  Raises
    GraphError for tiles outside the grid or extents, for overlapping tiles, and for a grid that
    does not fit.
    """
    grid_m, grid_n = tiles.grid
    m, n, k = tiles.tile
    if tiles.batch != 1:
        raise GraphError(f"tiles of a pattern must have batch 1, not {tiles.batch}")
    if kind is PatternKind.MATRIX and grid_m != 1:
        raise GraphError(
            f"the tiles of a constant matrix must lie in one grid row, not {grid_m}: only "
            "region_n and k distinguish them, as in TTGBuilder(1, n)"
        )
    m = 1 if kind is PatternKind.MATRIX else _size(m, grid_m, rows, "rows")
    n = _size(n, grid_n, columns, "columns")
    active = sorted(tiles, key=_place)
    for tile in active:
        if not (0 <= tile.region_m < grid_m and 0 <= tile.region_n < grid_n):
            raise GraphError(f"{tile.label} lies outside the {grid_m}x{grid_n} grid")
        if kind is PatternKind.MATRIX and not 0 <= tile.k_start < tile.k_end <= (rows or 0):
            raise GraphError(f"{tile.label} lies outside k [0, {rows})")
        if kind is PatternKind.SCORES and tile.k_start != 0:
            raise GraphError(f"{tile.label} splits k, but tiles of scores must cover all of it")
    for a, b in pairwise(active):
        if (a.region_m, a.region_n) == (b.region_m, b.region_n) and b.k_start < a.k_end:
            raise GraphError(f"{b.label} overlaps {a.label}")
    return m, n, k


def _size(size: int, count: int, extent: int | None, what: str) -> int:
    """Size of ``count`` tiles along an axis."""
    if extent is None:
        if size == 1 and count > 1:
            raise GraphError(
                f"the number of {what} is not fixed: give the size of a tile, as in "
                "TTGBuilder(m, n, tile=(rows, columns, 1))"
            )
        return size
    if size == 1:
        size = -(-extent // count)
    if -(-extent // size) != count:
        raise GraphError(f"{count} tiles of {size} {what} do not cover {extent} {what}")
    return size


def _place(tile: TileMetadata) -> tuple[int, int, int]:
    return tile.region_m, tile.region_n, tile.k_start
