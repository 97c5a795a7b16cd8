"""Attention of few queries to caches, to which it appends the rows of new keys and values.

Blocks, and lanes of a block, share the keys; their sums are added in a fixed order.  Source of the
split: Dao et al., "Flash-Decoding for long-context inference", 2023.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Launch, divisor, f32, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.attention import LOWEST

__all__ = ["HEADS", "TOGETHER", "launch", "name", "parameters", "shared"]

HEADS = (32, 64, 128, 256)
"""Sizes of heads: eight numbers for each of the lanes that have a key."""
TOGETHER = (1, 2, 4)
"""Numbers of queries of a block, which read each key once."""
_LINE, _AHEAD = 128, 512
"""Bytes of a line of L2, and rows of a cache that are asked for before a kernel waits."""
_RUN, _STEPS, _PAD = 8, 2, 4
"""Numbers of a lane; keys that it asks for at a time if blocks share them, for registers hold no
more on some architectures; and padding of rows of sums.
"""


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def _head(call: Call) -> int:
    size = _named(call)["q"].dims[-1]
    assert isinstance(size, int)
    return size


def _cache_type(call: Call) -> DType:
    return TYPES[str(call.attributes["cache_type"])]


def name(call: Call) -> str:
    a = call.attributes
    words = [f"attention_cached_d{_head(call)}x{a['queries']}", str(a["cache_type"])]
    words += [str(a["zero_rows"])] + ["capped"] * (a["softcap"] > 0)
    words += ["normed"] * (_named(call)["q_gamma"] is not None)
    return "_".join(words + ["rotated"] * (_named(call)["cos"] is not None))


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    a, head = call.attributes, _head(call)
    lanes = head // _RUN
    return {
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "cache": chain_parameters.ELEMENTS[_cache_type(call)],
        "kind": "f16", "instructions": (),  # of warpgroups, which it does not use
        "rotated": _named(call)["cos"] is not None,
        "normed": _named(call)["q_gamma"] is not None,
        "capped": a["softcap"] > 0,
        "zero_rows": a["zero_rows"],
        "lowest": f"{LOWEST.hex()}f",
        "head": head, "queries": a["queries"], "lanes": lanes, "keys": 32 // lanes,
        "steps": _STEPS if variant.params["cluster"] > 1 else 1,
        "warps": variant.threads // 32, "pitch": head + _PAD,
        "ahead": _AHEAD, "lines": max(1, head * int(_cache_type(call).size) // _LINE),
    }  # fmt: skip


def shared(call: Call, variant: Variant) -> int:
    parts, split = variant.threads // 32, variant.params["cluster"]
    parts += split if split > 1 else 0
    return parts * int(call.attributes["queries"]) * (_head(call) + _PAD) * 4 + 16


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, a = _named(call), call.attributes
    own, cache = TYPES[call.dtype], _cache_type(call)
    q: View = named["q"]
    batch, heads, rows, _ = q.dims
    _, kept, slots, _ = named["k"].dims
    made = []
    for operand in ("q", "new_k", "new_v"):
        made += [pointer(named[operand], own), *map(i32, named[operand].strides)]
    for operand in ("past_k", "past_v"):
        made += [pointer(named[operand], cache), *map(i32, named[operand].strides)]
    for operand in ("cos", "sin") if named["cos"] is not None else ():
        made += [pointer(named[operand], own), *map(i32, named[operand].strides)]
    if named["q_gamma"] is not None:
        made += [pointer(named[operand], DType.F32) for operand in ("q_gamma", "k_gamma")]
        made.append(f32(float(a["epsilon"])))
    made += [pointer(named["positions"], DType.I64), i32(named["positions"].strides[0])]
    for operand in ("k", "v"):
        made += [pointer(named[operand], cache), *map(i32, named[operand].strides)]
    made += [pointer(named["y"], own), *map(i32, named["y"].strides)]
    group = combine("floordiv", heads, kept)
    count = combine("mul", group, rows)
    tiles = combine("ceildiv", count, int(a["queries"]))
    made += [*map(divisor, (tiles, kept, group)), *map(i32, (count, rows))]
    made += [i32(named["past_k"].dims[2]), i32(slots)]
    made += [f32(float(a[n])) for n in ("scale", "softcap")]
    blocks = product((batch, kept, tiles, variant.params["cluster"]))
    return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), tuple(made))
