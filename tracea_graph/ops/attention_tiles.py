"""Tiles of attention scores: which blocks of queries by keys are computed.

A map lists the ids of active tiles in ascending order; tile ``r * key_tiles + c`` is in row r and
column c of the grid.  Scores outside the active tiles are −∞, or dropped by a mask.  A list by
rows says more about a mask: where the list of each row of tiles starts, one number more than there
are rows, then twice the column of each active tile, plus 1 if the mask changes scores in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Weight
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ttg.hand_built_tiles import TTGBuilder
from tracea_graph.ttg.hand_set_tiles import TilePattern
from tracea_graph.ttg.tile_set import TileSet

__all__ = ["TileGrid", "active_tile_map", "grid_of"]


@dataclass(frozen=True)
class TileGrid:
    """A grid of ``row_tiles`` by ``key_tiles`` tiles, each of ``rows`` queries by ``keys`` keys.

    If ``beyond`` is None, scores outside the active tiles are −∞. Otherwise the tiles summarize a
    mask operand: outside the active tiles, an additive mask has values of at most ``beyond``, and
    a boolean mask drops every key.  With ``by_row``, the map of such tiles is a list by rows.
    A ``band`` says that the mask does no more than drop the keys that lie further before or after
    a query than these numbers, where the last query lies at the last key.
    """

    rows: int
    keys: int
    row_tiles: int
    key_tiles: int
    beyond: float | None = None
    by_row: bool = False
    band: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for an empty grid, or a list by rows of tiles without a mask."""
        if self.by_row and self.beyond is None:
            raise ValueError("only tiles of a mask are listed by rows")
        if min(self.rows, self.keys, self.row_tiles, self.key_tiles) < 1:
            raise ValueError(f"a grid of attention tiles must not be empty: {self}")

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Return the rows and keys of a tile, then the numbers of tiles along both."""
        return self.rows, self.keys, self.row_tiles, self.key_tiles

    @property
    def masks(self) -> bool:
        """Whether scores outside the active tiles are −∞."""
        return self.beyond is None

    @property
    def count(self) -> int:
        """Number of tiles, active or not."""
        return self.row_tiles * self.key_tiles

    def share_of(self, length: float) -> float:
        """Return the share of active tiles if the map has ``length`` numbers."""
        return (length - (self.row_tiles + 1 if self.by_row else 0)) / self.count

    def kept(self, active: npt.NDArray[Any], rows: int, keys: int) -> npt.NDArray[np.bool_]:
        """Return a mask ``[rows, keys]`` that is true for scores in an active tile.

        ``active`` holds the ids of the active tiles.  Raises ValueError for more rows or keys than
        the grid covers.
        """
        if rows > self.rows * self.row_tiles or keys > self.keys * self.key_tiles:
            raise ValueError(f"{rows} queries and {keys} keys do not fit {self}")
        grid = np.zeros(self.count, np.bool_)
        grid[active] = True
        of = grid.reshape(self.row_tiles, self.key_tiles)
        found: npt.NDArray[np.bool_] = of[np.arange(rows) // self.rows][
            :, np.arange(keys) // self.keys
        ]
        return found

    def kept_to_onnx(self, b: BodyBuilder, active: str, rows: str, keys: str) -> str:
        """Write the mask of :meth:`kept` in ONNX; return its name.

        ``active`` names the map of active tiles, ``rows`` the positions of queries ``[S,1]`` and
        ``keys`` those of keys ``[T]``.  The mask is computed as a product of two matrices: which
        tiles hold a query, and which tiles hold a key.
        """
        ids = b("Cast", active, to=DType.I64.onnx)
        row = b("Div", ids, b.ints(self.key_tiles))
        column = b("Sub", ids, b("Mul", row, b.ints(self.key_tiles)))
        of_row = b("Equal", b("Div", rows, b.ints(self.rows)), row)
        of_key = b("Equal", b("Reshape", column, b.ints(-1, 1)), b("Div", keys, b.ints(self.keys)))
        both = b("MatMul", *(b("Cast", part, to=DType.F32.onnx) for part in (of_row, of_key)))
        return b("Greater", both, b.number(0.5))


def grid_of(pattern: TilePattern) -> TileGrid:
    """Return the grid of a pattern of scores."""
    (m, n), (rows, keys, _) = pattern.tiles.grid, pattern.tiles.tile
    return TileGrid(rows, keys, m, n)


def active_tile_map(pattern: TilePattern) -> Weight:
    """Return the L1 map of a pattern of scores, as an int32 constant.

    The map lists the active tiles, whose rows are queries and whose slices are keys.
    """
    tiles = _tiles_of(pattern)
    name = f"{pattern.constant}_map"
    return Weight(name, DType.I32, tiles.l1_map.shape, lambda: tiles.l1_map)


def _tiles_of(pattern: TilePattern) -> TileSet:
    """The pattern as tiles of the attention: rows of queries by slices of keys."""
    grid = grid_of(pattern)
    active = np.zeros((grid.row_tiles, 1, grid.key_tiles), np.bool_)
    rows = pattern.tiles.table[pattern.tiles.order]
    active[rows["region_m"], 0, rows["region_n"]] = True
    keys = grid.keys * grid.key_tiles
    return TTGBuilder(grid.row_tiles, 1, keys, (grid.rows, 1, grid.keys)).build_active(active)
