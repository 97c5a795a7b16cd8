"""Attention that ``tests.gpu.timing`` times: fp16 and float32, windows, masks, and prompts."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.gpu.timing_row import CHOSEN, Row, Work
from tests.kernels.gpu import quantized_cases
from tests.kernels.gpu.cache_cases import appended, cached
from tests.kernels.gpu.cases import attention
from tracea_graph.ir import DType

__all__ = ["ROWS"]


def _attend(
    heads: int, queries: int, head: int, causal: bool, batch: int = 8, half: bool = True
) -> Work:
    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        shape, kind = (batch, heads, queries, head), torch.float16 if half else torch.float32
        qkv = [torch.randn(shape, device="cuda").to(kind) for _ in "qkv"]
        attend = torch.nn.functional.scaled_dot_product_attention
        return (lambda q, k, v: attend(q, k, v, is_causal=causal)), qkv

    return work


def _attentions(
    queries: int, head: int, order: str, *tiles: str, batch: int = 8, heads: int = 16
) -> Row:
    causal = order != "none"
    make = attention(DType.F16, (batch, heads, queries), queries, head, head, order=order)
    flops = 4.0 * batch * heads * queries**2 * head / (2 if causal else 1)
    work = _attend(heads, queries, head, causal, batch)
    return Row(f"attention b{batch} h{heads} s{queries} d{head} {order}", make, tiles, work, flops)


def _quantized(queries: int, head: int, *tiles: str) -> Row:
    """Attention of a QDQ graph, bytes behind it; torch's is in fp16, without roundings.

    The chosen kernels are three launches.
    """
    chain = quantized_cases.rounded_scores(DType.F16)
    sizes, work = (32, 12, queries, queries), _attend(12, queries, head, False, 32)
    make = quantized_cases.attended(DType.F16, sizes, (head, head), chain, "u8")
    flops = 4.0 * 32 * 12 * queries**2 * head
    return Row(f"quantized attention b32 h12 s{queries} d{head}", make, tiles, work, flops)


def _banded(head: int, near: tuple[int, int], mask: str, *tiles: str, lists: bool = True) -> Row:
    """Queries that see the keys of a window, or a mask that keeps these; torch has the mask."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        _, operands = _attend(16, 4096, head, False)(torch)
        places = torch.arange(4096, device="cuda")
        behind = places[None] - places[:, None]
        kept = (behind >= -near[0]) & (behind <= near[1])
        added = torch.where(kept, 0.0, -torch.inf).half()
        attend = torch.nn.functional.scaled_dot_product_attention
        return (lambda q, k, v: attend(q, k, v, attn_mask=added)), operands

    order = "top" if near[1] == 0 and mask == "none" else "none"
    which: dict[str, Any] = {"near": near} if mask == "none" else {"band": near, "lists": lists}
    make = attention(DType.F16, (8, 16, 4096), 4096, head, head, order=order, mask=mask, **which)
    places = np.arange(4096)
    first, last = np.maximum(places - near[0], 0), np.minimum(places + near[1], 4095)
    pairs = float((last - first + 1).sum()) if lists else 4096.0**2
    what = "window" if mask == "none" else f"listed {mask}" if lists else f"dense {mask}"
    return Row(f"attention d{head} {near[0]} before {near[1]} after, {what}", make, tiles, work,
               4.0 * 8 * 16 * head * pairs)  # fmt: skip


def _floats(batch: int, heads: int, queries: int, head: int, order: str, *tiles: str) -> Row:
    """Float32, as sums of two tf32 numbers; torch multiplies without tensor cores."""
    make = attention(DType.F32, (batch, heads, queries), queries, head, head, order=order)
    flops = 4.0 * batch * heads * queries**2 * head / (1 if order == "none" else 2)
    work = _attend(heads, queries, head, order != "none", batch, half=False)
    name = f"attention f32 b{batch} h{heads} s{queries} d{head} {order}"
    return Row(name, make, tiles, work, flops, far=0)


def _near(
    dtype: DType, near: tuple[int, int], first: int, mask: str, *tiles: str, queries: int = 4096
) -> Row:
    """Windows beside ``first`` global keys, or with a mask of random keys; torch has a mask."""
    half, batch, head = dtype is DType.F16, 8 if dtype is DType.F16 else 1, 64

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        _, operands = _attend(16, queries, head, False, batch, half)(torch)
        places = torch.arange(queries, device="cuda")
        behind = places[None] - places[:, None]
        kept = (behind >= -near[0]) & (behind <= near[1])
        kept |= (places[None] < first) | (places[:, None] < first)
        added = torch.where(kept, 0.0, -torch.inf).to(operands[0].dtype)
        attend = torch.nn.functional.scaled_dot_product_attention
        return (lambda q, k, v: attend(q, k, v, attn_mask=added)), operands

    order = "top" if near[1] == 0 else "none"
    make = attention(dtype, (batch, 16, queries), queries, head, head, order=order, near=near,
                     globals_=first, mask=mask)  # fmt: skip
    places = np.arange(queries)
    low, high = np.maximum(places - near[0], 0), np.minimum(places + near[1], queries - 1)
    pairs = float(np.where(places < first, high + 1 if order == "top" else queries,
                           high - low + 1 + np.minimum(low, first)).sum())  # fmt: skip
    what = f"{first} global" if first else f"masked {mask}"
    name = f"attention {dtype.short} near {near[0]} {near[1]} {what} s{queries}"
    return Row(name, make, tiles, work, 4.0 * batch * 16 * head * pairs, far=0)


def _prompt(rows: int, past: int, part: str, *tiles: str, head: int = 64) -> Row:
    """Rows of a prompt of a decoder with 32 heads of q and 8 of keys, at once or in two launches.

    ``part`` is "cached" (all), "appended" (rotation and caches) or "placed" (attention alone).
    """
    heads, total = (32, 8), past + rows

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        q, k, v, pk, pv = (
            torch.randn(1, n, length, head, device="cuda").half()
            for n, length in ((32, rows), (8, rows), (8, rows), (8, past), (8, past))
        )
        cos, sin = (torch.randn(1, 1, rows, head // 2, device="cuda").half() for _ in "cs")
        attend = torch.nn.functional.scaled_dot_product_attention
        bias: Any = importlib.import_module("torch.nn.attention.bias")
        right = bias.causal_lower_right(rows, total)

        def turned(x: Any) -> Any:
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        def append(q: Any, k: Any, v: Any, pk: Any, pv: Any) -> tuple[Any, Any, Any]:
            return turned(q), torch.cat([pk, turned(k)], 2), torch.cat([pv, v], 2)

        def attended(q: Any, k: Any, v: Any) -> Any:
            if past:
                return attend(q, k, v, attn_mask=right, enable_gqa=True)
            return attend(q, k, v, is_causal=True, enable_gqa=True)

        if part == "placed":
            k, v = (torch.randn(1, 8, total, head, device="cuda").half() for _ in "kv")
            return attended, [q, k, v]
        if part == "appended":
            return append, [q, k, v, pk, pv]
        return (lambda *given: attended(*append(*given))), [q, k, v, pk, pv]

    f16, flops = DType.F16, 4.0 * 32 * head * rows * (past + rows / 2)
    if part == "placed":
        order = "placed" if past == 0 else "bottom"
        make = attention(f16, (1, 32, rows), total, head, head, shared=4, order=order)
    elif part == "appended":
        make, flops = appended(f16, f16, heads, rows, past, head, batch=1), 0.0
    else:
        make = cached(f16, f16, heads, rows, past, head, batch=1)
    return Row(f"prompt d{head} {rows} rows after {past}, {part}", make, tiles, work, flops, far=0)


_FLASH, _FLOATS = "128x128x2", "64x32"

ROWS: tuple[Row, ...] = (
    _attentions(4096, 64, "none", "128x64", "192x128x2", "128x128x2"),
    _attentions(4096, 64, "top", "128x32", "192x128x2", "128x128x2"),
    _attentions(128, 64, "none", "64x64", "192x128x2", "128x128x2"),
    _attentions(512, 64, "none", "64x64", "192x128x2", "128x128x2"),
    _attentions(4096, 128, "none", "64x32", "128x128x2"),
    _attentions(4096, 128, "top", "64x32", "128x128x2"),
    _attentions(4096, 64, "top", "192x128x2", "128x128x2", batch=1, heads=12),
    _attentions(2048, 64, "top", "192x128x2", "128x128x2"),
    _attentions(2048, 128, "top", "128x128x2", batch=1, heads=32),
    _attentions(1024, 64, "top", "192x128x2", "128x128x2", heads=12),
    _attentions(1024, 128, "top", "128x128x2", batch=1, heads=32),
    *(_attentions(4096, head, order, "64x32", tile)
      for head, tile in ((192, "128x96x2"), (256, "128x64x2")) for order in ("none", "top")),
    _banded(64, (511, 0), "none", "128x128x2", "192x128x2", "64x64"),
    _banded(64, (256, 256), "none", "128x128x2", "192x128x2"),
    _banded(128, (511, 0), "none", "128x128x2", "64x32"),
    *(_banded(64, (511, 0), mask, "128x128x2", "64x64", lists=lists)
      for lists in (True, False) for mask in ("add", "bool")),
    *(_banded(128, (511, 0), "add", "128x128x2", "64x32", lists=lists) for lists in (True, False)),
    *(_banded(256, (511, 0), "add", "128x32x2", "64x32", lists=lists) for lists in (True, False)),
    *(_quantized(128, head, "64x128", "64x256") for head in (32, 64)),
    _quantized(256, 64, "64x256", "128x64x8"),
    *(_quantized(queries, 64, CHOSEN, "128x64x8") for queries in (384, 512)),
    _floats(32, 12, 128, 64, "none", _FLOATS, "64x16"),
    _floats(8, 12, 512, 64, "none", _FLOATS, "64x16"),
    _floats(1, 12, 128, 64, "none", _FLOATS, "64x16", "32x16"),
    _floats(2, 16, 4096, 64, "top", _FLOATS, "64x16"),
    _floats(2, 16, 4096, 128, "none", "64x16"),
    _near(DType.F16, (256, 256), 64, "none", _FLASH, "64x64"),
    _near(DType.F16, (256, 256), 0, "bool", _FLASH, "64x64", queries=2048),
    _near(DType.F16, (511, 0), 0, "add", _FLASH, "64x64", queries=2048),
    _near(DType.F32, (256, 256), 0, "none", _FLOATS, "64x16"),
    _near(DType.F32, (256, 256), 64, "none", _FLOATS, "64x16"),
    *(_prompt(rows, past, part, *tiles, head=head)
      for rows, past, head in ((128, 0, 64), (512, 0, 64), (512, 0, 128), (16, 1000, 64),
                               (64, 4000, 64))
      for part, tiles in (("cached", ("256x8",)), ("appended", ("256",)),
                          ("placed", (_FLASH, *["192x128x2"] * (head == 64))))),
)  # fmt: skip
