"""Rows of ``tests.gpu.timing``: attention to caches in pages, in one piece, and copies of pages.

Pages lie in the pools in no order, each in one item; masks keep the first keys of an item.  torch
copies the pages, as a model in plain operators does, and attends to the copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.gpu.timing_row import Row, Work
from tests.kernels.gpu.cache_cases import cached, looked_up
from tests.kernels.gpu.cases import attention
from tests.kernels.gpu.indexed_cases import gather
from tracea_graph.ir import DType

__all__ = ["ROWS"]

_HEADS, _KEPT, _SIZE, _ROWS = 32, 8, 128, 16
"""Heads of queries and of keys, columns of a head, and rows of a page."""


def _attend(batch: int, keys: int, queries: int, tenths: int, paged: bool) -> Work:
    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        pages = batch * keys // _ROWS
        q = torch.randn(batch, _HEADS, queries, _SIZE, device="cuda").half()
        pools = [torch.randn(pages, _ROWS, _KEPT, _SIZE, device="cuda").half() for _ in "kv"]
        table = torch.randperm(pages, device="cuda").reshape(batch, -1)
        seen = torch.arange(keys, device="cuda") < keys * tenths // 10
        mask = seen.expand(batch, 1, queries, keys).contiguous()
        attend = torch.nn.functional.scaled_dot_product_attention

        def rows(pool: Any, table: Any) -> Any:
            found = pool[table] if paged else pool
            return found.reshape(batch, keys, _KEPT, _SIZE).transpose(1, 2)

        def function(q: Any, k: Any, v: Any, table: Any, mask: Any) -> Any:
            return attend(q, rows(k, table), rows(v, table), attn_mask=mask, enable_gqa=True)

        return function, [q, *pools, table, mask]

    return work


def _few(batch: int, keys: int, tenths: int, paged: bool) -> Row:
    pages = (keys // _ROWS, _ROWS) if paged else (1, keys)
    made = looked_up(DType.F16, DType.F16, (_HEADS, _KEPT), 1, pages, _SIZE, apart=True,
                     lengths=(tenths,) * max(batch - 1, 1))  # fmt: skip
    batch = max(batch, 2)
    what = f"b{batch} {keys * tenths // 10} of {keys}"
    work = _attend(batch, keys, 1, tenths, paged)
    tiles = "16x128x8" if batch * _KEPT < 48 else "16x128x2", "256x8"  # and without tensor cores
    return Row(f"{'paged' if paged else 'paged, in one piece'} {what}", made, tiles, work)


def _token(batch: int, past: int, size: int) -> Row:
    """A token behind cached ones, its row appended in place; torch appends nothing."""
    made = cached(DType.F16, DType.F16, (_HEADS, _KEPT), 1, past, size, batch=batch, in_place=True)
    tiles = "16x256x8" if batch * _KEPT <= 8 else "16x128x2", "256x8"

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        q = torch.randn(batch, _HEADS, 1, size, device="cuda").half()
        kv = [torch.randn(batch, _KEPT, past + 1, size, device="cuda").half() for _ in "kv"]
        attend = torch.nn.functional.scaled_dot_product_attention
        return (lambda q, k, v: attend(q, k, v, enable_gqa=True)), [q, *kv]

    return Row(f"token b{batch} d{size} after {past}", made, tiles, work)


def _copy(batch: int, keys: int) -> Row:
    """A copy of the keys; values take as long."""
    pages, columns = batch * keys // _ROWS, _ROWS * _KEPT * _SIZE

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        pool = torch.randn(pages, columns, device="cuda").half()
        return (lambda pool, table: pool[table]), [pool, torch.randperm(pages, device="cuda")]

    made = gather(DType.F16, DType.I32, 1, pages, (pages,), columns, gap=0)
    return Row(f"paged, copy of keys b{batch} {keys}", made, ("256",), work)


def _many(queries: int, keys: int) -> Row:
    """A prompt: many queries to a copy of the pages."""
    made = attention(DType.F16, (1, _HEADS, queries), keys, _SIZE, _SIZE, mask="bool",
                     shared=_HEADS // _KEPT)  # fmt: skip
    work = _attend(1, keys, queries, 10, False)
    flops = 4.0 * _HEADS * queries * keys * _SIZE
    return Row(f"paged, prompt of {queries} to {keys}", made, ("128x128x2",), work, flops)


def _one(batch: int, keys: int) -> Row:
    """One query to a masked cache by tensor cores, a block for each head."""
    made = attention(DType.F16, (batch, _HEADS, 1), keys, _SIZE, _SIZE, mask="bool",
                     shared=_HEADS // _KEPT)  # fmt: skip
    name = f"paged, in one piece by tensor cores b{batch} {keys}"
    return Row(name, made, ("128x128x2", "64x32"), _attend(batch, keys, 1, 10, False))


ROWS: tuple[Row, ...] = (
    *(_few(batch, 2048, tenths, paged)
      for batch, tenths in ((8, 10), (8, 5), (2, 10)) for paged in (True, False)),
    *(_token(batch, past, size) for batch, past, size in
      ((1, 512, 64), (1, 2048, 64), (1, 2048, 128), (8, 2048, 64), (8, 2048, 128))),
    _one(8, 2048), _copy(8, 2048), _copy(1, 2048), _many(512, 2048),
)  # fmt: skip
