"""Rows of ``tests.gpu.timing``: matmuls by the factors of a matrix of low rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.gpu.timing_row import CHOSEN, GELU, RESIDUAL, Row, Work, product
from tests.kernels.gpu.cases import gemm
from tests.kernels.gpu.low_rank_cases import pair
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.tile_choice import LOW_RANK_TILES
from tracea_graph.ops.chain import Chain

__all__ = ["ROWS"]

_RANKS = (64, 96, 128, 192, 256)
_SIZES: tuple[tuple[int, int, Chain | None], ...] = (
    (768, 768, RESIDUAL), (3072, 768, GELU), (768, 3072, RESIDUAL), (384, 384, RESIDUAL),
    (1536, 384, GELU), (384, 1536, RESIDUAL), (2304, 768, None), (1024, 4096, RESIDUAL),
)  # fmt: skip
"""Columns, depth and epilogue of BERT-base's, MiniLM's, GPT-2's and BERT-large's matmuls."""
_HEIGHTS = (1024, 2048, 8192)


def _tiles(rank: int) -> tuple[str, ...]:
    """Return the tiles that suit a rank; the last kernels are two launches."""
    first, halved = 64 if rank <= 128 else 128, 64 if rank <= 64 else 128 if rank <= 128 else 0
    return *(f"64x{wide}x{own}x{stages}{'x2' * half_depth}"
             for wide, own, stages, half_depth in LOW_RANK_TILES
             if own == (halved if half_depth else first)), CHOSEN  # fmt: skip


def _pair(m: int, n: int, k: int, rank: int, chain: Chain | None) -> Row:
    """Both factors in one launch and in two; torch's products add the bias alone."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        sides = (m, k), (k, rank), (rank, n), (n,)
        x, a, b, bias = (torch.randn(*side, device="cuda").half() for side in sides)
        return (lambda x, a, b, bias: torch.addmm(bias, x @ a, b)), [x, a, b, bias]

    what = {GELU: " + gelu", RESIDUAL: " + residual"}.get(chain, "") if chain else ""
    return Row(f"low rank {m}x{n}x{k} of {rank}{what}",
               pair(DType.F16, m, n, k, rank, "nk nk", chain, pad=0), _tiles(rank), work,
               2.0 * m * rank * (n + k), 0)  # fmt: skip


def _dense(m: int, n: int, k: int, chain: Chain | None) -> Row:
    made = gemm("f16", m, n, k, "nk", chain=chain, pad=0)
    peer: Work = product(m, n, k, "f16")
    return Row(f"low rank {m}x{n}x{k} dense", made, (CHOSEN,), peer, 2.0 * m * n * k, 0)


def _rows() -> Iterator[Row]:
    for n, k, chain in _SIZES:
        yield _dense(4096, n, k, chain)
        for rank in _RANKS:
            yield _pair(4096, n, k, rank, chain)
    for m in _HEIGHTS:
        for n, k, chain in _SIZES[:3]:
            yield _pair(m, n, k, 128, chain)


ROWS = tuple(_rows())
