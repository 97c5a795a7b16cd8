"""Matmuls over the blocks of a matrix that are not zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.kernels.gpu.cases import FLOATS, TOLERANCE, Case, Expected, Made, Maker, some, wide
from tests.kernels.gpu.machine import NUMPY, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.zero_block_storage import COLUMN_BLOCKS, SIDE, active_tiles
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.passes.sparse.sampled_zero_scan import zero_map

__all__ = ["CASES"]

HALF, WIDE = ("64x64x64x3",), ("64x64x32x3",)


def blocks(
    dtype: str, m: int, n: int, k: int, share: float = 0.4, spoilt: bool = False, late: int = 0,
    residual: bool = False,
) -> Maker:  # fmt: skip
    """``share`` of the blocks have numbers, none in the last columns; some of x perhaps not
    finite, where the matrix has blocks and where not."""
    own = {"f16": DType.F16, "bf16": DType.BF16}.get(dtype, DType.F32)

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = some(rng, (m, k), own)
        if spoilt:
            x[1, 3], x[4, k - 1], x[m - 1, k // 2] = np.nan, np.inf, -np.inf
        kept = rng.random((k // SIDE, -(-n // SIDE))) < share
        kept[:, -1], kept[0, 0] = False, True
        w = rng.standard_normal((k, n)) * np.kron(kept, np.ones((SIDE, SIDE)))[:, :n]
        w = w.astype(np.float32)
        tiles = active_tiles(zero_map(w))
        held = COLUMN_BLOCKS.packed(w, tiles.l1_map).astype(NUMPY[own])
        with np.errstate(invalid="ignore"):
            odd = (wide(x) * 0).sum(-1).astype(np.float32)
        bias = rng.standard_normal(n).astype(np.float32)
        more = [some(rng, (m, n), own)] if residual else []
        step = Chain(("full", "full"), (Step("add", (0, 1)), Step("relu", (2,))), (3,),
                     (DType.F32, own), (own,))  # fmt: skip
        chain = step if residual else None
        y = memory.empty((m, n), NUMPY[own], late)
        call = CALLS.make(
            "gemm_blocks", dtype, x=memory.put(x, late, late), w=memory.put(held, late),
            map=memory.put(COLUMN_BLOCKS.map_of(tiles)), odd=memory.put(odd),
            bias=memory.put(bias), inputs=[memory.put(one) for one in more], y=[y], chain=chain,
        )  # fmt: skip

        def expected() -> list[Expected]:
            with np.errstate(all="ignore"):
                stored = [wide(held), COLUMN_BLOCKS.map_of(tiles)]
                right: Any = COLUMN_BLOCKS.matrix(stored, k, n)
                value = wide(x) @ right + bias
                value = chain.reference([value, *map(wide, more)])[0] if chain else value
            return [Expected(y, value, max(TOLERANCE[own], 3e-6))]

        return call, expected

    return make


def _cases() -> Iterator[Case]:
    for dtype in FLOATS:
        needs = ("bf16",) if dtype is DType.BF16 else ()
        name, tiles = (dtype.short, HALF) if dtype is not DType.F32 else ("tf32x3", WIDE)
        yield Case(f"blocks {name}", blocks(name, 70, 136, 320), tiles, needs)
        yield Case(
            f"blocks {name} residual", blocks(name, 9, 200, 128, residual=True), tiles[:1], needs
        )
    wgmma = "128x64x64x8x1", "256x64x64x5x1"
    yield Case("wgblocks f16", blocks("f16", 300, 136, 320), wgmma, ("wgmma",))
    yield Case("wgblocks bf16 residual", blocks("bf16", 140, 200, 128, residual=True), wgmma[:1],
               ("wgmma",))  # fmt: skip
    yield Case("wgblocks spoilt", blocks("f16", 140, 200, 2304, 0.3, spoilt=True), wgmma,
               ("wgmma",))  # fmt: skip
    yield Case("wgblocks several rounds", blocks("f16", 390, 2560, 128, 0.2), wgmma[:1],
               ("wgmma",))  # fmt: skip
    yield Case("blocks late", blocks("f16", 33, 70, 192, late=3), HALF[:1])
    yield Case("blocks spoilt", blocks("f16", 40, 200, 2304, 0.3, spoilt=True), HALF)
    yield Case("blocks full", blocks("f16", 5, 65, 64, 1.0), HALF[:1])


CASES = tuple(_cases())
