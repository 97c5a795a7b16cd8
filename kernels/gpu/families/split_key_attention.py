"""Attention of few heads and queries to few keys for sm_90a: warps share the keys."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import combine
from tracea_graph.kernels.gpu.families import warpgroup_attention
from tracea_graph.kernels.gpu.families.attention import heads_of, views_by_operand
from tracea_graph.kernels.gpu.families.few_key_attention import (
    launch_of_tiles,
    tile_of,
    visits_refusal,
)
from tracea_graph.kernels.gpu.families.warpgroup_attention import HeadTile
from tracea_graph.kernels.gpu.launch import Launch
from tracea_graph.kernels.gpu.semantic.bank_conflicts import Access, matrix_load, prove_free
from tracea_graph.kernels.gpu.semantic.fragment_layouts import ATOMS, WARP, MatrixLoad
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import LINE, Layout, SwizzleMode
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "refusal", "shared"]

_KEYS, _QUERIES, _WIDE = 32, 16, 64
"""Keys per warp, queries per block, and columns per copy, which is also the maximum head size."""
_PAD = 8
"""Padding of rows of partial results, in numbers."""
_LAYOUT = Layout(LINE, SwizzleMode.TMA128)


def name(call: Call) -> str:
    return warpgroup_attention.name(call).replace("flash", "split", 1)


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    if max(heads_of(call)) > _WIDE:
        return f"heads have more than {_WIDE} columns"
    keys, mask = views_by_operand(call)["k"].dims[2], views_by_operand(call)["mask"]
    if isinstance(keys, int) and not 0 < keys <= variant.params["keys"]:
        return f"the number of keys is 0 or above {variant.params['keys']}"
    if why := visits_refusal(call):
        return why
    if call.attributes["factor"]:
        return "results are not rounded to 8 bits"
    if mask is not None and (mask.strides[-2] != 0 or mask.strides[-1] != 1):
        return "the mask is not one contiguous row for all queries"
    return warpgroup_attention.refusal(call, variant)


def _warps(tile: HeadTile) -> int:
    return tile.keys // _KEYS


def _pitch(tile: HeadTile) -> int:
    """Return the row pitch of partial results, in numbers."""
    return tile.depth_v + _PAD


def _partial_at(tile: HeadTile) -> int:
    return (_QUERIES + 2 * tile.keys) * LINE


def _rows_at(tile: HeadTile) -> int:
    """Return the offset of the rows' maxima and sums, which follow the partial results."""
    return _partial_at(tile) + 4 * _warps(tile) * _QUERIES * _pitch(tile)


def _barriers_at(tile: HeadTile) -> int:
    return _rows_at(tile) + 2 * 4 * _QUERIES * _warps(tile)


def _prove(tile: HeadTile) -> None:
    """Prove accesses free of bank conflicts; raises BankConflict otherwise."""
    a = MatrixLoad(((0, 0), (8, 0), (0, 8), (8, 8)))
    nk = MatrixLoad(((0, 0), (0, 8), (8, 0), (8, 8)))
    kn = MatrixLoad(((0, 0), (8, 0), (0, 8), (8, 8)), transposed=True)
    for column in range(0, tile.depth, 16):
        prove_free([matrix_load("queries", a, _LAYOUT, 0, column),
                    matrix_load("keys", nk, _LAYOUT, 16, column)])  # fmt: skip
    columns = range(0, tile.depth_v, 16)
    prove_free([matrix_load("values", kn, _LAYOUT, 16, c) for c in columns])
    pitch, quads = _pitch(tile), tile.depth_v // 4
    stores = tuple(4 * (i // 4 * pitch + i % 4 * 2) for i in range(WARP))
    prove_free([Access("partial results", 8, stores)])
    if tile.depth_v % WARP == 0:
        loads = tuple(4 * (i // quads * pitch + i % quads * 4) for i in range(WARP))
        prove_free([Access("partial results", 16, loads)])


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    tile = tile_of(call, variant)
    _prove(tile)
    return {
        **warpgroup_attention.parameters(call, variant),
        "instructions": [],
        "layout": _LAYOUT,
        "fragment": ATOMS["m16n8k16.f16"].d,
        "queries": _QUERIES,
        "warps": _warps(tile),
        "q_bytes": _QUERIES * LINE,
        "k_bytes": tile.keys * LINE,
        "partial_at": _partial_at(tile),
        "pitch": _pitch(tile),
        "rows_at": _rows_at(tile),
        "barriers_at": _barriers_at(tile),
    }


def shared(call: Call, variant: Variant) -> int:
    return _barriers_at(tile_of(call, variant)) + 16


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    taken, queries = shared(call, variant), views_by_operand(call)["q"].dims[2]
    tiles = combine("ceildiv", queries, _QUERIES)
    return launch_of_tiles(call, variant, symbol, _QUERIES, taken, tiles, mask_axes=2)
