"""Skip the tiles of attention that a constant mask drops.

FusedAttention(q, k, v, mask)    ->    FusedAttention(q, k, v, mask, map of tiles)

Banded, block-causal and block-sparse masks leave some tiles of the scores without a key.  The
kernel visits the other tiles.  The result is exact for any mask: if every key of a query is
masked, or scores are too large for the mask, the kernel visits the skipped tiles as well.
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

_ROWS, _KEYS = 24, 16
"""Queries that the kernel takes at once (``TRACEA_QUERIES``), and keys of a panel."""
_DROPPED = -1e3
"""Addend at or below which a key counts as dropped."""
_MOST_LEFT = 0.9
"""Share of tiles with a key above which skipping the others is not worth it."""


@dataclass(frozen=True)
class MaskTiles:
    """Give attention a map of the tiles of scores in which its constant mask keeps any key."""

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
        kept, beyond = _kept(mask.array(), params.fill)
        rows, keys = mask.shape[-2:]
        tiles = TTGBuilder(-(-rows // _ROWS), 1, keys, (_ROWS, 1, _KEYS)).build_active(
            _any_in_tiles(kept)
        )
        grid = TileGrid(_ROWS, _KEYS, tiles.grid[0], -(-keys // _KEYS), beyond)
        places = tiles.l1_map
        if (left := len(places) / grid.count) > _MOST_LEFT:
            return f"the mask {name!r} leaves only {1 - left:.0%} of the tiles to skip"
        return grid, Weight(f"{name}_tile_map", DType.I32, places.shape, lambda: places)


def _kept(mask: npt.NDArray[Any], fill: float) -> tuple[npt.NDArray[np.bool_], float]:
    """Where any item or head keeps a key, ``[S, T]``, and a bound of what the mask adds elsewhere.

    A boolean mask replaces scores by ``fill``.
    """
    flat = mask.reshape(-1, *mask.shape[-2:])
    if flat.dtype == np.bool_:
        return np.any(flat, axis=0), fill
    dropped = np.all(flat <= _DROPPED, axis=0)  # NaN is kept
    return ~dropped, float(flat.max(0)[dropped].max(initial=-np.inf))


def _any_in_tiles(kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which tiles hold a kept key: ``[rows of tiles, 1, tiles of keys]``."""
    rows, keys = kept.shape
    padded = np.pad(kept, ((0, -rows % _ROWS), (0, -keys % _KEYS)))
    blocks = padded.reshape(-(-rows // _ROWS), _ROWS, 1, -(-keys // _KEYS), _KEYS)
    active: npt.NDArray[np.bool_] = np.any(blocks, axis=(1, 4))
    return active
