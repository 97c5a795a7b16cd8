"""Rows of ``tests.gpu.timing``: matmuls of bytes and norms behind them, in one launch or two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.gpu.timing_row import CHOSEN, Row
from tests.kernels.gpu.normed_cases import normed
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.tile_choice import NORMED_TILES

__all__ = ["ROWS"]

_HEIGHTS = (512, 1024, 2048, 4096, 8192)
_SIZES = ((384, 384), (384, 1536), (512, 512), (512, 2048), (768, 768), (768, 3072))
"""Columns and depth of a layer's matmuls behind which norms stand."""


def _normed(m: int, n: int, k: int) -> Row:
    """The last kernels are two launches; torch's product of bytes has none of the epilogue."""
    tile = next(f"64x{2 * own}x128x{stages}" for own, stages in NORMED_TILES if 4 * own == n)

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        x, w = (torch.randint(-9, 9, (r, k), device="cuda").to(torch.int8) for r in (m, n))
        return (lambda x, w: torch._int_mm(x, w.t())), [x, w]

    return Row(f"bytes normed {m}x{n}x{k}", normed(DType.U8, m, n, k, 7), (tile, CHOSEN), work,
               2.0 * m * n * k, 0)  # fmt: skip


ROWS = tuple(_normed(m, *sizes) for m in _HEIGHTS for sizes in _SIZES)
