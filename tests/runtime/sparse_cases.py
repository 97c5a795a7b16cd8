"""Programs of products by stored blocks, and what NumPy makes of them in fp64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tests.runtime.support import Case, dense, single, spec, strided
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.panels import pack_block_sparse, pack_block_sparse_vnni2, pack_panels
from tracea_graph.ops.bf16 import round_bf16
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.passes.sparse.sampled_zero_scan import nonzero_tiles

__all__ = ["SPARSE_CHAIN", "infinite", "sparse_cases", "with_zeros"]

Array = npt.NDArray[Any]
SPARSE_CHAIN = Chain(
    ("full", "full", "row"),
    (Step("gelu", (0,)), Step("add", (3, 1)), Step("mul", (4, 2))),
    (5,),
)


def with_zeros(k: int, n: int, block: int, stored: float) -> Array:
    """A matrix of which a share of the blocks, ``block`` x 16, holds numbers; never the first."""
    chance = np.random.default_rng([k, n, block])
    kept = chance.random((-(-k // block), -(-n // 16))) < stored
    kept[0, 0] = False
    mask = np.kron(kept, np.ones((block, 16)))[:k, :n]
    return (chance.standard_normal((k, n)) * mask).astype(np.float32)


def blocks_case(
    name: str,
    x: Array,
    w: Array,
    block: int,
    chain: Chain | None = None,
    parts: Sequence[int] = (),
    bias: bool = True,
    places: Array | None = None,
    error: str = "",
    in_bf16: bool = False,
) -> Case:
    """``x`` times ``w`` by its stored blocks; ``places`` replaces the true map.

    ``in_bf16``: both are handed over in bf16 (K even).
    """
    (m, k), n = x.shape, w.shape[1]
    panels = pack_panels(w)
    true = nonzero_tiles(~panels.any(2), block).l1_map
    stored = pack_block_sparse(panels, true, block)
    chance = np.random.default_rng(m)
    b, full, row = (chance.standard_normal(s).astype(np.float32) for s in ((n,), (m, n), (n,)))
    kind = DType.BF16 if in_bf16 else DType.F32
    if in_bf16:
        stored = pack_block_sparse_vnni2(stored)
        x, w = round_bf16(x), round_bf16(w)
    inputs = [
        spec("m", k, dtype=kind),
        spec(*stored.shape, dtype=kind),
        spec(len(true), dtype=DType.I32),
        spec(n),
    ]
    feeds = [
        x.astype(ml_dtypes.bfloat16) if in_bf16 else x,
        stored,
        true if places is None else places,
        b,
    ]
    widths = parts or (n,)
    epilogue_inputs = []
    if chain:
        inputs += [spec("m", n), spec(n)]
        feeds += [full, row]
        epilogue_inputs = [dense("input", 4, "m", n), strided("input", 5, ("m", n), (0, 1))]
    results = [dense("output", i, "m", width) for i, width in enumerate(widths)]
    views = (
        dense("input", 0, "m", k),
        dense("input", 1, *stored.shape),
        dense("input", 3, n) if bias else None,
        dense("input", 2, len(true)),
        *epilogue_inputs,
        *results,
    )
    dtype = "bf16" if in_bf16 else "f32"
    call = CALLS.listed("gemm_block_sparse", views, dtype, parts=len(widths), chain=chain)
    program = single(call, inputs, [spec("m", width) for width in widths], m=(0, 0))
    with np.errstate(invalid="ignore"):
        y = x.astype(np.float64) @ w.astype(np.float64) + (b if bias else 0)
    if chain:
        (y,) = chain.reference([y, full.astype(np.float64), row.astype(np.float64)])
    expected = tuple(np.split(y, np.cumsum(widths)[:-1], 1))
    return Case(name, program, tuple(feeds), () if error else expected, error)


def infinite(m: int, k: int) -> Array:
    """Rows of which some hold a NaN or an infinity, in the first block and in others."""
    x = np.random.default_rng(k).standard_normal((m, k)).astype(np.float32)
    x[1, 3], x[m - 1, k - 1], x[m // 2, k // 2] = np.nan, np.inf, -np.inf
    return x


def sparse_cases() -> tuple[Case, ...]:
    chance = np.random.default_rng(0)

    def numbers(m: int, k: int) -> Array:
        return chance.standard_normal((m, k)).astype(np.float32)

    x, w = numbers(20, 40), with_zeros(40, 70, 4, 0.5)
    wrong = nonzero_tiles(~pack_panels(w).any(2), 4).l1_map
    twice = wrong[[0, 0, *range(2, len(wrong))]]
    order = "in ascending order"
    return (
        *(
            blocks_case(
                f"blocks_{m}x{n}x{k}_by_{block}",
                numbers(m, k),
                with_zeros(k, n, block, 0.3),
                block,
            )
            for block in (1, 4, 16, 32, 64)
            for m, n, k in ((1, 33, 128), (1, 16, 31), (37, 100, 130), (70, 150, 257))
        ),
        blocks_case("blocks_chunks", numbers(90, 5000), with_zeros(5000, 40, 16, 0.2), 16),
        blocks_case("blocks_chain", x, w, 4, SPARSE_CHAIN),
        blocks_case("blocks_parts", x, w, 4, parts=(3, 40, 27)),
        blocks_case("blocks_no_bias", x, w, 4, bias=False),
        *(
            blocks_case(
                f"blocks_infinite_{block}",
                infinite(37, 64),
                with_zeros(64, 50, block, 0.5),
                block,
            )
            for block in (1, 16)
        ),
        *(
            blocks_case(
                f"blocks_bf16_{m}x{n}x{k}_by_{block}",
                numbers(m, k),
                with_zeros(k, n, block, 0.3),
                block,
                in_bf16=True,
            )
            for block in (4, 16, 64)
            for m, n, k in ((1, 33, 128), (37, 100, 130), (70, 150, 258))
        ),
        blocks_case(
            "blocks_bf16_infinite", infinite(37, 64), with_zeros(64, 50, 4, 0.5), 4, in_bf16=True
        ),
        blocks_case("blocks_twice", x, w, 4, places=twice, error=order),
        blocks_case("blocks_turned", x, w, 4, places=wrong[::-1].copy(), error=order),
        blocks_case("blocks_beyond", x, w, 4, places=wrong + 10, error=order),
        blocks_case("blocks_before", x, w, 4, places=wrong - 50, error=order),
    )  # fmt: skip
