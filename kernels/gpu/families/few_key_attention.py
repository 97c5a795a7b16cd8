"""Attention to few keys for sm_90a: a warpgroup (``wgmma``) holds the scores of all keys."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import combine, product
from tracea_graph.kernels.gpu.families import warpgroup_attention
from tracea_graph.kernels.gpu.families.attention import MASKS, heads_of, views_by_operand
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.families.warpgroup_attention import HeadTile
from tracea_graph.kernels.gpu.launch import Launch, divisor, f32, i32, pointer, tensor_map
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = [
    "launch", "launch_of_tiles", "name", "parameters", "refusal", "shared", "tile_of",
]  # fmt: skip

_WIDE, _QUERIES = 64, 64
"""Maximum head size, and number of queries of a block."""


def tile_of(call: Call, variant: Variant) -> HeadTile:
    """Return the shared-memory layout of a head; a block holds all its keys at once."""
    depth, depth_v = heads_of(call)
    up = -(-depth // 16) * 16, -(-depth_v // 16) * 16
    return HeadTile(1, variant.params["keys"], 1, *up)


def _mask_at(call: Call, variant: Variant) -> int:
    tile = tile_of(call, variant)
    return tile.q_bytes + tile.k_bytes + tile.v.nbytes


def name(call: Call) -> str:
    return warpgroup_attention.name(call).replace("flash", "attend", 1)


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    if max(heads_of(call)) > _WIDE:
        return f"heads have more than {_WIDE} columns"
    keys = views_by_operand(call)["k"].dims[2]
    if isinstance(keys, int) and not 0 < keys <= variant.params["keys"]:
        return f"the number of keys is 0 or above {variant.params['keys']}"
    return warpgroup_attention.refusal(call, variant)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    tile = tile_of(call, variant)
    return {
        **warpgroup_attention.parameters(call, variant),
        "mask_at": _mask_at(call, variant),
        "barriers_at": _mask_at(call, variant) + 4 * tile.keys,
    }


def shared(call: Call, variant: Variant) -> int:
    return _mask_at(call, variant) + 4 * variant.params["keys"] + 16


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    return launch_of_tiles(call, variant, symbol, _QUERIES, shared(call, variant))


def launch_of_tiles(
    call: Call, variant: Variant, symbol: str, rows: int, taken: int, mask_axes: int = 4
) -> Launch:
    """Return the launch of an attention with one block for each head and tile of ``rows`` queries.

    A block holds all keys and uses ``taken`` bytes of shared memory.  The kernel reads the first
    ``mask_axes`` strides of the mask.
    """
    named, a, own = views_by_operand(call), call.attributes, TYPES[call.dtype]
    batch, heads, queries, _ = named["q"].dims
    heads_k, keys = named["k"].dims[1:3]
    made = [tensor_map(named["q"], own, (1, 1, rows, _WIDE))]
    made += [tensor_map(named[n], own, (1, 1, variant.params["keys"], _WIDE)) for n in ("k", "v")]
    if a["mask_kind"] != "none":
        made += [pointer(named["mask"], MASKS[str(a["mask_kind"])])]
        made += map(i32, named["mask"].strides[:mask_axes])
    made += [pointer(named["y"], own), *map(i32, named["y"].strides[:-1])]
    tiles = combine("ceildiv", queries, rows)
    made += [divisor(tiles), divisor(heads), divisor(combine("floordiv", heads, heads_k))]
    made += [i32(queries), i32(keys)]
    made += [f32(float(a[one])) for one in ("scale", "fill", "softcap")]
    blocks = product((batch, heads, tiles))
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
