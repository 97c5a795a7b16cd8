"""Attention of few queries to caches, to which it appends the rows of new keys and values.

Without new rows, queries see all keys, or those that a mask keeps; none is read behind the last of
these.  Rows may lie in pages that a table names.

Blocks, and lanes of a block, share the keys; their sums are added in a fixed order.  Source of the
split: Dao et al., "Flash-Decoding for long-context inference", 2023.
"""

from __future__ import annotations

from math import inf
from typing import Any

from tracea_graph.ir import DType, Expr, Extent, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.attention import MASKS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Launch, divisor, f32, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.attention import LOWEST

__all__ = [
    "HEADS", "TOGETHER", "appends_rows", "groups_of", "head_of", "is_multiple", "launch",
    "launch_of_tiles", "name", "name_of", "named_operands", "parameters",
    "parameters_of_operands", "refusal", "shared",
]  # fmt: skip

HEADS = (32, 64, 128, 256)
"""Sizes of heads."""
TOGETHER = (1, 2, 4)
"""Numbers of queries of a block, which read each key once."""
_LINE, _AHEAD = 128, 512
"""Bytes of a line of L2, and rows of a cache that are asked for before a kernel waits."""
_RUN, _LEAST_LANES, _PAD, _BYTES = 16, 4, 4, 16
"""Numbers of a key that a lane multiplies, lanes that a key has at least, padding of rows of sums
in numbers, and bytes of one load.
"""
_HIDDEN = {"masked": LOWEST, "infinite": -inf}
"""Largest addend to the score of a hidden key, or score in its place, by ``zero_rows``."""
_ABSORBED = -1e30
"""The same for other ``zero_rows``: beside a key with a larger addend the weight is 0."""
_SHARED = 99 << 10
"""Bytes of shared memory that a block has on every GPU with clusters."""


_LOADED = ("q", "new_k", "new_v", "past_k", "past_v", "k", "v", "y")
"""Operands that the kernel reads or writes in vectors, besides the tables of angles."""


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can.

    Blocks that share keys copy whole vectors alone: half of the code, and most of it is executed
    once or twice, so its way from memory takes as long as what it computes.
    """
    if variant.params["cluster"] == 1:
        return ""
    named, vector = named_operands(call), _vector(call)
    views = [named[n] for n in (*_LOADED, "cos", "sin") if named[n] is not None]
    for view in views:
        steps = (view.offset, *view.strides[:-1])
        if view.strides[-1] != 1 or not all(is_multiple(n, vector) for n in steps):
            return f"its rows are not known to be runs of {vector} numbers"
    return ""


def is_multiple(extent: Extent, of: int) -> bool:
    """Whether an extent is a multiple of a number at all sizes, as far as its factors show."""
    if isinstance(extent, Expr) and extent.op == "mul":
        return any(is_multiple(n, of) for n in extent.args)
    if isinstance(extent, Expr) and extent.op in ("add", "sub"):
        return all(is_multiple(n, of) for n in extent.args)
    return isinstance(extent, int) and extent % of == 0


def named_operands(call: Call) -> dict[str, Any]:
    """Return the views of a call by operand, None for those that it lacks."""
    return CALLS.of(call).named(call)


def appends_rows(call: Call) -> bool:
    """Whether new rows are written into the caches."""
    return named_operands(call)["new_k"] is not None


def head_of(call: Call) -> int:
    """Return the number of columns of a head."""
    size = named_operands(call)["q"].dims[-1]
    assert isinstance(size, int)
    return size


def _cache_type(call: Call) -> DType:
    return TYPES[str(call.attributes["cache_type"])]


def name(call: Call) -> str:
    return name_of(call, "attention_cached", f"{head_of(call)}x{call.attributes['queries']}")


def name_of(call: Call, op: str, sizes: str) -> str:
    """Return the words that name a kernel of caches, whose source depends on ``sizes``."""
    a = call.attributes
    words = [f"{op}_d{sizes}", str(a["cache_type"])]
    words += [str(a["zero_rows"])] + ["capped"] * (a["softcap"] > 0)
    words += ["normed"] * (named_operands(call)["q_gamma"] is not None)
    words += ["as_is"] * (not appends_rows(call)) + [str(a["mask_kind"])] * (
        a["mask_kind"] != "none"
    )
    words += [f"pages{a['page_size']}", str(a["index_type"])] * (a["page_size"] > 0)
    return "_".join(words + ["rotated"] * (named_operands(call)["cos"] is not None))


def parameters_of_operands(call: Call) -> dict[str, Any]:
    """Return the parameters of templates that name a call's operands and masks."""
    a = call.attributes
    mask_type = MASKS.get(str(a["mask_kind"]), DType.F32)
    return {
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "cache": chain_parameters.ELEMENTS[_cache_type(call)],
        "appends": appends_rows(call),
        "rotated": named_operands(call)["cos"] is not None,
        "normed": named_operands(call)["q_gamma"] is not None,
        "capped": a["softcap"] > 0,
        "zero_rows": a["zero_rows"],
        "lowest": f"{LOWEST.hex()}f",
        "hidden": _literal(_HIDDEN.get(str(a["zero_rows"]), _ABSORBED)),
        "mask": a["mask_kind"],
        "mask_element": chain_parameters.ELEMENTS[mask_type],
        "mask_run": _BYTES // int(mask_type.size),
        "page_size": a["page_size"],
        "index_element": a["index_type"],
        "head": head_of(call),
    }  # fmt: skip


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    head, queries = head_of(call), int(call.attributes["queries"])
    lanes, vector, keys, warps = _lanes(call), _vector(call), 32 // _lanes(call), _warps(variant)
    size = int(_cache_type(call).size)
    return {
        **parameters_of_operands(call),
        "kind": "f16", "instructions": (),  # of warpgroups, which it does not use
        "queries": queries, "lanes": lanes, "keys": keys,
        "halvings": _halvings(lanes, queries),
        "vector": vector, "vector_bytes": vector * size, "value_lanes": min(32, head // vector),
        "key_pitch": _key_pitch(call), "weight_pitch": _weight_pitch(call),
        "whole": variant.params["cluster"] > 1,
        "stages": _stages(call, variant), "stage_bytes": _stage_bytes(call),
        "ring_bytes": _ring_bytes(call, variant),
        "warps": warps, "pitch": head + _PAD,
        "ahead": _AHEAD, "lines": max(1, head * size // _LINE),
    }  # fmt: skip


def _literal(number: float) -> str:
    return "-__builtin_inff()" if number == -inf else f"{number.hex()}f"


def _warps(variant: Variant) -> int:
    return variant.threads // 32


def _lanes(call: Call) -> int:
    """Return the number of lanes that compute the scores of a key."""
    return max(_LEAST_LANES, head_of(call) // _RUN)


def _vector(call: Call) -> int:
    """Return the numbers of one load; a lane has an even number of them, for rotation."""
    return min(_BYTES // int(_cache_type(call).size), head_of(call) // _lanes(call) // 2)


def _halvings(lanes: int, queries: int) -> list[tuple[int, int]]:
    """Return the distances of lanes that exchange scores, and how many queries each has before."""
    made = []
    while lanes > 1:
        lanes //= 2
        made.append((lanes, queries))
        queries = max(1, queries // 2)
    return made


def _key_pitch(call: Call) -> int:
    """Return the distance of keys in shared memory: eight lanes read 128 different bytes."""
    size = int(_cache_type(call).size)
    row, read = head_of(call) * size, _lanes(call) * _vector(call) * size
    return (row + (read if read < _LINE and row % _LINE == 0 else 0)) // size


def _weight_pitch(call: Call) -> int:
    """Return the numbers of a warp's weights: of its keys and of earlier sums, for each query."""
    count = (32 // _lanes(call) + 1) * int(call.attributes["queries"])
    return -(-count // 4) * 4


def _stages(call: Call, variant: Variant) -> int:
    """Return how often a warp's ring has its keys: more than those of 512 rows, where they fit."""
    if variant.params["cluster"] == 1:
        return 1
    each, most = _warps(variant) * _stage_bytes(call), 2 if head_of(call) <= 64 else 3
    return max(1, min(most, (_SHARED - _beside_rings(call, variant)) // each))


def _stage_bytes(call: Call) -> int:
    size = int(_cache_type(call).size)
    return 32 // _lanes(call) * (_key_pitch(call) + head_of(call)) * size


def _ring_bytes(call: Call, variant: Variant) -> int:
    """Return the bytes of a warp's ring, which holds its sums in the end."""
    sums = int(call.attributes["queries"]) * (head_of(call) + _PAD) * 4
    return max(_stages(call, variant) * _stage_bytes(call), sums)


def _beside_rings(call: Call, variant: Variant) -> int:
    """Return the bytes of shared memory for queries, weights and what blocks send each other."""
    queries, split = int(call.attributes["queries"]), variant.params["cluster"]
    warps = _warps(variant)
    received = split * queries * (head_of(call) + _PAD) + 4 if split > 1 else 0
    own = queries * head_of(call) + warps * (_weight_pitch(call) + 32 * _vector(call))
    return (received + own) * 4


def shared(call: Call, variant: Variant) -> int:
    return _beside_rings(call, variant) + _warps(variant) * _ring_bytes(call, variant)


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    queries = int(call.attributes["queries"])
    return launch_of_tiles(call, variant, symbol, queries, shared(call, variant))


def groups_of(call: Call, queries: int) -> Extent:
    """Return how many times a head of the caches is read, each time for so many queries."""
    named = named_operands(call)
    batch, heads, rows, _ = named["q"].dims
    kept = named["k" if appends_rows(call) else "past_k"].dims[1]
    count = combine("mul", combine("floordiv", heads, kept), rows)
    return product((batch, kept, combine("ceildiv", count, queries)))


def launch_of_tiles(call: Call, variant: Variant, symbol: str, queries: int, taken: int) -> Launch:
    """Return the launch of blocks of so many queries, with ``taken`` bytes of shared memory."""
    named, a = named_operands(call), call.attributes
    own, cache = TYPES[call.dtype], _cache_type(call)
    q: View = named["q"]
    _, heads, rows, _ = q.dims
    appends = appends_rows(call)
    _, kept, slots, _ = named["k" if appends else "past_k"].dims
    held = named["past_k"].dims[2]
    made = []
    for operand in ("q", "new_k", "new_v") if appends else ("q",):
        made += [pointer(named[operand], own), *map(i32, named[operand].strides)]
    for operand in ("past_k", "past_v"):
        made += [pointer(named[operand], cache), *map(i32, named[operand].strides)]
    for operand in ("cos", "sin") if named["cos"] is not None else ():
        made += [pointer(named[operand], own), *map(i32, named[operand].strides)]
    if named["q_gamma"] is not None:
        made += [pointer(named[operand], DType.F32) for operand in ("q_gamma", "k_gamma")]
        made.append(f32(float(a["epsilon"])))
    if appends:
        made += [pointer(named["positions"], DType.I64), i32(named["positions"].strides[0])]
    for operand in ("k", "v") if appends else ():
        made += [pointer(named[operand], cache), *map(i32, named[operand].strides)]
    if (table := named["table"]) is not None:
        held = slots = combine("mul", table.dims[1], held)
        made += [pointer(table, DType.from_short(str(a["index_type"]))), *map(i32, table.strides)]
        made.append(i32(named["past_k"].dims[0]))
    if (mask := named["mask"]) is not None:
        made += [pointer(mask, MASKS[str(a["mask_kind"])]), *map(i32, mask.strides)]
        made.append(f32(float(a["fill"])))
    made += [pointer(named["y"], own), *map(i32, named["y"].strides)]
    group = combine("floordiv", heads, kept)
    count = combine("mul", group, rows)
    tiles = combine("ceildiv", count, queries)
    made += [*map(divisor, (tiles, kept, group)), *map(i32, (count, rows))]
    made += [i32(held), i32(slots)]
    made += [f32(float(a[n])) for n in ("scale", "softcap")]
    read = [named[n] for n in ("positions", "past_k", "past_v", "table", "mask")]
    made.append(i32(int(all(v is None or v.buffer.kind == "input" for v in read))))
    blocks = combine("mul", groups_of(call, queries), variant.params["cluster"])
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
