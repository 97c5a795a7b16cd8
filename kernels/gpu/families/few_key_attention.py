"""Attention to few keys for sm_90a: a warpgroup (``wgmma``) holds the scores of all keys.

A block takes several tiles of 64 queries of a head, one after another, where a GPU would otherwise
run several waves of blocks: keys and values are copied once for all, and the queries of the next
tile while this one is computed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.ir import Extent, combine, product
from tracea_graph.kernels.gpu.families import warpgroup_attention
from tracea_graph.kernels.gpu.families.attention import (
    MASKS,
    heads_of,
    is_listed,
    is_windowed,
    result_of,
    views_by_operand,
)
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.families.warpgroup_attention import STRIP, HeadTile
from tracea_graph.kernels.gpu.launch import Launch, divisor, f32, i32, pointer, tensor_map
from tracea_graph.kernels.gpu.tile_choice import H100_SMS
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = [
    "launch", "launch_of_tiles", "name", "parameters", "refusal", "shared", "tile_of",
    "tiles_of_block", "visits_refusal",
]  # fmt: skip

_WIDE, _QUERIES = 64, 64
"""Maximum head size, and number of queries of a block."""
_MANY = 128
"""Keys above which scores leave few registers."""


def tile_of(call: Call, variant: Variant) -> HeadTile:
    """Return the shared-memory layout of a head; a block holds all its keys at once."""
    depth, depth_v = heads_of(call)
    up = -(-depth // 16) * 16, -(-depth_v // 16) * 16
    return HeadTile(1, variant.params["keys"], 1, *up)


def _strips_at(call: Call, variant: Variant) -> int:
    """Return the offset of the strips in which warps order their results."""
    tile = tile_of(call, variant)
    return tile.q_bytes + tile.k_bytes + tile.v.nbytes


def _mask_at(call: Call, variant: Variant) -> int:
    return _strips_at(call, variant) + 4 * STRIP


def _barriers_at(call: Call, variant: Variant) -> int:
    return _mask_at(call, variant) + 4 * variant.params["keys"]


def _simple(call: Call) -> bool:
    """Whether scores change only by numbers for each key, and by keys that queries do not see."""
    a, mask = call.attributes, call.attributes["mask_kind"]
    summed = mask == "none" or (mask == "add" and warpgroup_attention.mask_is_flat(call))
    return bool(summed and a["softcap"] == 0)


def _resident(call: Call, variant: Variant) -> int:
    """Return how many blocks of an SM have registers: fewer if scores are masked one by one."""
    plain = _simple(call) and call.attributes["order"] == "none"
    bits = call.attributes["mask_kind"] == "bool" and not warpgroup_attention.mask_is_flat(call)
    fewer = bits or (not plain and variant.params["keys"] > _MANY)
    return min(variant.params["blocks"], 2) if fewer else variant.params["blocks"]


def name(call: Call) -> str:
    return warpgroup_attention.name(call).replace("flash", "attend", 1)


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    if max(heads_of(call)) > _WIDE:
        return f"heads have more than {_WIDE} columns"
    keys = views_by_operand(call)["k"].dims[2]
    if isinstance(keys, int) and not 0 < keys <= variant.params["keys"]:
        return f"the number of keys is 0 or above {variant.params['keys']}"
    if why := visits_refusal(call):
        return why
    return warpgroup_attention.refusal(call, variant)


def visits_refusal(call: Call) -> str:
    """Return why a kernel that holds all keys cannot compute a call, or "" if it can."""
    if is_listed(call) or is_windowed(call) or call.attributes["order"] == "placed":
        return "it visits all keys, in no window and from no positions"
    if call.attributes["zero_rows"] not in ("none", "guarded"):
        return "rows without keys become zeros"
    return ""


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    found = warpgroup_attention.parameters(call, variant)
    return {
        **found,
        "resident": _resident(call, variant),
        "simple": _simple(call),
        "powers": found["altered"],
        "strips_at": _strips_at(call, variant),
        "strip_bytes": STRIP,
        "mask_at": _mask_at(call, variant),
        "barriers_at": _barriers_at(call, variant),
    }


def shared(call: Call, variant: Variant) -> int:
    return _barriers_at(call, variant) + 24


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named = views_by_operand(call)
    batch, heads, queries, _ = named["q"].dims
    tiles = combine("ceildiv", queries, _QUERIES)
    each = tiles_of_block(product((batch, heads, tiles)), tiles, _resident(call, variant))
    found = launch_of_tiles(
        call, variant, symbol, _QUERIES, shared(call, variant), combine("ceildiv", tiles, each)
    )
    return replace(found, arguments=(*found.arguments, i32(each)))


def tiles_of_block(all_tiles: Extent, tiles: Extent, resident: int) -> Extent:
    """Return how many tiles of a head a block takes: as many as there are waves, rounded."""
    wave = H100_SMS * resident
    waves = combine("floordiv", combine("add", all_tiles, wave // 2), wave)
    return combine("max", 1, combine("min", tiles, waves))


def launch_of_tiles(
    call: Call,
    variant: Variant,
    symbol: str,
    rows: int,
    taken: int,
    blocks_of_head: Extent,
    mask_axes: int = 4,
) -> Launch:
    """Return the launch of an attention with ``blocks_of_head`` blocks for each head.

    A block holds all keys, copies ``rows`` queries at a time, and uses ``taken`` bytes of shared
    memory.  The kernel reads the first ``mask_axes`` strides of the mask.
    """
    named, a, own = views_by_operand(call), call.attributes, TYPES[call.dtype]
    batch, heads, queries, _ = named["q"].dims
    heads_k, keys = named["k"].dims[1:3]
    made = [tensor_map(named["q"], own, (1, 1, rows, _WIDE))]
    made += [tensor_map(named[n], own, (1, 1, variant.params["keys"], _WIDE)) for n in ("k", "v")]
    if a["mask_kind"] != "none":
        made += [pointer(named["mask"], MASKS[str(a["mask_kind"])])]
        made += map(i32, named["mask"].strides[:mask_axes])
    made += result_of(call, named["y"].strides[:-1])
    made += [divisor(blocks_of_head), divisor(heads), divisor(combine("floordiv", heads, heads_k))]
    made += [i32(queries), i32(keys)]
    made += [f32(float(a[one])) for one in ("scale", "fill", "softcap")]
    blocks = product((batch, heads, blocks_of_head))
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
