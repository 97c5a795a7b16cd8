"""Choose kernels of matmuls with sparse matrices, and predict whether 2:4 sparse ones pay."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import Extent, combine
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import warpgroup_blocks, warpgroup_two_of_four
from tracea_graph.kernels.gpu.tile_choice import (
    BLOCK_TILES,
    H100_SMS,
    LEAST_MANY,
    TwoOfFourTile,
)
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.program import Call

__all__ = ["BLOCKS", "TWO_OF_FOUR", "block_choices", "two_of_four_choices", "two_of_four_cycles"]

BLOCKS, TWO_OF_FOUR = "gemm_blocks_wgmma.cu.in", "gemm_two_of_four_wgmma.cu.in"
_STEPS = 64
"""Steps of the depth that are copied at a time."""
_ROWS = (512, 1024, 2048, 4096, 8192)
"""Numbers of rows for which a tile is chosen if that number varies."""
_FLOPS, _BYTES = 4096, 42
"""Figures of an H100: multiply-adds, and bytes that are copied from L2, per SM and cycle."""
_PER_TILE, _PER_SUM, _PER_STEP, _PER_READ = 600, 0.075, 0.009, 0.08
"""Cycles of a tile besides its products; those of an epilogue per sum, per step of its chain, and
per matrix that it reads.

Fitted to BERT-base's matmuls at batch 32 and to 4096³ (``python -m tests.gpu.timing sparse24``,
one H100).
"""
_MEASURED: Mapping[tuple[int, int, int, int], TwoOfFourTile] = MappingProxyType({
    (32, 768, 3072, 1): (128, 256, 5),
})  # fmt: skip
"""Fastest tiles where the model of costs finds another: 25.1 µs, and 28.8 by 192 × 128.

Keys are the number of tiles of 128 rows, columns, depth, and the number of matrices that the
epilogue reads.
"""


def block_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the warpgroup kernels for a matmul over blocks, the one of many rows first."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    rows, columns = named["y"][0].dims
    found = list[tuple[Variant, Extent]]()
    if not isinstance(columns, int):
        return found
    able = [v for v in VARIANTS if v.template == BLOCKS and v.dtype == call.dtype
            and not warpgroup_blocks.refusal(call, v)]  # fmt: skip
    first, *_ = BLOCK_TILES
    for variant in able:
        m, n = variant.params["m"], variant.params["n"]
        full = 2 * H100_SMS * m // ceil(columns / n) if (m, n) == first[:2] else 0
        when = combine("sub", rows, max(full, LEAST_MANY) - 1)
        if not isinstance(when, int) or when > 0:
            found.append((variant, when))
    return found[:1] if isinstance(rows, int) else found


def two_of_four_choices(call: Call, steps: int, reads: int) -> list[tuple[Variant, Extent]]:
    """Return the warpgroup kernels for a matmul with a 2:4 sparse matrix; none for other calls.

    The one of most rows comes first.  ``steps`` and ``reads`` are those of
    ``choose_warpgroup_tiles``.
    """
    if call.op != "gemm_two_of_four":
        return []
    named: dict[str, Any] = CALLS.of(call).named(call)
    rows, columns = named["y"][0].dims
    depth = named["x"].dims[-1]
    if not (isinstance(columns, int) and isinstance(depth, int)):
        return []
    able = [v for v in VARIANTS if v.template == TWO_OF_FOUR and v.dtype == call.dtype
            and not warpgroup_two_of_four.refusal(call, v)]  # fmt: skip
    if not able or (isinstance(rows, int) and rows < LEAST_MANY):
        return []

    def best(known: int) -> Variant:
        measured = _MEASURED.get((ceil(known / 128), columns, depth, reads))
        return min([v for v in able if _tile_of(v) == measured] or able,
                   key=lambda v: _cycles(_tile_of(v), known, columns, depth, steps,
                                         reads))  # fmt: skip

    if isinstance(rows, int):
        return [(best(rows), combine("sub", rows, LEAST_MANY - 1))]
    found = list[tuple[Variant, Extent]]()
    for known in _ROWS:
        one, least = best(known), max(LEAST_MANY, known * 3 // 4)
        if not found or found[0][0] != one:
            found.insert(0, (one, combine("sub", rows, least - 1)))
    return found


def two_of_four_cycles(rows: int, columns: int, depth: int, steps: int, reads: int) -> float:
    """Return the modelled cycles of a matmul with a 2:4 sparse matrix in its best tile."""
    tiles = [_tile_of(v) for v in VARIANTS if v.template == TWO_OF_FOUR]
    return min(_cycles(tile, rows, columns, depth, steps, reads) for tile in tiles)


def _tile_of(variant: Variant) -> TwoOfFourTile:
    p = variant.params
    return p["m"], p["n"], p["stages"]


def _cycles(
    tile: TwoOfFourTile, rows: int, columns: int, depth: int, steps: int, reads: int
) -> float:
    """Return the modelled cycles of a tiled matmul on the SM that takes longest."""
    m, n, _ = tile
    count = ceil(ceil(rows / m) * ceil(columns / n) / H100_SMS)
    copied = 128 * m + 72 * n
    each = ceil(depth / _STEPS) * max(_STEPS * m * n / _FLOPS, copied / _BYTES) + _PER_TILE
    after = m * n * (_PER_SUM + steps * _PER_STEP + reads * _PER_READ)
    return count * (each + after)
