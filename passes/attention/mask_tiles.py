"""Skip the tiles of attention that a constant mask drops.

FusedAttention(q, k, v, mask)    ->    FusedAttention(q, k, v, mask, map of tiles)

Banded, block-causal and block-sparse masks leave some tiles of the scores without a key.  The
kernel visits the other tiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Weight
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.attention_tiles import TileGrid
from tracea_graph.reason_codes import not_constant_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph, TTGBuilder

__all__ = ["MaskTiles"]

_MOST_LEFT = 0.9
"""Share of tiles with a key above which skipping the others is not worth it."""
Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class MaskTiles:
    """Give attention a map of the tiles of scores in which its constant mask keeps any key.

    A tile has ``rows`` queries and ``keys`` keys, as the backend's kernel takes them.  A key is
    dropped if the mask adds ``dropped`` or less to its score.  With ``by_row`` the map is a list
    by rows (:mod:`tracea_graph.ops.attention_tiles`), for kernels that never visit other tiles:
    rows of tiles with a query that has no key left list all tiles, unless −∞ drops its keys.
    """

    rows: int
    keys: int
    dropped: float
    by_row: bool = False
    name: str = "mask-tiles"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, AttentionParams) or params.mask == "none" or params.tiles:
            return
        found = self._tiled(graph, region, params)
        if isinstance(found, str):
            yield Miss(self.name, region.id, found)
            return
        grid, active = found
        operands = (*region.operands, active.name)
        tiled = dataclasses.replace(params, tiles=grid)
        new = dataclasses.replace(region, params=tiled, operands=operands, rule=self.name)
        yield Proposal(self.name, (region,), (new,), weights={active.name: active})

    def _tiled(
        self, graph: TileGraph, region: Region, params: AttentionParams
    ) -> tuple[TileGrid, Weight] | str:
        """The grid and the map of active tiles, or why there is none."""
        name = region.operands[3]
        mask = graph.weight(name)
        if mask is None:
            return not_constant_reason(name)
        if params.window or params.causal != "none":
            return "causal order or a window already skips tiles"
        if len(mask.shape) < 2 or min(mask.shape[-2:]) == 1:
            return f"the mask {name!r} does not depend on queries and keys"
        numbers = mask.array()
        if self.by_row and numbers.dtype == np.bool_ and params.fill > self.dropped:
            return f"the mask {name!r} replaces scores by {params.fill:g}, which drops no key"
        kept, beyond = self._kept(numbers, params.fill)
        rows, keys = mask.shape[-2:]
        filled = self._in_tiles(kept)
        if self.by_row:
            filled |= self._in_tiles(_lost(numbers, self.dropped, params.fill)[:, None])
            filled[~filled.any(axis=1), 0] = True
        tiles = TTGBuilder(-(-rows // self.rows), 1, keys, (self.rows, 1, self.keys)).build_active(
            filled[:, None]
        )
        grid = TileGrid(
            self.rows, self.keys, tiles.grid[0], -(-keys // self.keys), beyond, self.by_row,
            _band(kept, _changed(numbers)) if self.by_row else None,
        )  # fmt: skip
        places = tiles.l1_map
        if (left := len(places) / grid.count) > _MOST_LEFT:
            return f"the mask {name!r} leaves only {1 - left:.0%} of the tiles to skip"
        if self.by_row:
            places = _by_row(grid, places, self._in_tiles(_changed(numbers), outside=True))
        return grid, Weight(f"{name}_tile_map", DType.I32, places.shape, lambda: places)

    def _kept(self, mask: npt.NDArray[Any], fill: float) -> tuple[Bits, float]:
        """Where any item or head keeps a key, ``[S, T]``, and a bound of what is added elsewhere.

        A boolean mask replaces scores by ``fill``.
        """
        flat = mask.reshape(-1, *mask.shape[-2:])
        if flat.dtype == np.bool_:
            return np.any(flat, axis=0), fill
        dropped = np.all(flat <= self.dropped, axis=0)  # NaN is kept
        return ~dropped, float(flat.max(0)[dropped].max(initial=-np.inf))

    def _in_tiles(self, marked: Bits, outside: bool = False) -> Bits:
        """Which tiles hold a marked score: ``[rows of tiles, tiles of keys]``.

        ``outside`` is what holds for keys behind the last one.  Queries behind the last one do not
        count.
        """
        rows, keys = marked.shape
        padded = np.pad(marked, ((0, 0), (0, -keys % self.keys)), constant_values=outside)
        padded = np.pad(padded, ((0, -rows % self.rows), (0, 0)))
        blocks = padded.reshape(-1, self.rows, padded.shape[1] // self.keys, self.keys)
        found: Bits = np.any(blocks, axis=(1, 3))
        return found


def _lost(mask: npt.NDArray[Any], dropped: float, fill: float) -> Bits:
    """Which queries have no key left in some item or head, but finite scores."""
    flat = mask.reshape(-1, *mask.shape[-2:])
    if flat.dtype == np.bool_:
        found = np.any(~np.any(flat, axis=2), axis=0) & (fill > -np.inf)
    else:
        largest = flat.max(2)
        found = np.any((largest <= dropped) & (largest > -np.inf), axis=0)
    return np.asarray(found)


def _changed(mask: npt.NDArray[Any]) -> Bits:
    """Which scores the mask changes in some item or head, ``[S, T]``."""
    flat = mask.reshape(-1, *mask.shape[-2:])
    return np.asarray(np.any(~flat if flat.dtype == np.bool_ else flat != 0, axis=0))


def _band(kept: Bits, changed: Bits) -> tuple[int, int] | None:
    """Return the keys that a mask keeps before and after each query; None if it keeps others.

    The last query lies at the last key.
    """
    rows, keys = kept.shape
    if not np.array_equal(kept, ~changed) or not kept.any(axis=1).all():
        return None
    places = np.arange(rows) + keys - rows
    first, last = kept.argmax(axis=1), keys - 1 - kept[:, ::-1].argmax(axis=1)
    before, after = int((places - first).max()), int((last - places).max())
    if min(before, after) < 0:
        return None
    behind = np.arange(keys) - places[:, None]
    near = (behind >= -before) & (behind <= after)
    return (before, after) if np.array_equal(kept, near) else None


def _by_row(grid: TileGrid, active: npt.NDArray[Any], changed: Bits) -> npt.NDArray[np.int32]:
    """Return the list by rows of active tiles, given by their numbers in ascending order."""
    row, column = np.divmod(active, grid.key_tiles)
    starts = grid.row_tiles + 1 + np.searchsorted(row, np.arange(grid.row_tiles + 1))
    return np.concatenate([starts, 2 * column + changed[row, column]]).astype(np.int32)
