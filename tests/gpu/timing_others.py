"""Norms, chains and copies that ``tests.gpu.timing`` times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.gpu.timing_row import Row
from tests.kernels.gpu import mlp_cases
from tests.kernels.gpu.cases import copy, elementwise, gated, rows
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
    Row("transpose f16 8192x4096", copy(DType.F16, (8192, 4096), (1, 0)), ("32x32", "256x16"),
        _turn),
    _mlp(100352, 96, "192x1", "128x1"),
    _mlp(25088, 192, "128x2"),
)  # fmt: skip
