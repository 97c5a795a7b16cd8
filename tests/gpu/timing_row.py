"""A row of ``tests.gpu.timing``, and the matmuls of torch that several rows compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.kernels.gpu.cases import Maker
from tracea_graph.ir import DType
from tracea_graph.ops.chain import Chain, Step

__all__ = [
    "BYTE_GROUPS",
    "CHOSEN",
    "FAR",
    "GELU",
    "RESIDUAL",
    "Row",
    "Work",
    "finished",
    "product",
]

FAR = 200 << 20
"""Total size in bytes of all sets of buffers, larger than L2."""
CHOSEN = "chosen"
"""In place of a tile: the kernels that are chosen, where a call stands for several a launch each.
"""
BYTE_GROUPS = ("128x256x128x4x1", "128x192x128x5x1", "128x128x128x6x1", "128x64x128x8x1")
"""Tiles of single blocks for 8-bit numbers."""
Work = Callable[[Any], tuple[Callable[..., Any], list[Any]]]


@dataclass(frozen=True)
class Row:
    """A benchmark: a call, its tiles, and its torch counterpart; ``flops`` is set for matmuls.

    ``whole`` is torch with all of the call's epilogue, where its counterpart leaves some out.
    ``far`` is the least size of all sets of buffers; 0 stands for one set, which L2 may hold.
    ``moved`` counts the bytes read and written if these are not all bytes of the buffers.
    """

    name: str
    make: Maker
    tiles: tuple[str, ...]
    torch: Work
    flops: float = 0.0
    far: int = FAR
    whole: Work | None = None
    moved: int = 0


def product(m: int, n: int, k: int, dtype: str) -> Work:
    """Return torch's product with a bias."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        kind = torch.float16 if dtype == "f16" else torch.float32
        x, w = (torch.randn(rows, k, device="cuda").to(kind) for rows in (m, n))
        bias = torch.randn(n, device="cuda").to(kind)
        return torch.nn.functional.linear, [x, w, bias]

    return work


def finished(m: int, n: int, k: int, chain: Chain | None, normed: bool = False) -> Work | None:
    """Return torch's product, perhaps behind a norm, with a GELU or a residual sum."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        plain, operands = product(m, n, k, "f16")(torch)

        def linear(x: Any, *weights: Any) -> Any:
            return plain(torch.nn.functional.layer_norm(x, (k,)) if normed else x, *weights)

        if chain is None:
            return linear, operands
        if chain is GELU:
            return (lambda *given: torch.nn.functional.gelu(linear(*given))), operands
        y = torch.randn(m, n, device="cuda").half()
        return (lambda y, *given: linear(*given) + y), [y, *operands]

    return work if chain or normed else None


RESIDUAL = Chain(("full", "full"), (Step("add", (0, 1)),), (2,), (DType.F32, DType.F16),
                 (DType.F16,))  # fmt: skip
GELU = Chain(("full",), (Step("gelu", (0,)),), (1,), (DType.F32,), (DType.F16,))
