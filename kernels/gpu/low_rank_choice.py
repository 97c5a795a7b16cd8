"""Predict whether two matmuls by the factors of a matrix are faster in one launch."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import Extent, combine
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import low_rank_matmul
from tracea_graph.kernels.gpu.tile_choice import (
    CYCLES,
    DEPTH_TILES,
    LEAST_SIDE,
    WARPGROUP_TILES,
    warpgroup_cycles,
)
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.program import Call

__all__ = ["low_rank_choices"]

_ROWS, _CLUSTERS = 64, 66
"""Rows of a cluster of two blocks, and clusters that an H100 runs at a time."""
_WARPGROUPS = 4
"""Warpgroups of a cluster, which share the columns of the result."""
_LEAST_ROWS, _MOST_ROWS = 3072, _ROWS * _CLUSTERS
"""Fewest rows, of which clusters fill an H100, and most of one wave."""
_START = 2.8
_TIMES: Mapping[tuple[int, int, bool], tuple[float, float]] = MappingProxyType({
    (192, 128, True): (0.0022, 0.0142), (128, 128, True): (0.0022, 0.0163),
    (192, 64, True): (0.00145, 0.0110), (128, 64, True): (0.00145, 0.0136),
    (192, 64, False): (0.0035, 0.0115), (128, 64, False): (0.0025, 0.0137),
    (192, 128, False): (0.0055, 0.0193), (128, 128, False): (0.0054, 0.0211),
})  # fmt: skip
"""Microseconds of a wave of clusters; of a number along the depth, and of a column of a
warpgroup's results, by the columns of a tile, those of the first product of a block, and whether
a block computes half of its depth.
"""
_BEYOND = 0.00003
"""Microseconds of a number along the depth for each column beyond the rank that is copied."""
_TWO, _GAIN = 2.6, 1.05
"""What two launches take besides the modelled cycles of both, and the
factor by which they must be slower.

All are fitted to BERT-base's and MiniLM's matmuls by ranks of 64 to 256
(``python -m tests.gpu.timing "low rank"``, one H100 and one H200).
"""


def low_rank_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernel of a low-rank pair for many rows; both parts of the call name it."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    (rows, columns), depth = named["y"][0].dims, named["x"].dims[1]
    sizes = columns, depth, named["middle"].dims[1]
    if not all(isinstance(n, int) and n >= LEAST_SIDE for n in (columns, depth)):
        return []
    able = [v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype)
            and not low_rank_matmul.refusal(call, v)]  # fmt: skip
    if not able:
        return []
    best = min(able, key=lambda v: _one(v, 1, *sizes))

    def pays(height: int) -> bool:
        one = _one(best, height, *sizes)
        return _GAIN * one < _two(height, *sizes)

    if isinstance(rows, int):
        return [(best, 1)] if _LEAST_ROWS <= rows <= _MOST_ROWS and pays(rows) else []
    if not all(map(pays, (_LEAST_ROWS, _MOST_ROWS))):
        return []
    within = combine("sub", _MOST_ROWS + 1, rows)
    return [(best, combine("min", within, combine("sub", rows, _LEAST_ROWS - 1)))]


def _one(variant: Variant, rows: int, columns: int, depth: int, rank: int) -> float:
    """Return the modelled µs of one launch."""
    n, waves = variant.params["n"], ceil(ceil(rows / _ROWS) / _CLUSTERS)
    alone = bool(variant.params["half_depth"])
    per_step, per_column = _TIMES[n, variant.params["first"], alone]
    per_step += 0.0 if alone else -rank % LEAST_SIDE * _BEYOND
    own = ceil(ceil(columns / n) / _WARPGROUPS) * n  # of a warpgroup, one tile after another
    return waves * (_START + depth * per_step + own * per_column)


def _two(rows: int, columns: int, depth: int, rank: int) -> float:
    """Return the modelled µs of two launches."""
    tiles = (*WARPGROUP_TILES, *DEPTH_TILES)
    sides = (max(rank, LEAST_SIDE), depth), (columns, max(rank, LEAST_SIDE))
    cycles = sum(warpgroup_cycles(rows, n, k, tiles=tiles) for n, k in sides)
    return cycles / CYCLES + _TWO
