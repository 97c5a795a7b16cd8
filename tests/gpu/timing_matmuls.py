"""Matmuls that ``tests.gpu.timing`` times: dense, of 8 bits, sparse and quantized."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tests.gpu.timing_row import BYTE_GROUPS, GELU, RESIDUAL, Row, Work, finished, product
from tests.kernels.gpu import block_cases, float8_cases, integer_cases, nbits_cases, sparse_cases
from tests.kernels.gpu.cases import gemm, rows
from tests.kernels.gpu.gated_cases import gated
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.tile_choice import LEAST_MANY, MOST_FEW, TWO_OF_FOUR_TILES
from tracea_graph.ops.chain import Chain, Step

__all__ = ["ROWS", "SUMS"]

_DENSE = ("128x256x64x4x1", "128x192x64x5x1", "128x128x64x6x2")
_KEPT = tuple(f"{m}x{n}x64x{stages}x1" for m, n, stages in TWO_OF_FOUR_TILES)
_HALVES = ("64x64x64x3", "128x128x32x4", "128x128x64x3", "128x256x32x4", "128x256x64x3")
_FEW = ("32x64x64x4",)
_GROUPS = ("128x256x64x4x1", "128x192x64x5x1", "128x192x64x5x2", "128x128x64x6x2",
           "128x128x64x6x1", "128x96x64x7x1", "64x192x64x6x2", "64x192x64x6x2x",
           "128x192x64x5x1x")  # fmt: skip
_SUMMED = ("128x256x64x4x1", "128x192x64x5x1", "128x192x64x5x1x", "128x128x64x6x2",
           "64x192x64x6x2", "64x192x64x6x2x")  # fmt: skip
SILU = Chain(("full",), (Step("silu", (0,)),), (1,), (DType.F32,), (DType.F16,))
PRODUCT = Chain(("full", "full"), (Step("mul", (1, 0)),), (2,), (DType.F32, DType.F16),
                (DType.F16,))  # fmt: skip
_DEPTHS = ("128x128x64x5x1d2", "128x128x64x4x1d4", "128x128x64x4x1d8")
_BYTE_PAIRS = ("128x256x128x4x1w", "128x192x128x5x1w")
_FEW_CODED = {1: "1x16x8", 8: "8x16", 16: "16x16"}


def _layers(m: int, n: int, k: int, chain: Chain | None = None) -> Iterator[Row]:
    """Products of one encoder layer; torch adds the bias and leaves out the rest."""
    what = {GELU: "+ gelu", RESIDUAL: "+ residual"}.get(chain, "") if chain else ""
    for layout in ("nk", "kn"):
        left_out = ("x96x",) * (layout == "kn") + ("x192x64x5x2",) * (chain is RESIDUAL)
        tiles = [t for t in _GROUPS if not any(word in t for word in left_out)]
        yield Row(f"wgmma {layout} {m}x{n}x{k} + bias {what}",
                  gemm("f16", m, n, k, layout, chain=chain, pad=0), (*tiles,),
                  product(m, n, k, "f16"), 2.0 * m * n * k, 0,
                  finished(m, n, k, chain))  # fmt: skip


def _shared_depth(m: int, n: int, k: int, chain: Chain | None = None) -> Row:
    """A product of fewer tiles than SMs, whose depth blocks may share."""
    what = {GELU: "+ gelu", RESIDUAL: "+ residual"}.get(chain, "") if chain else ""
    few = ("64x96x6" if k > n else "64x96x2",) * (m <= MOST_FEW)
    narrow = "32x64x64x4", "128x32x64x9x1", "128x64x64x8x1", "128x96x64x7x1", "128x128x64x6x1"
    return Row(f"depth {m}x{n}x{k} + bias {what}", gemm("f16", m, n, k, "nk", chain=chain, pad=0),
               (*few, *narrow, *_DEPTHS), product(m, n, k, "f16"), 2.0 * m * n * k, 0,
               finished(m, n, k, chain))  # fmt: skip


def _between(m: int, n: int, k: int, chain: Chain | None = None) -> Row:
    """A product of more rows than kernels of few rows are for, and of fewer than three tiles."""
    row = _shared_depth(m, n, k, chain)
    few = tuple(f"64x{n}x{split}" for n, split in ((48, 1), (96, 1), (64, 2), (96, 3), (96, 6)))
    return replace(row, name=row.name.replace("depth", "between"), tiles=(*few, *row.tiles))


def _gates(m: int, n: int, k: int) -> Iterator[Row]:
    """A gate and the matmul that it multiplies, and both matmuls of two launches.

    The second of two launches reads the gate of the first.
    """

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        def gated(x: Any, w: Any, v: Any) -> Any:
            linear = torch.nn.functional.linear
            return torch.nn.functional.silu(linear(x, w)) * linear(x, v)

        x, w, v = (torch.randn(rows, k, device="cuda").half() for rows in (m, n, n))
        return gated, [x, w / 8, v / 8]

    flops, tiles = 2.0 * m * n * k, ("128x256x64x4x1", "128x192x64x5x1", "128x128x64x6x2")
    for layout in ("nk", "kn"):
        own = tiles[:: 1 if layout == "nk" else 2]
        yield Row(f"gate {layout} {m}x{n}x{k} both", gated(DType.F16, m, n, k, "silu", layout, 0),
                  own, work, 2 * flops, 0)  # fmt: skip
    plain = product(m, n, k, "f16")
    for what, chain in (("first", SILU), ("second", PRODUCT)):
        made = gemm("f16", m, n, k, "nk", chain=chain, bias=False, pad=0)
        yield Row(f"gate {m}x{n}x{k} {what}", made, tiles, plain, flops, 0)


def _row_sums(m: int, n: int, k: int, chain: Chain | None, read: int, written: int) -> Row:
    """A product that repeats a norm from so many sums of each row of x, or writes its rows' sums.

    torch's product has the bias alone; its whole work includes the norm, but no sums.
    """
    made = gemm("f16", m, n, k, "nk", chain=chain, pad=0, norm="layer" if read else "none",
                summed=(read, written))  # fmt: skip
    what = {GELU: "+ gelu", RESIDUAL: "+ residual"}.get(chain, "") if chain else ""
    tiles = [t for t in _SUMMED if not written or t.split("x")[1] == str(n // written)]
    side = f"behind {read} sums" if read else f"with {written} sums"
    return Row(f"wgmma sums {m}x{n}x{k} + bias {what} {side}", made, (*tiles,),
               product(m, n, k, "f16"), 2.0 * m * n * k, 0,
               finished(m, n, k, chain, read > 0))  # fmt: skip


SUMS: tuple[tuple[int, int, Chain | None, int, int], ...] = (
    (2304, 768, None, 4, 0), (768, 768, RESIDUAL, 0, 4), (3072, 768, GELU, 4, 0),
    (768, 3072, RESIDUAL, 0, 4), (1152, 384, None, 2, 0), (384, 384, RESIDUAL, 0, 2),
    (1536, 384, GELU, 2, 0), (384, 1536, RESIDUAL, 0, 2),
)  # fmt: skip
"""Products of BERT-base and MiniLM: columns, depth, epilogue, sums that are read, and written."""


def _products(m: int, n: int, k: int, dtype: str, *tiles: str) -> Row:
    make = gemm(dtype, m, n, k, "nk", pad=0)
    work = product(m, n, k, "f16" if dtype == "f16" else "f32")
    return Row(f"{dtype} {m}x{n}x{k} + bias", make, tiles, work, 2.0 * m * n * k)


def _floats(m: int, n: int, k: int) -> Iterator[Row]:
    """Products of float32 numbers, rounded to tf32 and exact; torch's in the same arithmetic."""
    for dtype, tiles in (
        ("tf32", ("128x256x32x4x1", "128x192x32x5x1", "128x128x32x6x1", "128x64x16x4")),
        ("tf32x3", ("128x128x32x4x1", "128x64x32x6x1", "128x64x16x4")),
    ):

        def work(torch: Any, dtype: str = dtype) -> tuple[Callable[..., Any], list[Any]]:
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            return product(m, n, k, "f32")(torch)

        yield Row(f"wgmma {dtype} {m}x{n}x{k} + bias", gemm(dtype, m, n, k, "nk", pad=0), tiles,
                  work, 2.0 * m * n * k, 0)  # fmt: skip


def _scores(columns: int) -> Iterator[Row]:
    """Scores of all words of GPT-2 at batch 32; their rows are aligned with a few words more."""
    for dtype in (DType.F16, DType.F32):
        chain = Chain(("full",), (), (0,), (DType.F32,), (dtype,))
        make = gemm("f16", 4096, columns, 768, "nk", chain=chain, pad=0)
        yield Row(f"scores {dtype.name.lower()} 4096x{columns}x768", make,
                  ("128x256x64x4x1", "128x128x64x6x2"), product(4096, columns, 768, "f16"),
                  2.0 * 4096 * columns * 768, 0)  # fmt: skip


def _whole_numbers(m: int, n: int, k: int) -> Work:
    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        x, w = (torch.randint(-9, 9, (r, k), device="cuda").to(torch.int8) for r in (m, n))
        return (lambda x, w: torch._int_mm(x, w.t())), [x, w]

    return work


def _bytes(m: int, n: int, k: int) -> Row:
    """A product of bytes with a zero point, which torch leaves out."""
    tiles = ("32x64x128x4", "64x64x128x3", *(*_BYTE_PAIRS, *BYTE_GROUPS) * (m >= LEAST_MANY))
    return Row(f"bytes {m}x{n}x{k}", integer_cases.gemm(DType.I8, m, n, k, 3), tiles,
               _whole_numbers(m, n, k), 2.0 * m * n * k, 0)  # fmt: skip


def _requantized(m: int, n: int, k: int) -> Row:
    """A product of bytes whose results are bytes, with a bias and a zero point."""
    made = integer_cases.gemm(DType.U8, m, n, k, 3, chain=integer_cases.REQUANTIZED)
    return Row(f"bytes to bytes {m}x{n}x{k}", made, ("64x64x128x3", *_BYTE_PAIRS, *BYTE_GROUPS),
               _whole_numbers(m, n, k), 2.0 * m * n * k, 0)  # fmt: skip


def _float8(m: int, n: int, k: int, promoted: bool = False) -> Row:
    """A product of 8-bit floats with scales, GELU and residual; torch's has one scale a side."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        x, w = (torch.randn(r, k, device="cuda").to(torch.float8_e4m3fn) for r in (m, n))
        one = torch.ones((), device="cuda")
        fast = {"out_dtype": torch.float16, "use_fast_accum": not promoted}
        return (lambda x, w, one: torch._scaled_mm(x, w.t(), one, one, **fast)), [x, w, one]

    made = float8_cases.gemm(m, n, k, promoted=promoted)
    tiles = "64x64x128x3", *_BYTE_PAIRS, *BYTE_GROUPS
    if promoted:
        tiles = "128x128x128x6x1", "128x128x128x6x1w"
    return Row(f"float8 {m}x{n}x{k}{' promoted' * promoted}", made, tiles, work, 2.0 * m * n * k,
               0)  # fmt: skip


def _blocks(m: int, n: int, k: int, share: float) -> Row:
    """A product over a share of the blocks of a matrix; torch multiplies all."""
    made = block_cases.blocks("f16", m, n, k, share)
    work = product(m, n, k, "f16")
    groups = ("128x64x64x8x1", "256x64x64x5x1") if m >= LEAST_MANY else ()
    return Row(f"blocks {share:.0%} {m}x{n}x{k}", made, ("64x64x64x3", *groups), work,
               2.0 * m * n * k, 0)  # fmt: skip


def _finite(m: int, k: int) -> Row:
    """The launch before a product over blocks, which looks for numbers that are not finite."""
    made = rows("reduce", DType.F16, (m, k), kind="sum", mean=False)
    return Row(f"blocks sums {m}x{k}", made, ("1x256", "1x512"),
               lambda torch: ((lambda x: x.sum(1)), [torch.randn(m, k, device="cuda").half()]),
               far=0)  # fmt: skip


def _semi_structured(m: int, n: int, k: int) -> Work:
    """Torch's product with a 2:4 sparse matrix, by cuSPARSELt."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        dense = torch.from_numpy(sparse_cases.pruned(np.random.default_rng(0), k, n).T.copy())
        w = torch.sparse.to_sparse_semi_structured(dense.half().cuda())
        bias = torch.randn(n, device="cuda").half()
        linear = torch.nn.functional.linear
        return (lambda x: linear(x, w, bias)), [torch.randn(m, k, device="cuda").half()]

    return work


def _two_of_four(m: int, n: int, k: int, chain: Chain | None = None) -> Iterator[Row]:
    """A product with a 2:4 sparse matrix, and a dense one; torch's are cuSPARSELt and cuBLAS."""
    what = {GELU: "+ gelu", RESIDUAL: "+ residual"}.get(chain, "") if chain else ""
    flops = 2.0 * m * n * k
    dense = gemm("f16", m, n, k, "nk", chain=chain, pad=0)
    yield Row(f"sparse24 dense {m}x{n}x{k} + bias {what}", dense, _DENSE, product(m, n, k, "f16"),
              flops, 0)  # fmt: skip
    yield Row(f"sparse24 {m}x{n}x{k} + bias {what}",
              sparse_cases.two_of_four("f16", m, n, k, chain, pad=0),
              ("128x128x64x4", *_KEPT), _semi_structured(m, n, k), flops, 0)  # fmt: skip


def _normed_two_of_four(
    m: int, n: int, k: int, chain: Chain | None, normed: bool
) -> Iterator[Row]:
    """A 2:4 sparse product that normalises rows of x, or sums rows that it adds a norm to."""
    plain = "+ residual, summed" if chain is RESIDUAL else "+ norm, summed"
    what = "of a norm" if normed else plain
    for (_, wide, _), tile in zip(TWO_OF_FOUR_TILES, _KEPT, strict=True):
        made = sparse_cases.two_of_four(
            "f16", m, n, k, chain, pad=0, norm="layer" if normed else "none",
            summed=(6, 0) if normed else (0, n // wide),
        )  # fmt: skip
        yield Row(f"sparse24 {m}x{n}x{k} {what}", made, (tile,), product(m, n, k, "f16"),
                  2.0 * m * n * k, 0)  # fmt: skip


def _codes(m: int, n: int, k: int, bits: int, block: int) -> Row:
    """A product with a block-quantized matrix; torch multiplies one in fp16."""
    few = next((t for most, t in _FEW_CODED.items() if m <= most), "128x128x64x3")
    return Row(f"nbits {bits}/{block} {m}x{n}x{k}", nbits_cases.codes("f16", m, n, k, bits, block),
               (few, "64x64x64x3"), product(m, n, k, "f16"), 2.0 * m * n * k)  # fmt: skip


def _dequantized(n: int, k: int, bits: int, block: int) -> Row:
    """The numbers of a matrix; torch copies as many in fp16."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        return (lambda x: x.clone()), [torch.randn(n, k, device="cuda").half()]

    made = nbits_cases.dequantized(DType.F16, n, k, bits, block)
    return Row(f"nbits {bits}/{block} dequantized {n}x{k}", made, ("256",), work)


ROWS: tuple[Row, ...] = (
    _products(4096, 4096, 4096, "f16", *_HALVES),
    _products(4096, 3072, 768, "f16", *_HALVES),
    _products(4096, 768, 3072, "f16", *_HALVES),
    _products(128, 768, 768, "f16", *_HALVES, *_FEW),
    _products(128, 3072, 768, "f16", *_HALVES[:1], *_FEW),
    _products(128, 768, 3072, "f16", *_HALVES[:1], *_FEW),
    _products(2048, 3072, 768, "f32", "64x64x8", "128x128x8"),
    *(_products(2048, 3072, 768, d, "64x64x32x3", "128x64x16x4") for d in ("tf32", "tf32x3")),
    *(row for s in ((4096, 4096, 4096), (4096, 768, 768), (4096, 2304, 768), (4096, 3072, 768),
                    (4096, 768, 3072)) for row in _floats(*s)),
    *_layers(4096, 4096, 4096),
    *_layers(8192, 3072, 768),
    *_layers(4096, 2304, 768),
    *_layers(4096, 768, 768, RESIDUAL),
    *_layers(4096, 3072, 768, GELU),
    *_layers(4096, 768, 3072, RESIDUAL),
    *_layers(4096, 1152, 384),
    *_layers(4096, 1536, 384, GELU),
    *_layers(4096, 384, 1536, RESIDUAL),
    *_layers(4096, 384, 384, RESIDUAL),
    *(_shared_depth(*s) for s in ((512, 512, 16384), (512, 3072, 768), (1024, 1024, 1024))),
    *(_shared_depth(m, 768, 3072, RESIDUAL) for m in (256, 384, 512, 1024)),
    _shared_depth(256, 3072, 768, GELU),
    *(_between(m, *s) for m in (257, 320, 383) for s in (
        (768, 768, RESIDUAL), (2304, 768), (3072, 768, GELU), (768, 3072, RESIDUAL))),
    _between(300, 4096, 4096),
    *(row for s in ((512, 8192, 2048), (2048, 8192, 2048), (1024, 4864, 896))
      for row in _gates(*s)),
    *(_row_sums(4096, *one) for one in SUMS),
    *_scores(50257),
    *_scores(50304),
    *(
        _float8(*s, promoted)
        for s in ((4096, 4096, 4096), (4096, 3072, 768), (4096, 768, 3072))
        for promoted in (False, True)
    ),
    *(_bytes(*s) for s in ((4096, 4096, 4096), (4096, 3072, 768), (4096, 768, 3072),
                           (128, 3072, 768), (128, 768, 768))),
    _requantized(4096, 4096, 4096),
    *(_blocks(4096, 4096, 4096, share) for share in (1.0, 0.5, 0.2, 0.1)),
    *_two_of_four(4096, 4096, 4096),
    *_two_of_four(4096, 2304, 768),
    *_two_of_four(4096, 768, 768, RESIDUAL),
    *_two_of_four(4096, 3072, 768, GELU),
    *_two_of_four(4096, 768, 3072, RESIDUAL),
    *_normed_two_of_four(4096, 2304, 768, None, True),
    *_normed_two_of_four(4096, 3072, 768, GELU, True),
    *_normed_two_of_four(4096, 768, 768, sparse_cases.NORMED, False),
    *_normed_two_of_four(4096, 768, 3072, sparse_cases.NORMED, False),
    *_normed_two_of_four(4096, 768, 3072, RESIDUAL, False),
    _finite(4096, 4096),
    *(_blocks(4096, 3072, 768, share) for share in (1.0, 0.5, 0.25, 0.1)),
    *(_blocks(4096, 768, 3072, share) for share in (0.5, 0.25, 0.1)),
    *(_blocks(128, 3072, 768, share) for share in (0.5, 0.1)),
    *(_codes(m, 4096, 4096, *kind) for m in (1, 8, 16, 64, 512)
      for kind in ((4, 32), (4, 128), (8, 32))),
    _codes(1, 14336, 4096, 4, 32),
    _codes(1, 4096, 14336, 4, 32),
    *(_codes(m, *sides, 4, 32) for m in (128, 512, 2048)
      for sides in ((8192, 2048), (2048, 8192))),
    _dequantized(16384, 2048, 4, 32),
)  # fmt: skip
