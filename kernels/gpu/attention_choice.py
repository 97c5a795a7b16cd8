"""Choose the kernels of an attention, by its numbers of heads, queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracea_graph.ir import Extent, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import (
    attention,
    cached_attention,
    few_key_attention,
    grouped_attention,
    split_key_attention,
    warpgroup_attention,
)
from tracea_graph.kernels.gpu.tile_choice import FEW_KEYS, H100_SMS
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.program import Call

__all__ = [
    "attends", "attention_choices", "attention_refusal", "cache_choices", "cache_refusal",
    "keys_fit",
]  # fmt: skip

_FEW, _SPLIT = "attention_few.cu.in", "attention_split.cu.in"
_FLASH, _PLAIN = "attention_wgmma.cu.in", "attention.cu.in"
_GROUPED = "attention_grouped.cu.in"
_MOST_GROUPS = {"16x256x8": 8, "16x128x8": 24, "16x128x4": 63}
"""Most heads of caches, counted for each item and each 16 of its queries, for kernels with many
blocks for each of them; others take ``_OF_MANY``.

With 128 columns and 2048 keys in pages, µs by eight, four and two blocks of 128 threads: 14.3,
16.7 and 25.2 for 16 of them, 24.9, 22.6 and 29.0 for 32, 40.4, 41.2 and 35.5 for 64.  One token
of a decoder, eight heads of 64 and 512 keys, takes 3.8 by blocks of 256 threads, else 4.8 (one
H100).
"""
_OF_MANY = "16x128x2"
_LEAST_QUERIES = {3: 192, 2: 64}
"""Minimum number of queries for attention kernels, by their number of warpgroups."""
_TIMES = {3: (155, 224, 107), 2: (119, 190, 162)}
"""Hundredths of a µs that 128 keys of a tile take, a tile and a launch, by warpgroups.

Fitted to heads of 64 columns: 4096, 2048 and 1024 queries in order and 4096 of all keys
(``python -m tests.gpu.timing attention b``, one H100), within 4 %.
"""
_TILE_KEYS = 128
_LONG = 1024
"""Keys of a window from which on tiles of more queries are faster."""
_WIDE_TILE = "64x32"
_WHOLE_QUERIES, _MOST_SPLIT = 64, 96
"""Queries of a block that holds all keys, and the most such blocks for which warps share keys."""


def attention_refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute an attention, or "" if it can at some sizes."""
    own = {
        _FEW: few_key_attention.refusal, _SPLIT: split_key_attention.refusal,
        _FLASH: warpgroup_attention.refusal, _PLAIN: attention.refusal,
    }  # fmt: skip
    return own[variant.template](call, variant)


def cache_refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute an attention to caches, or "" if it can."""
    if variant.template == _GROUPED:
        return grouped_attention.refusal(call, variant)
    return cached_attention.refusal(call, variant)


def cache_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernels for attention to caches whose blocks form clusters, with tensor cores
    where these can compute it."""
    able = {v.tile: v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype)
            and v.params["cluster"] > 1 and not cache_refusal(call, v)}  # fmt: skip
    if _OF_MANY not in able:
        return [(v, 1) for v in able.values()]
    groups = cached_attention.groups_of(call, grouped_attention.QUERIES)
    found = [(able[tile], combine("sub", most + 1, groups))
             for tile, most in _MOST_GROUPS.items() if tile in able]  # fmt: skip
    found.append((able[_OF_MANY], 1))
    return _reached(found)


def _reached(found: Sequence[tuple[Variant, Extent]]) -> list[tuple[Variant, Extent]]:
    """Leave out kernels that are never used, and those behind one that always is."""
    able = [one for one in found if not isinstance(one[1], int) or one[1] > 0]
    at = next((i for i, (_, when) in enumerate(able) if isinstance(when, int)), len(able))
    return able[: at + 1]


def attention_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the warpgroup kernels for attention, those for few keys first."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    if call.dtype.startswith("tf32"):
        return _float32_choices(call)
    queries, found = named["q"].dims[2], list[tuple[Variant, Extent]]()
    keys = named["k"].dims[2]
    split = [(v, _split_when(call, v)) for v in VARIANTS if v.template == _SPLIT
             and v.dtype == call.dtype and not split_key_attention.refusal(call, v)]  # fmt: skip
    split = _reached(split)
    if split and isinstance(split[0][1], int):
        return split
    few = [v for v in VARIANTS if v.template == _FEW and v.dtype == call.dtype
           and not few_key_attention.refusal(call, v)]  # fmt: skip
    if isinstance(keys, int) and few:
        return [*split[:1], (few[0], 1)]
    few = [v for v in few if v.params["keys"] in FEW_KEYS]  # not a kernel more for any length
    for groups, least in _LEAST_QUERIES.items():
        for variant in VARIANTS:
            own = variant.op == "attention" and variant.params.get("groups") == groups
            if (
                own
                and variant.dtype == call.dtype
                and not warpgroup_attention.refusal(call, variant)
                and not (groups > 2 and _is_short(call))
            ):
                found.append((variant, combine("sub", queries, least - 1)))
    if len(found) > 1 and not attention.is_windowed(call):
        three, two = found
        gain = combine("sub", _hundredths(call, 2), _hundredths(call, 3))
        found = [(three[0], combine("min", three[1], combine("add", gain, 1))), two]
    few_keys = [(v, keys_fit(v, keys)) for v in few]
    return [*split, *few_keys, *_reached(found), *_wide_choices(call)]


def _hundredths(call: Call, groups: int) -> Extent:
    """Return the modelled hundredths of a µs in which the busiest block has done its tiles."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    batch, heads, queries, _ = named["q"].dims
    keys, rows = named["k"].dims[2], 64 * groups
    each, start, launch = _TIMES[groups]
    tiles = product((batch, heads, combine("ceildiv", queries, rows)))
    whole = combine("mul", combine("ceildiv", keys, _TILE_KEYS), each)
    longest = combine("add", whole, start)
    if call.attributes["order"] == "none":
        work = combine("mul", combine("ceildiv", tiles, H100_SMS), longest)
    else:  # half of the keys, and half of a tile's rows; blocks have as many long tiles as short
        seen = combine("mul", combine("add", keys, rows), each)
        seen = combine("floordiv", seen, 2 * _TILE_KEYS)
        start += each // 2 * (rows % _TILE_KEYS > 0)  # the last keys of every other tile are half
        work = combine("floordiv", combine("mul", tiles, combine("add", seen, start)), H100_SMS)
        work = combine("max", work, longest)
    return combine("add", work, launch)


def _wide_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernel for wide heads on GPUs whose blocks have the shared memory for it."""
    if max(attention.heads_of(call)) <= attention.LARGEST_HELD:
        return []
    return [(v, 1) for v in VARIANTS if v.tile == _WIDE_TILE and v.dtype == call.dtype
            and v.template == _PLAIN and not attention.refusal(call, v)]  # fmt: skip


def _float32_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernel of float32 with most keys whose registers hold the sums of its heads."""
    able = (v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype))
    found: list[tuple[Variant, Extent]] = [(v, 1) for v in able if not attention_refusal(call, v)]
    return found[:1]


def _is_short(call: Call) -> bool:
    """Whether queries see a window that is short beside a tile of three warpgroups.

    A window of 512 keys takes 227 µs with two and 250 with three (one H100).
    """
    a = call.attributes
    return bool(attention.is_windowed(call) and a["window_left"] + a["window_right"] < _LONG)


def _split_when(call: Call, variant: Variant) -> Extent:
    """Return an extent that is positive if an attention has few enough keys, queries and heads."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    batch, heads, queries, _ = named["q"].dims
    blocks = product((batch, heads, combine("ceildiv", queries, _WHOLE_QUERIES)))
    fits = keys_fit(variant, named["k"].dims[2])
    return combine("min", fits, combine("sub", _MOST_SPLIT + 1, blocks))


def attends(call: Call, variant: Variant) -> Extent:
    """Return an extent that is positive for sizes at which a scheduled kernel is used.

    Where batch and length both vary, the schedules of a batch of one are used.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    batch, _, queries, _ = named["q"].dims
    fit = keys_fit(variant, named["k"].dims[2])
    if isinstance(batch, int) or isinstance(queries, int):
        return fit
    return combine("min", fit, combine("sub", 2, batch))


def keys_fit(variant: Variant, keys: Extent) -> Extent:
    """Return an extent that is positive if an attention kernel holds as many keys as there are."""
    whole = variant.template in (_FEW, _SPLIT)
    return combine("sub", variant.params["keys"] + 1, keys) if whole else 1
