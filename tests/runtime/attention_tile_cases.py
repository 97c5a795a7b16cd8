"""Programs of attention over active tiles of scores, and what NumPy makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.runtime.support import Case, normal, operator_case, spec
from tracea_graph.ir import DType
from tracea_graph.ops.attention import LOWEST, AttentionParams
from tracea_graph.ops.attention_tiles import TileGrid

__all__ = ["attention_tile_bf16_cases", "attention_tile_cases"]

_GRID = TileGrid(32, 48, 5, 4)
_MAP = (0, 1, 2, 5, 7, 8, 11, 16, 19)  # no tile for queries 96 to 127


def _attention(
    name: str, queries: int, keys: int, active: Sequence[int] = _MAP, error: str = "", **more: Any
) -> Case:
    """Four heads over two of keys; the map is the last operand."""
    heads: dict[str, Any] = {"heads": 4, "head": 16, "head_v": 32, "scale": 0.25, "kv_heads": 2}
    params = AttentionParams(widths=(64, 32, 64), tiles=_GRID, zero_rows="guarded", **heads)
    params = replace(params, **more)
    shapes = ((2, queries, 64), (2, keys, 32), (2, keys, 64))
    feeds: list[Any] = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    specs = [spec("b", "s", 64), spec("b", "t", 32), spec("b", "t", 64)]
    if params.mask == "add":
        mask = normal(2, 1, 1, keys, seed=3)
        feeds.append(np.where(mask > 0.8, np.float32(-1e9), mask))
        specs.append(spec("b", 1, 1, "t"))
    feeds.append(np.array(active, np.int32))
    specs.append(spec(len(active), dtype=DType.I32))
    if error:  # the reference is asked for what fits
        fitting = [feeds[0][:, :9], feeds[1][:, :9], feeds[2][:, :9], np.zeros(1, np.int32)]
        made = operator_case(name, "FusedAttention", params, specs, fitting)
        return Case(name, made.program, tuple(feeds), (), error)
    return operator_case(name, "FusedAttention", params, specs, feeds)


def _masked(name: str, fill: float, **more: Any) -> Case:
    """A constant mask for 130 queries and 192 keys, and the tiles in which it keeps a key.

    Nothing is kept for some queries, unless their scores would vanish beside the mask in float32.
    """
    rng = np.random.default_rng(7)
    grid = TileGrid(32, 48, 5, 4, beyond=fill)
    active = np.array(sorted({*_MAP, *((12,) if fill > LOWEST else ())}), np.int32)
    inside = _GRID.kept(active, 130, 192)
    seen = inside & (rng.random((130, 192)) < 0.7)
    if fill > LOWEST:
        seen[np.arange(130), inside.argmax(1)] = True
    mask = seen if more.get("mask") == "bool" else np.where(seen, 0, fill).astype(np.float32)
    heads: dict[str, Any] = {"heads": 4, "head": 16, "head_v": 32, "scale": 0.25, "kv_heads": 2}
    more = {"mask": "add", "widths": (64, 32, 64), "fill": fill, **more}
    params = AttentionParams(tiles=grid, zero_rows="masked", **heads, **more)
    shapes = ((2, 130, 64), (2, 192, 32), (2, 192, 64))
    feeds: list[Any] = [*(normal(*s, seed=i) for i, s in enumerate(shapes)), mask, active]
    specs = [
        spec("b", "s", 64), spec("b", "t", 32), spec("b", "t", 64),
        spec("s", "t", dtype=DType.BOOL if mask.dtype == bool else DType.F32),
        spec(len(active), dtype=DType.I32),
    ]  # fmt: skip
    operands = [f.astype(np.float64) if f.dtype == np.float32 else f for f in feeds]
    operands[3] = mask
    return operator_case(name, "FusedAttention", params, specs, feeds, operands)


_SIZES = ((1, 1), (1, 192), (3, 100), (40, 40), (160, 192), (130, 150))
_FILLS = (-1e4, -1e9, LOWEST, -np.inf)


def attention_tile_bf16_cases() -> tuple[Case, ...]:
    return (
        *(_attention(f"bf16_attention_tiles_{s}_of_{t}", s, t, in_bf16=True) for s, t in _SIZES),
        _attention("bf16_attention_tiles_whole", 160, 192, in_bf16=True, whole=True),
        *(_masked(f"bf16_attention_tiles_left_{fill:g}", fill, in_bf16=True) for fill in _FILLS),
    )


def attention_tile_cases() -> tuple[Case, ...]:
    order = "does not list its tiles in ascending order"
    return (
        *(_attention(f"attention_tiles_{s}_of_{t}", s, t) for s, t in _SIZES),
        _attention("attention_tiles_masked", 130, 150, mask="add"),
        _attention("attention_tiles_ordered", 130, 150, causal="bottom", fill=-1e9),
        _attention("attention_tiles_near", 150, 150, window=(20, 20), zero_rows="masked"),
        _attention("attention_tiles_none", 60, 60, active=()),
        *(
            _masked(f"attention_tiles_left_{fill:g}_{kind}", fill, mask=kind)
            for fill in _FILLS
            for kind in ("add", "bool")
        ),
        _attention("attention_tiles_twice", 60, 60, (0, 1, 1, 2), order),
        _attention("attention_tiles_turned", 60, 60, (5, 1), order),
        _attention("attention_tiles_beyond", 60, 60, (5, 20), order),
        _attention("attention_tiles_before", 60, 60, (-1, 2), order),
        _attention("attention_tiles_queries", 161, 60, error="do not fit 5 x 4 tiles of 32 x 48"),
        _attention("attention_tiles_keys", 60, 193, error="60 queries and 193 keys do not fit"),
    )
