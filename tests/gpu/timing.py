"""Time selected kernels, compared with torch if installed: ``python -m tests.gpu.timing``.

Words on the command line select the rows whose names contain all of them.

A time is the median over replays of a CUDA graph of 20 launches that cycle through sets of buffers
larger in total than the GPU's L2; encoders' layers find their operands there.  torch runs in CUDA
graphs of its own, on equal shapes and types, in the same process.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from cuda.bindings import driver

from tests.gpu.device import Device, Loaded, checked
from tests.kernels.gpu import (
    block_cases,
    float8_cases,
    integer_cases,
    mlp_cases,
    nbits_cases,
    sparse_cases,
)
from tests.kernels.gpu.cases import (
    Maker,
    attention,
    conv,
    copy,
    depthwise,
    elementwise,
    gated,
    gemm,
    rows,
)
from tests.kernels.gpu.machine import Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.nvrtc import Built, compile_sources
from tracea_graph.kernels.gpu.tile_choice import (
    FEW_PIXEL_TILES,
    LEAST_MANY,
    TWO_OF_FOUR_TILES,
    choose_few_pixels,
)
from tracea_graph.kernels.gpu.variants import find
from tracea_graph.ops.chain import Chain, Step

_FAR = 200 << 20
"""Total size in bytes of all sets of buffers, larger than L2."""
_LINE = 64
"""Elements of 128 bytes, where views start: so do the buffers of a program."""
Work = Callable[[Any], tuple[Callable[..., Any], list[Any]]]


@dataclass(frozen=True)
class Row:
    """A benchmark: a call, its tiles, and its torch counterpart; ``flops`` is set for matmuls.

    ``whole`` is torch with all of the call's epilogue, where its counterpart leaves some out.
    ``far`` is the least size of all sets of buffers; 0 stands for one set, which L2 may hold.
    """

    name: str
    make: Maker
    tiles: tuple[str, ...]
    torch: Work
    flops: float = 0.0
    far: int = _FAR
    whole: Work | None = None


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


def _product(m: int, n: int, k: int, dtype: str) -> Work:
    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        kind = torch.float16 if dtype == "f16" else torch.float32
        x, w = (torch.randn(rows, k, device="cuda").to(kind) for rows in (m, n))
        bias = torch.randn(n, device="cuda").to(kind)
        return torch.nn.functional.linear, [x, w, bias]

    return work


def _finished(m: int, n: int, k: int, chain: Chain | None, normed: bool = False) -> Work | None:
    """Torch's product, perhaps behind a norm, with an epilogue: a GELU or a residual sum."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        plain, operands = _product(m, n, k, "f16")(torch)

        def linear(x: Any, *weights: Any) -> Any:
            return plain(torch.nn.functional.layer_norm(x, (k,)) if normed else x, *weights)

        if chain is None:
            return linear, operands
        if chain is GELU:
            return (lambda *given: torch.nn.functional.gelu(linear(*given))), operands
        y = torch.randn(m, n, device="cuda").half()
        return (lambda y, *given: linear(*given) + y), [y, *operands]

    return work if chain or normed else None


def _attend(heads: int, queries: int, head: int, causal: bool) -> Work:
    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        shape = (8, heads, queries, head)
        qkv = [torch.randn(shape, device="cuda").half() for _ in "qkv"]
        attend = torch.nn.functional.scaled_dot_product_attention
        return (lambda q, k, v: attend(q, k, v, is_causal=causal)), qkv

    return work


RESIDUAL = Chain(("full", "full"), (Step("add", (0, 1)),), (2,), (DType.F32, DType.F16),
                 (DType.F16,))  # fmt: skip
GELU = Chain(("full",), (Step("gelu", (0,)),), (1,), (DType.F32,), (DType.F16,))


def _layers(m: int, n: int, k: int, chain: Chain | None = None) -> Iterator[Row]:
    """Products of one encoder layer; torch adds the bias and leaves out the rest."""
    what = {GELU: "+ gelu", RESIDUAL: "+ residual"}.get(chain, "") if chain else ""
    for layout in ("nk", "kn"):
        left_out = ("x96x",) * (layout == "kn") + ("x192x64x5x2",) * (chain is RESIDUAL)
        tiles = [t for t in _GROUPS if not any(word in t for word in left_out)]
        yield Row(f"wgmma {layout} {m}x{n}x{k} + bias {what}",
                  gemm("f16", m, n, k, layout, chain=chain, pad=0), (*tiles,),
                  _product(m, n, k, "f16"), 2.0 * m * n * k, 0,
                  _finished(m, n, k, chain))  # fmt: skip


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
               _product(m, n, k, "f16"), 2.0 * m * n * k, 0,
               _finished(m, n, k, chain, read > 0))  # fmt: skip


SUMS: tuple[tuple[int, int, Chain | None, int, int], ...] = (
    (2304, 768, None, 4, 0), (768, 768, RESIDUAL, 0, 4), (3072, 768, GELU, 4, 0),
    (768, 3072, RESIDUAL, 0, 4), (1152, 384, None, 2, 0), (384, 384, RESIDUAL, 0, 2),
    (1536, 384, GELU, 2, 0), (384, 1536, RESIDUAL, 0, 2),
)  # fmt: skip
"""Products of BERT-base and MiniLM: columns, depth, epilogue, sums that are read, and written."""


def _products(m: int, n: int, k: int, dtype: str, *tiles: str) -> Row:
    make = gemm(dtype, m, n, k, "nk", pad=0)
    work = _product(m, n, k, "f16" if dtype == "f16" else "f32")
    return Row(f"{dtype} {m}x{n}x{k} + bias", make, tiles, work, 2.0 * m * n * k)


def _floats(m: int, n: int, k: int) -> Iterator[Row]:
    """Products of float32 numbers, rounded to tf32 and exact; torch's in the same arithmetic."""
    for dtype, tiles in (
        ("tf32", ("128x256x32x4x1", "128x192x32x5x1", "128x128x32x6x1", "128x64x16x4")),
        ("tf32x3", ("128x128x32x4x1", "128x64x32x6x1", "128x64x16x4")),
    ):

        def work(torch: Any, dtype: str = dtype) -> tuple[Callable[..., Any], list[Any]]:
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            return _product(m, n, k, "f32")(torch)

        yield Row(f"wgmma {dtype} {m}x{n}x{k} + bias", gemm(dtype, m, n, k, "nk", pad=0), tiles,
                  work, 2.0 * m * n * k, 0)  # fmt: skip


def _scores(columns: int) -> Iterator[Row]:
    """Scores of all words of GPT-2 at batch 32; their rows are aligned with a few words more."""
    for dtype in (DType.F16, DType.F32):
        chain = Chain(("full",), (), (0,), (DType.F32,), (dtype,))
        make = gemm("f16", 4096, columns, 768, "nk", chain=chain, pad=0)
        yield Row(f"scores {dtype.name.lower()} 4096x{columns}x768", make,
                  ("128x256x64x4x1", "128x128x64x6x2"), _product(4096, columns, 768, "f16"),
                  2.0 * 4096 * columns * 768, 0)  # fmt: skip


def _attentions(queries: int, head: int, order: str, *tiles: str) -> Row:
    heads, causal = 16, order != "none"
    make = attention(DType.F16, (8, heads, queries), queries, head, head, order=order)
    flops = 4.0 * 8 * heads * queries**2 * head / (2 if causal else 1)
    work = _attend(heads, queries, head, causal)
    return Row(f"attention b8 h16 s{queries} d{head} {order}", make, tiles, work, flops)


def _convolve(
    n: int, side: int, c: int, filters: int, taps: int, stride: int, groups: int
) -> Work:
    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        last = torch.channels_last
        x = torch.randn(n, c, side, side, device="cuda").half().to(memory_format=last)
        w = torch.randn(filters, c // groups, taps, taps, device="cuda").half()
        bias = torch.randn(filters, device="cuda").half()
        convolve = torch.nn.functional.conv2d

        def run(x: Any, w: Any, b: Any) -> Any:
            return convolve(x, w, b, stride=stride, padding=taps // 2, groups=groups)

        return run, [x, w.to(memory_format=last), bias]

    return work


def _conv(n: int, side: int, c: int, filters: int, taps: int, stride: int = 1) -> Row:
    pads = (taps // 2,) * 2
    made = conv(DType.F16, (n, side, side, c), (filters, taps, taps), pads=pads,
                strides=(stride, stride))  # fmt: skip
    out = (side - 1) // stride + 1
    work = _convolve(n, side, c, filters, taps, stride, 1)
    tiles = ("64x64x64x3", "128x128x32x4") + (_WINDOWS if c % 8 == 0 else ())
    few = choose_few_pixels(out * out, filters, -(-c // 64) * taps * taps, FEW_PIXEL_TILES)
    if n == 1 and c % 8 == 0 and few is not None:
        tiles += ("x".join(map(str, (64, *few[0]))),)
    return Row(f"conv f16 b{n} {side}x{side} {c}->{filters} {taps}x{taps}/{stride}", made,
               tiles, work, 2.0 * n * out * out * filters * c * taps * taps, 0)  # fmt: skip


def _grouped(n: int, side: int, c: int, groups: int) -> Row:
    """A 3 × 3 convolution of ResNeXt; groups share matmuls of 64 channels."""
    made = conv(DType.F16, (n, side, side, c), (c, 3, 3), pads=(1, 1), groups=c // 64)
    work, each = _convolve(n, side, c, c, 3, 1, groups), c // groups
    return Row(f"conv f16 b{n} {side}x{side} {c}->{c} 3x3 in {groups} groups", made,
               ("128x128x32x4", "128x64x64x8x1", "128x32x64x9x1"), work,
               2.0 * n * side * side * c * each * 9, 0)  # fmt: skip


RESNET = (
    (224, 3, 64, 7, 2), (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1),
    (56, 256, 64, 1, 1), (56, 256, 128, 1, 1), (56, 128, 128, 3, 2), (56, 256, 512, 1, 2),
    (28, 128, 512, 1, 1), (28, 512, 128, 1, 1), (28, 128, 128, 3, 1), (28, 512, 256, 1, 1),
    (28, 256, 256, 3, 2), (28, 512, 1024, 1, 2), (14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1),
    (14, 256, 256, 3, 1), (14, 1024, 512, 1, 1), (14, 512, 512, 3, 2), (14, 1024, 2048, 1, 2),
    (7, 512, 2048, 1, 1), (7, 2048, 512, 1, 1), (7, 512, 512, 3, 1),
)  # fmt: skip
"""Convolutions of ResNet-50: side, channels, filters, taps, stride."""


_TAPS = 3
MOBILENET = ((112, 32), (112, 96, 2), (56, 144), (28, 192), (14, 384), (7, 960))
"""Depthwise convolutions of MobileNetV2: side, channels, stride if not 1."""
CONVNEXT = ((56, 96), (28, 192), (14, 384), (7, 768))
"""Those of ConvNeXt-tiny, whose windows are 7 × 7."""


def _depthwise(side: int, channels: int, stride: int = 1, taps: int = 3) -> Row:
    made = depthwise(DType.F16, (32, side, side, channels), (taps, taps), (stride, stride))
    tiles = ("2x2", "1x4", "1x1") if taps == _TAPS else ("1x4", "7x7", "14x14x32", "7x7x32")
    return Row(f"depthwise f16 b32 {side}x{side} {channels} {taps}x{taps}/{stride}", made, tiles,
               _convolve(32, side, channels, channels, taps, stride, channels))  # fmt: skip


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


def _whole_numbers(m: int, n: int, k: int) -> Work:
    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        x, w = (torch.randint(-9, 9, (r, k), device="cuda").to(torch.int8) for r in (m, n))
        return (lambda x, w: torch._int_mm(x, w.t())), [x, w]

    return work


def _bytes(m: int, n: int, k: int) -> Row:
    """A product of bytes with a zero point, which torch leaves out."""
    tiles = ("32x64x128x4", "64x64x128x3", *(*_BYTE_PAIRS, *_BYTE_GROUPS) * (m >= LEAST_MANY))
    return Row(f"bytes {m}x{n}x{k}", integer_cases.gemm(DType.I8, m, n, k, 3), tiles,
               _whole_numbers(m, n, k), 2.0 * m * n * k, 0)  # fmt: skip


def _requantized(m: int, n: int, k: int) -> Row:
    """A product of bytes whose results are bytes, with a bias and a zero point."""
    made = integer_cases.gemm(DType.U8, m, n, k, 3, chain=integer_cases.REQUANTIZED)
    return Row(f"bytes to bytes {m}x{n}x{k}", made, ("64x64x128x3", *_BYTE_PAIRS, *_BYTE_GROUPS),
               _whole_numbers(m, n, k), 2.0 * m * n * k, 0)  # fmt: skip


def _float8(m: int, n: int, k: int, promoted: bool = False) -> Row:
    """A product of 8-bit floats with scales, GELU and residual; torch's has one scale a side."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        x, w = (torch.randn(r, k, device="cuda").to(torch.float8_e4m3fn) for r in (m, n))
        one = torch.ones((), device="cuda")
        fast = {"out_dtype": torch.float16, "use_fast_accum": not promoted}
        return (lambda x, w, one: torch._scaled_mm(x, w.t(), one, one, **fast)), [x, w, one]

    made = float8_cases.gemm(m, n, k, promoted=promoted)
    tiles = "64x64x128x3", *_BYTE_PAIRS, *_BYTE_GROUPS
    if promoted:
        tiles = "128x128x128x6x1", "128x128x128x6x1w"
    return Row(f"float8 {m}x{n}x{k}{' promoted' * promoted}", made, tiles, work, 2.0 * m * n * k,
               0)  # fmt: skip


def _byte_windows(side: int, c: int, filters: int, taps: int) -> Row:
    """A convolution of bytes; one whose windows leave the image has no zero point."""
    made = integer_cases.conv(DType.U8, (32, side, side, c), (filters, taps, taps),
                              0 if taps > 1 else 7, pad=taps // 2)  # fmt: skip
    flops = 2.0 * 32 * side * side * filters * c * taps * taps
    tiles = "64x64x128x3", "128x128x128x6x2", *_BYTE_GROUPS
    return Row(f"bytes conv b32 {side}x{side} {c}->{filters} {taps}x{taps}", made, tiles,
               _convolve(32, side, c, filters, taps, 1, 1),
               flops, 0)  # fmt: skip


def _blocks(m: int, n: int, k: int, share: float) -> Row:
    """A product over a share of the blocks of a matrix; torch multiplies all."""
    made = block_cases.blocks("f16", m, n, k, share)
    work = _product(m, n, k, "f16")
    groups = ("128x64x64x8x1", "256x64x64x5x1") if m >= LEAST_MANY else ()
    return Row(f"blocks {share:.0%} {m}x{n}x{k}", made, ("64x64x64x3", *groups), work,
               2.0 * m * n * k, 0)  # fmt: skip


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
    yield Row(f"sparse24 dense {m}x{n}x{k} + bias {what}", dense, _DENSE, _product(m, n, k, "f16"),
              flops, 0)  # fmt: skip
    yield Row(f"sparse24 {m}x{n}x{k} + bias {what}",
              sparse_cases.two_of_four("f16", m, n, k, chain, pad=0),
              ("128x128x64x4", *_KEPT), _semi_structured(m, n, k), flops, 0)  # fmt: skip


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


def _finite(m: int, k: int) -> Row:
    """The launch before a product over blocks, which looks for numbers that are not finite."""
    made = rows("reduce", DType.F16, (m, k), kind="sum", mean=False)
    return Row(f"blocks sums {m}x{k}", made, ("1x256", "1x512"),
               lambda torch: ((lambda x: x.sum(1)), [torch.randn(m, k, device="cuda").half()]),
               far=0)  # fmt: skip


def _codes(m: int, n: int, k: int, bits: int, block: int) -> Row:
    """A product with a block-quantized matrix; torch multiplies one in fp16."""
    few = next((t for most, t in _FEW_CODED.items() if m <= most), "128x128x64x3")
    return Row(f"nbits {bits}/{block} {m}x{n}x{k}", nbits_cases.codes("f16", m, n, k, bits, block),
               (few, "64x64x64x3"), _product(m, n, k, "f16"), 2.0 * m * n * k)  # fmt: skip


_LAYER = {"kind": "layer", "epsilon": 1e-5}
_FEW_CODED = {1: "1x16x8", 8: "8x16", 16: "16x16"}
_HALVES = ("64x64x64x3", "128x128x32x4", "128x128x64x3", "128x256x32x4", "128x256x64x3")
_DENSE = ("128x256x64x4x1", "128x192x64x5x1", "128x128x64x6x2")
_KEPT = tuple(f"{m}x{n}x64x{stages}x1" for m, n, stages in TWO_OF_FOUR_TILES)
_FEW = ("32x64x64x4",)
_WINDOWS = ("128x256x64x4x1", "128x128x64x6x2", "128x128x64x6x1", "128x64x64x8x1")
_GROUPS = ("128x256x64x4x1", "128x192x64x5x1", "128x192x64x5x2", "128x128x64x6x2",
           "128x128x64x6x1", "128x96x64x7x1", "64x192x64x6x2", "64x192x64x6x2x",
           "128x192x64x5x1x")  # fmt: skip
_SUMMED = ("128x256x64x4x1", "128x192x64x5x1", "128x192x64x5x1x", "128x128x64x6x2",
           "64x192x64x6x2", "64x192x64x6x2x")  # fmt: skip
_BYTE_PAIRS = ("128x256x128x4x1w", "128x192x128x5x1w")
_BYTE_GROUPS = ("128x256x128x4x1", "128x192x128x5x1", "128x128x128x6x1", "128x64x128x8x1")
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
    _attentions(4096, 64, "none", "128x64", "192x128x2", "128x128x2"),
    _attentions(4096, 64, "top", "128x32", "192x128x2", "128x128x2"),
    _attentions(128, 64, "none", "64x64", "192x128x2", "128x128x2"),
    _attentions(512, 64, "none", "64x64", "192x128x2", "128x128x2"),
    _attentions(4096, 128, "none", "64x32", "128x128x2"),
    _attentions(4096, 128, "top", "64x32", "128x128x2"),
    Row("transpose f16 8192x4096", copy(DType.F16, (8192, 4096), (1, 0)), ("32x32", "256x16"),
        _turn),
    *(_conv(n, *shape) for n in (1, 32) for shape in RESNET),
    *(_grouped(32, *one) for one in ((56, 128, 32), (28, 256, 32), (14, 512, 32), (28, 512, 8))),
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
    *(_row_sums(4096, *one) for one in SUMS),
    _mlp(100352, 96, "192x1", "128x1"),
    _mlp(25088, 192, "128x2"),
    *_scores(50257),
    *_scores(50304),
    *(_depthwise(*one) for one in MOBILENET),
    *(_depthwise(*one, taps=7) for one in CONVNEXT),
    *(_depthwise(*one, taps=5) for one in ((28, 240), (14, 672), (7, 1152))),
    *(
        _float8(*s, promoted)
        for s in ((4096, 4096, 4096), (4096, 3072, 768), (4096, 768, 3072))
        for promoted in (False, True)
    ),
    *(_bytes(*s) for s in ((4096, 4096, 4096), (4096, 3072, 768), (4096, 768, 3072),
                           (128, 3072, 768), (128, 768, 768))),
    _requantized(4096, 4096, 4096),
    *(_byte_windows(*s) for s in ((56, 64, 64, 3), (14, 256, 256, 3), (28, 512, 128, 1))),
    *(_blocks(4096, 4096, 4096, share) for share in (1.0, 0.5, 0.2, 0.1)),
    *_two_of_four(4096, 4096, 4096),
    *_two_of_four(4096, 2304, 768),
    *_two_of_four(4096, 768, 768, RESIDUAL),
    *_two_of_four(4096, 3072, 768, GELU),
    *_two_of_four(4096, 768, 3072, RESIDUAL),
    _finite(4096, 4096),
    *(_blocks(4096, 3072, 768, share) for share in (1.0, 0.5, 0.25, 0.1)),
    *(_blocks(4096, 768, 3072, share) for share in (0.5, 0.25, 0.1)),
    *(_blocks(128, 3072, 768, share) for share in (0.5, 0.1)),
    *(_codes(m, 4096, 4096, *kind) for m in (1, 8, 16, 64, 512)
      for kind in ((4, 32), (4, 128), (8, 32))),
    _codes(1, 14336, 4096, 4, 32),
    _codes(1, 4096, 14336, 4, 32),
)  # fmt: skip


def built(device: Device, rows: Sequence[Row]) -> dict[tuple[str, str], Built]:
    """Compile the kernels of all rows at once, by row and tile."""
    target, found = Target(CUDA, device.architecture), dict[tuple[str, str], KernelSource]()
    for row in rows:
        call, _ = row.make(Memory(), np.random.default_rng(0))
        for tile in row.tiles:
            variant = find(call, target.architecture, tile)
            found[row.name, tile] = emit_kernel(call, variant, target)
    made = compile_sources(list(found.values()), [target.architecture.name])
    return dict(zip(found, made, strict=True))


def ours(device: Device, row: Row, tile: str, kernel: Built) -> tuple[float, int]:
    """Return the time of a call in µs, and the size of its buffers in bytes."""
    memory, target = Memory(_LINE), Target(CUDA, device.architecture)
    call, _ = row.make(memory, np.random.default_rng(0))
    launch = launch_of(call, find(call, target.architecture, tile), target)
    size = sum(b.nbytes for b in memory.buffers)
    sets = [[device.put(b) for b in memory.buffers] for _ in range(1 + row.far // size)]
    time = device.microseconds(Loaded(kernel), launch, sets)
    for places in sets:
        device.free(places)
    return time, size


def copied(device: Device, size: int) -> float:
    """Return the time in µs of a copy that reads and writes ``size`` bytes in all."""
    half = max(size // 2, 1)
    sets = [[device.put(np.zeros(half, np.uint8)) for _ in "xy"] for _ in range(1 + _FAR // size)]
    time = device.replayed(
        [lambda stream, x=x, y=y: checked(driver.cuMemcpyDtoDAsync(y, x, half, stream))
         for x, y in sets]
    )  # fmt: skip
    for places in sets:
        device.free(places)
    return time


def torchs(torch: Any, row: Row, work: Work) -> Callable[[], float]:
    """Return a function that measures the time of a torch counterpart in µs."""
    function, operands = work(torch)
    size = sum(x.nbytes for x in operands)
    sets = [[x.clone() for x in operands] for _ in range(1 + row.far // (2 * size))]
    for one in sets:
        function(*one)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(20):
            function(*sets[i % len(sets)])
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")

    def measured() -> float:
        times = []
        for _ in range(20):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1000 * begin.elapsed_time(end) / 20)
        return median(times)

    return measured


def main() -> None:
    """Print the table."""
    chosen = [r for r in ROWS if all(word in r.name for word in sys.argv[1:])]
    if not chosen:
        raise SystemExit(f"no row is named {' … '.join(sys.argv[1:])}")
    say = sys.stdout.write
    torch: Any = None
    if importlib.util.find_spec("torch"):
        import torch  # type: ignore[no-redef]

        torch.backends.cudnn.benchmark = True
        torch.zeros(1, device="cuda")
    device = Device()
    say(f"{device.name}, {device.architecture.name}"
        f"{f', torch {torch.__version__}' if torch else ''}\n")  # fmt: skip
    kernels = built(device, chosen)
    for row in chosen:
        peer = torchs(torch, row, row.torch) if torch else None
        if torch and row.whole:
            say(f"{row.name:40s} torch, whole  {torchs(torch, row, row.whole)():9.1f} us\n")
        for tile in row.tiles:
            kernel = kernels[row.name, tile]
            # a card that heats up is slower: torch's time is measured before and after
            before = peer() if peer else 0.0
            time, size = ours(device, row, tile, kernel)
            theirs = (before + peer()) / 2 if peer else 0.0
            rate = f"{row.flops / time / 1e6:7.1f} TFLOP/s" if row.flops else (
                f"{size / time / 1e3:7.0f} GB/s, {copied(device, size) / time:.2f} of a copy"
            )  # fmt: skip
            spilled = kernel.facts.stack if kernel.facts else 0
            say(f"{row.name:40s} {tile:14s} {time:9.1f} us {rate}"
                f"{f' {spilled} bytes of local memory' if spilled else ''}")  # fmt: skip
            say(f"  torch {theirs:9.1f} us ({theirs / time:.2f}x)\n" if torch else "\n")


if __name__ == "__main__":
    main()
