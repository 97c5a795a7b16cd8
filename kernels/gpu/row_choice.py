"""Choose kernels by the length and the number of rows: norms, softmax, reductions, small MLPs.

Also attention together with its projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import Extent, combine
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import (
    attention_projection,
    gated_matmul,
    grouped_integers,
    normed_integers,
    quantized_attention,
    row_mlp,
)
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import LINE
from tracea_graph.kernels.gpu.tile_choice import (
    BYTE_TILES,
    GATED_TILES,
    H100_SMS,
    LEAST_MLP_ROWS,
    LONG_ROWS,
    MEASURED_BYTES,
    MOST_PROJECTION_CLUSTERS,
    choose_tile,
    choose_warpgroup_tiles,
)
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.program import Call

__all__ = ["gated_choices", "grouped_choices", "mlp_choices", "normed_choices",
           "projection_choices", "rounded_attention_choices", "row_choices"]  # fmt: skip

_STEPS = 5
"""Cheap steps of an epilogue that an activation takes as long as."""

_NORMED: Mapping[int, tuple[int, int]] = MappingProxyType(
    {384: (1536, 1536), 512: (2048, 2048), 768: (3072, 2048)}
)
"""Least rows and greatest depth of a matmul of bytes and its norm in one launch, by columns.

4096 × 384 × 384 takes 7.5 µs instead of 9.9, 4096 × 384 × 1536 10.8 instead of 13.2, 4096 × 512 ×
2048 13.7 instead of 16.6, 4096 × 768 × 768 13.7 instead of 16.2, but × 3072 25.8 instead of 25.5,
as three stages of 384 columns cover no more; 1024 × 384 × 1536 8.6 instead of 8.2 (one H200).
"""


def row_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernel for short rows, for a call whose rows have a length that varies."""
    x = call.views[0]
    columns = x.dims[-1] if x else 0
    if isinstance(columns, int):
        return []
    operands = len(call.chain.operands) if call.chain else 1
    tiles = [choose_tile(call.op, call.dtype, 0, most, operands)[0] for most in (LONG_ROWS, 0)]
    if tiles[0] == tiles[1]:
        return []
    short = next(v for v in VARIANTS if (v.op, v.dtype, v.tile) == (call.op, call.dtype, tiles[0]))
    return [(short, combine("sub", LONG_ROWS + 1, columns))]


def mlp_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernel of two matmuls behind a norm for many rows; all parts of it name it.

    Where weights pass through shared memory for each tile, a second wave of tiles must have as
    many rows as the first one needs.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    rows = named["x"].dims[0]
    known = [v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype)
             and not row_mlp.refusal(call, v)]  # fmt: skip
    if not known:
        return []
    when, tile = combine("sub", rows, LEAST_MLP_ROWS - 1), known[0].params
    if tile["streamed"]:
        within = combine("sub", H100_SMS * 64 * tile["groups"] + 1, rows)
        more = combine("sub", rows, 2 * LEAST_MLP_ROWS - 1)
        when = combine("max", combine("min", when, within), more)
    return [(known[0], when)] if not isinstance(when, int) or when > 0 else []


def projection_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernel of attention and its projection for few rows; both parts name it."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    known = [v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype)
             and not attention_projection.refusal(call, v)]  # fmt: skip
    batch, _, queries, _ = named["q"].dims
    clusters = combine("mul", batch, combine("ceildiv", queries, attention_projection.QUERIES))
    few = combine("sub", MOST_PROJECTION_CLUSTERS + 1, clusters)
    short = combine("sub", attention_projection.MOST_KEYS + 1, named["k"].dims[2])
    when = combine("min", few, short)
    positive = not isinstance(when, int) or when > 0
    return [(known[0], when)] if known and positive else []


def rounded_attention_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernels of attention of 8-bit integers, for so many keys; all parts name them."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    keys, found = named["k"].dims[2], list[tuple[Variant, Extent]]()
    for variant in (v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype)):
        if quantized_attention.refusal(call, variant):
            continue
        within = combine("min", keys, combine("sub", variant.params["most"] + 1, keys))
        found.append((variant, within))
        if isinstance(within, int):
            break
    return found


def gated_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernels of a gate and the matmul that it multiplies, for many rows.

    Both parts of the call name them.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    (rows, columns), depth = named["y"].dims, named["x"].dims[-1]
    height, width, deep = (n if isinstance(n, int) else 0 for n in (rows, columns, depth))
    known = (v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype))
    able = {tile: v for tile, v in zip(GATED_TILES, known, strict=True)
            if not gated_matmul.refusal(call, v)}  # fmt: skip
    tiles = choose_warpgroup_tiles(1, height, 2 * width, deep, tuple(able), steps=_STEPS)
    return [(able[tile], combine("sub", rows, least - 1)) for tile, least in tiles]


def grouped_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernels of several matmuls of bytes of the same rows, for many rows.

    All parts of the call name them.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    (rows, columns), depth = named["y"][0].dims, named["x"].dims[-1]
    height, width, deep = (n if isinstance(n, int) else 0 for n in (rows, columns, depth))
    known = (v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype))
    able = {tile: v for tile, v in zip(BYTE_TILES, known, strict=True)
            if not grouped_integers.refusal(call, v)}  # fmt: skip
    steps = len(call.chain.steps) if call.chain else 0
    tiles = choose_warpgroup_tiles(1, height, width * len(named["y"]), -(-deep // LINE) * 64,
                                   tuple(able), steps=steps, fastest=MEASURED_BYTES)  # fmt: skip
    return [(able[tile], combine("sub", rows, least - 1)) for tile, least in tiles]


def normed_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernel of a matmul of bytes and the norm of its rows; both parts name it.

    It is for as many rows as fill most of an H100's clusters, but no second wave of them.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    (rows, columns), depth = named["y"].dims, named["x"].dims[-1]
    able = [v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype)
            and not normed_integers.refusal(call, v)]  # fmt: skip
    least, deepest = _NORMED.get(columns, (0, 0))
    if not able or not isinstance(depth, int) or depth > deepest:
        return []
    within = combine("sub", H100_SMS // 2 * able[0].params["m"] + 1, rows)
    when = combine("min", within, combine("sub", rows, least - 1))
    return [(able[0], when)] if not isinstance(when, int) or when > 0 else []
