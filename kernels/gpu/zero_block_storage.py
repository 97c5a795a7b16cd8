"""Storage of a matrix with zero blocks on GPUs: the nonzero blocks, and a map of their places.

The matrix ``[K, N]`` is a grid of tiles, 64 columns by 64 steps of k.  The tile graph gives the L1
map: ids of active tiles, by columns and then by k.  Ids count the whole grid, so that a tile's row
of the L2 table follows from its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.weight_layouts import ALIGNED, Floats, Numbers, WeightLayout
from tracea_graph.ttg import TileSet, TTGBuilder

__all__ = ["COLUMN_BLOCKS", "MOST_SLICES", "SIDE", "ColumnBlocks", "active_tiles"]

SIDE = 64
"""Number of columns of a block, and of its steps of k."""
MOST_SLICES = 256
"""Maximum number of slices of k that a kernel supports."""


def active_tiles(zeros: npt.NDArray[np.bool_]) -> TileSet:
    """Return the tiles with a nonzero, given the matrix's zero map ``[⌈N/16⌉, K]``."""
    groups, k = zeros.shape
    each = SIDE // ALIGNED
    padded = np.pad(~zeros, ((0, -groups % each), (0, -k % SIDE)))
    blocks = padded.reshape(-(-groups // each), each, -(-k // SIDE), SIDE)
    active: npt.NDArray[np.bool_] = np.any(blocks, axis=(1, 3))[None]
    return TTGBuilder(1, active.shape[1], k, (1, SIDE, SIDE)).build_active(active)


@dataclass(frozen=True)
class ColumnBlocks(WeightLayout):
    """The nonzero blocks of a matrix, ``[T, columns, steps of k]``, and a map of their positions.

    The map is a vector of int32 with four parts:

    * for each tile of columns the index of its first block, and the number of all blocks
    * for each tile of columns a bit mask of the slices of k that have no block
    * the tiles of columns by falling number of blocks
    * the L1 map: ids of the blocks
    """

    name: ClassVar[str] = "column_blocks"
    operands: ClassVar[int] = 2

    @property
    def block_steps(self) -> int:
        return SIDE

    def check(self, k: int, n: int) -> None:
        super().check(k, n)
        if k % SIDE or k > SIDE * MOST_SLICES:
            raise ValueError(f"K={k} is not a multiple of {SIDE}, or above {SIDE * MOST_SLICES}")

    @staticmethod
    def header(k: int, n: int) -> int:
        """Return the number of words before the L1 map."""
        tiles = -(-n // SIDE)
        return tiles + 1 + tiles * -(-k // SIDE // 32) + tiles

    @staticmethod
    def map_of(tiles: TileSet) -> npt.NDArray[np.int32]:
        """Return the map of a nonempty set of active tiles."""
        ids, columns = tiles.l1_map, tiles.grid[1]
        rows = tiles.l2_table[ids]
        slices = len(tiles.l2_table) // columns
        starts = np.searchsorted(rows["region_n"], np.arange(columns + 1))
        words = -(-slices // 32)
        gaps = np.zeros((columns, 32 * words), np.uint8)
        gaps[:, :slices] = 1
        gaps[rows["region_n"], rows["k_start"] // SIDE] = 0
        packed = np.packbits(gaps, axis=1, bitorder="little").view("<u4").view(np.int32)
        order = np.argsort(-np.diff(starts), kind="stable")
        return np.concatenate([starts, packed.reshape(-1), order, ids]).astype(np.int32)

    def packed(self, matrix: Floats, ids: npt.NDArray[np.int32]) -> Floats:
        """Return the blocks of ``[K, N]`` with these ids."""
        k, n = matrix.shape
        turned = np.pad(matrix.T, ((0, -n % SIDE), (0, 0)))
        grid = turned.reshape(-1, SIDE, k // SIDE, SIDE).swapaxes(1, 2)
        return np.ascontiguousarray(grid.reshape(-1, SIDE, SIDE)[ids], np.float32)

    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        tiles = -(-n // SIDE)
        whole = np.zeros((tiles * (k // SIDE), SIDE, SIDE), stored[0].dtype)
        whole[np.asarray(stored[1])[self.header(k, n) :]] = stored[0]
        grid = whole.reshape(tiles, k // SIDE, SIDE, SIDE).swapaxes(1, 2)
        made: Any = grid.reshape(tiles * SIDE, k)[:n].T
        return np.asarray(made)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        tiles, depth = -(-n // SIDE), k // SIDE
        ids = b("Slice", stored[1], b.ints(self.header(k, n)), b.ints(2**31 - 1), b.ints(0))
        at = b("Reshape", b("Cast", ids, to=DType.I64.onnx), b.ints(-1, 1))
        zeros = b("ConstantOfShape", b.ints(tiles * depth, SIDE, SIDE))
        whole = b("Reshape", b("ScatterND", zeros, at, stored[0]),
                  b.ints(tiles, depth, SIDE, SIDE))  # fmt: skip
        rows = b("Reshape", b("Transpose", whole, perm=(1, 3, 0, 2)), b.ints(k, -1))
        return b.slice_last(rows, 0, n) if n % SIDE else rows


COLUMN_BLOCKS = ColumnBlocks()
