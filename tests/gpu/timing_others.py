"""Attention, norms, chains and copies that ``tests.gpu.timing`` times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.gpu.timing_row import Row, Work
from tests.kernels.gpu import mlp_cases, quantized_cases
from tests.kernels.gpu.cases import attention, copy, elementwise, gated, rows
from tracea_graph.ir import DType

__all__ = ["ROWS"]

_LAYER = {"kind": "layer", "epsilon": 1e-5}


def _gated(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
    def work(x: Any, y: Any, bias: Any, factor: Any) -> Any:
        return (torch.nn.functional.gelu(x * factor + bias) * y).half()

    x, y = (torch.randn(8192, 3072, device="cuda").half() for _ in "xy")
    sides = torch.randn(3072, device="cuda"), torch.randn(8192, 1, device="cuda")
    return torch.compile(work), [x, y, *sides]


def _softmax(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
    x = torch.randn(49152, 512, device="cuda").half()
    return (lambda x: torch.softmax(x, -1)), [x]


def _long(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
    x = torch.randn(4096, 8192, device="cuda")
    return (lambda x: torch.nn.functional.rms_norm(x, (8192,))), [x]


def _attend(heads: int, queries: int, head: int, causal: bool, batch: int = 8) -> Work:
    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        shape = (batch, heads, queries, head)
        qkv = [torch.randn(shape, device="cuda").half() for _ in "qkv"]
        attend = torch.nn.functional.scaled_dot_product_attention
        return (lambda q, k, v: attend(q, k, v, is_causal=causal)), qkv

    return work


def _attentions(queries: int, head: int, order: str, *tiles: str) -> Row:
    heads, causal = 16, order != "none"
    make = attention(DType.F16, (8, heads, queries), queries, head, head, order=order)
    flops = 4.0 * 8 * heads * queries**2 * head / (2 if causal else 1)
    work = _attend(heads, queries, head, causal)
    return Row(f"attention b8 h16 s{queries} d{head} {order}", make, tiles, work, flops)


def _quantized(queries: int, head: int, *tiles: str) -> Row:
    """Attention of a QDQ graph, bytes behind it; torch's is in fp16, without roundings."""
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


def _layer_norm(count: int, columns: int, *tiles: str) -> Row:
    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        x = torch.randn(count, columns, device="cuda").half()
        weights = [torch.randn(columns, device="cuda").half() for _ in "gb"]
        norm = torch.nn.functional.layer_norm
        return (lambda x, g, b: norm(x, (columns,), g, b)), [x, *weights]

    made = rows("norm", DType.F16, (count, columns), **_LAYER)
    return Row(f"layer norm f16 {count}x{columns}", made, tiles, work)


def _turn(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
    x = torch.randn(8192, 4096, device="cuda").half()
    return (lambda x: x.t().contiguous()), [x]


def _mlp(count: int, columns: int, *tiles: str) -> Row:
    """A ConvNeXt block behind its depthwise convolution; torch compiles it."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        def block(x: Any, y: Any, g: Any, b: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
            own = torch.nn.functional
            between = own.gelu(own.linear(own.layer_norm(x, (columns,), g, b), w1, b1))
            return own.linear(between, w2, b2) * g + y

        x, y = (torch.randn(count, columns, device="cuda").half() for _ in "xy")
        g, b, b2 = (torch.randn(columns, device="cuda").half() for _ in "gbb")
        sizes = (4 * columns, columns), (columns, 4 * columns)
        w1, w2 = (torch.randn(*s, device="cuda").half() / 8 for s in sizes)
        b1 = torch.randn(4 * columns, device="cuda").half()
        return torch.compile(block), [x, y, g, b, w1, b1, w2, b2]

    chain = mlp_cases.residual(DType.F16)
    made = mlp_cases.mlp(DType.F16, count, (columns, 4 * columns, columns), "gelu", chain)
    return Row(f"mlp f16 {count} {columns}->{4 * columns}->{columns}", made, tiles, work,
               16.0 * count * columns**2)  # fmt: skip


ROWS: tuple[Row, ...] = (
    Row("gelu(x*f+b)*y f16 8192x3072", elementwise(gated(DType.F16), (8192, 3072)),
        ("256x16", "256x8"), _gated),
    _layer_norm(4096, 768, "4x32", "1x256"),
    _layer_norm(100352, 96, "16x8", "4x32"),
    _layer_norm(25088, 192, "16x8", "4x32"),
    _layer_norm(6272, 384, "8x16", "4x32"),
    Row("softmax f16 49152x512", rows("softmax", DType.F16, (49152, 512), log=False),
        ("4x32", "1x256"), _softmax),
    Row("rms norm f32 4096x8192", rows("norm", DType.F32, (4096, 8192), kind="rms", epsilon=1e-5),
        ("1x256", "1x512"), _long),
    _attentions(4096, 64, "none", "128x64", "192x128x2", "128x128x2"),
    _attentions(4096, 64, "top", "128x32", "192x128x2", "128x128x2"),
    _attentions(128, 64, "none", "64x64", "192x128x2", "128x128x2"),
    _attentions(512, 64, "none", "64x64", "192x128x2", "128x128x2"),
    _attentions(4096, 128, "none", "64x32", "128x128x2"),
    _attentions(4096, 128, "top", "64x32", "128x128x2"),
    *(_quantized(128, head, "64x128", "64x256") for head in (32, 64)),
    _quantized(256, 64, "64x256"),
    _banded(64, (511, 0), "none", "128x128x2", "192x128x2", "64x64"),
    _banded(64, (256, 256), "none", "128x128x2", "192x128x2"),
    _banded(128, (511, 0), "none", "128x128x2", "64x32"),
    *(_banded(64, (511, 0), mask, "128x128x2", "64x64", lists=lists)
      for lists in (True, False) for mask in ("add", "bool")),
    *(_banded(128, (511, 0), "add", "128x128x2", "64x32", lists=lists) for lists in (True, False)),
    Row("transpose f16 8192x4096", copy(DType.F16, (8192, 4096), (1, 0)), ("32x32", "256x16"),
        _turn),
    _mlp(100352, 96, "192x1", "128x1"),
    _mlp(25088, 192, "128x2"),
)  # fmt: skip
