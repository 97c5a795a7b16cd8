"""Matmuls, convolutions, maxima and ranges of 8-bit integers: exact at awkward shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests.kernels.gpu.cases import Case, Expected, Made, Maker
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.dynamic_quantize import DynamicQuantizeParams
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.pool import PoolParams

__all__ = ["CASES"]

SUMS = Chain(("full",), (), (0,))
ROUNDED = Chain(
    ("full", "row", "full"),
    (Step("mul", (0, 0.0009765625)), Step("add", (3, 1)), Step("add", (4, 2)), Step("round", (5,)),
     Step("saturate", (6, 0.0, 255.0))),
    (7,), (DType.F32, DType.F32, DType.U8), (DType.U8,),
)  # fmt: skip
"""Requantized by a power of two, so that float32 rounds as float64 does."""
REQUANTIZED = Chain(
    ("full", "row"),
    (Step("mul", (0, 0.0009765625)), Step("add", (2, 1)), Step("round", (3,)),
     Step("saturate", (4, 0.0, 255.0))),
    (5,), (DType.F32, DType.F32), (DType.U8,),
)  # fmt: skip
"""The same without a residual."""
DIVIDED = Chain(
    ("full", "row"),
    (Step("mul", (0, 0.0009765625)), Step("add", (2, 1)), Step("div", (3, 3.0)),
     Step("round", (4,)), Step("saturate", (5, 0.0, 255.0))),
    (6,), (DType.F32, DType.F32), (DType.U8,),
)  # fmt: skip
"""Divided by a step, with infinities in the row."""
LEVELS = Chain(
    ("full", "row"),
    (Step("mul", (0, 0.0009765625)), Step("add", (2, 1)), Step("round", (3,)),
     Step("saturate", (4, -100.0, 155.0)), Step("mul", (5, 0.0625)), Step("erf", (6,)),
     Step("mul", (7, 64.0)), Step("round", (8,)), Step("add", (9, 64.0)), Step("mul", (5, 0.25)),
     Step("add", (10, 11)), Step("round", (12,)), Step("saturate", (13, 0.0, 255.0))),
    (14,), (DType.F32, DType.F32), (DType.U8,),
)  # fmt: skip
"""Rounded to bytes twice, with a function of the first byte between."""
TILES = ("32x64x128x4", "64x64x128x3")
_BYTES = {DType.U8: (0, 256), DType.I8: (-128, 128)}


def some(rng: np.random.Generator, shape: Sequence[int], dtype: DType) -> Array:
    """Bytes of any value, the extremes among them."""
    made: Array = rng.integers(*_BYTES[dtype], shape).astype(NUMPY[dtype])
    made.reshape(-1)[:1], made.reshape(-1)[1:2] = _BYTES[dtype][0], _BYTES[dtype][1] - 1
    return made


def _zeros(
    memory: Memory, rng: np.random.Generator, dtype: DType, zero: int | None, own: bool, w: Array
) -> tuple[dict[str, Any], int, Array]:
    """Arguments of the zero points: ``zero`` is None if it lies in memory."""
    n = len(w)
    named: dict[str, Any] = {"shifted": zero != 0, "zero": zero or 0}
    if zero != 0 and not own:
        named["column_sums"] = memory.put(w.sum(1, dtype=np.float32))
    if zero is None:
        zero = int(rng.integers(*_BYTES[dtype]))
        named["x_zero"] = memory.put(np.array([zero], NUMPY[dtype]))
    zeros = some(rng, (n,), DType.I8) if own else np.zeros(n, np.int8)
    if own:
        named["w_zeros"] = memory.put(zeros)
    return named, zero, zeros


def _beside(memory: Memory, rng: np.random.Generator, chain: Chain, shape: Sequence[int]) -> Any:
    """Inputs and result of a chain: their views, and the inputs."""
    if chain is SUMS:
        return [], [], memory.empty(shape, np.float32)
    row = rng.integers(-50, 200, shape[-1]).astype(np.float32)
    if chain is DIVIDED:
        row[:4] = np.inf, -np.inf, 3e38, -3e38
    full = some(rng, shape, DType.U8)
    wide = memory.put(row)
    repeated = type(wide)(wide.buffer, tuple(shape), (0,) * (len(shape) - 1) + (1,), wide.offset)
    both = [row, full], [repeated, memory.put(full)], memory.empty(shape, np.uint8)
    return both if chain is ROUNDED else (both[0][:1], both[1][:1], both[2])


def _finished(chain: Chain, sums: Array, more: Sequence[Array]) -> Array:
    return np.asarray(chain.reference([sums, *(m.astype(np.float64) for m in more)])[0])


def gemm(
    dtype: DType, m: int, n: int, k: int, zero: int | None = 0, own: bool = False, late: int = 0,
    chain: Chain = SUMS,
) -> Maker:  # fmt: skip
    """Rows of both operands 16 bytes apart, or not if they are ``late``."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, w = some(rng, (m, k), dtype), some(rng, (n, k), DType.I8)
        zeros, at, owns = _zeros(memory, rng, dtype, zero, own, w)
        pad = late or -k % 16
        more, views, y = _beside(memory, rng, chain, (m, n))
        call = CALLS.make(
            "integer_gemm", dtype.short, x=memory.put(x, late, pad), w=memory.put(w, late, pad),
            inputs=views, y=[y], chain=chain, **zeros,
        )  # fmt: skip

        def expected() -> list[Expected]:
            left = x.astype(np.float64) - at
            sums = left @ (w.astype(np.float64) - owns[:, None].astype(np.float64)).T
            return [Expected(y, _finished(chain, sums, more), 0)]

        return call, expected

    return make


def conv(
    dtype: DType, image: tuple[int, int, int, int], filters: tuple[int, int, int],
    zero: int | None = 0, own: bool = False, strides: tuple[int, int] = (1, 1), pad: int = 1,
    chain: Chain = SUMS, depthwise: bool = False,
) -> Maker:  # fmt: skip
    """``image``: N, H, W, C; ``filters``: how many, and their taps."""
    n, *sides, c = image
    count, *taps = filters
    window = ConvWindow(tuple(taps), strides, (1, 1), (pad,) * 4)

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, w = some(rng, image, dtype), some(rng, (count, taps[0] * taps[1] * c), DType.I8)
        w = w[:, : taps[0] * taps[1]].copy() if depthwise else w
        zeros, at, owns = _zeros(memory, rng, dtype, zero, own, w)
        if depthwise:
            zeros.pop("column_sums", None)
        out = window.sizes(tuple(sides))
        more, views, y = _beside(memory, rng, chain, (n, *map(int, out), count))  # type: ignore[arg-type]
        place = memory.put(w, 0, 0, (1, 0)) if depthwise else memory.put(w, 0, -w.shape[1] % 16)
        call = CALLS.make(
            "integer_depthwise" if depthwise else "integer_conv", dtype.short,
            x=memory.put(x), w=place, inputs=views, y=[y], chain=chain, kernel=tuple(taps),
            strides=strides, dilations=(1, 1), pads=(pad, pad), **zeros,
        )  # fmt: skip

        def expected() -> list[Expected]:
            params = ConvIntegerParams(
                c, count, window, IntegerOperand(dtype, at, True), c if depthwise else 1
            )
            return [Expected(y, _finished(chain, params.sums(x, [w], [owns]), more), 0)]

        return call, expected

    return make


def pool(dtype: DType, image: tuple[int, int, int, int]) -> Maker:
    params = PoolParams("max", ConvWindow((3, 3), (2, 2), (1, 1), (1,) * 4), channels_last=True)

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = some(rng, image, dtype)
        (value,) = params.reference([x])
        y = memory.empty(value.shape, NUMPY[dtype])
        call = CALLS.make(
            "integer_pool", dtype.short, x=memory.put(x), y=y, kernel=(3, 3), strides=(2, 2),
            dilations=(1, 1), pads=(1, 1),
        )  # fmt: skip
        return call, lambda: [Expected(y, value, 0)]

    return make


def looked_up(dtype: DType) -> Maker:
    """Rows of a table; an index from the end, and one outside the table, which gives zeros."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        table, ids = some(rng, (50, 37), dtype), rng.integers(-50, 50, (3, 5))
        ids[0, 0], ids[2, 4] = -50, 50
        y = memory.empty((15, 37), NUMPY[dtype])
        call = CALLS.make(
            "embedding", dtype.short, tables=[memory.put(table)], ids=[memory.put(ids)], y=y,
            count=1, table_type=dtype.short, index_type="i64",
        )  # fmt: skip
        value = table[ids.reshape(-1).clip(-50, 49)]
        value[-1] = 0
        return call, lambda: [Expected(y, value, 0)]

    return make


def value_range(dtype: DType, count: int, blocks: int, way: str = "") -> Maker:
    """All numbers positive, or one of them NaN, perhaps."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = rng.standard_normal(count).astype(NUMPY[dtype])
        if way == "positive":
            x = np.abs(x)
        if way == "nan":
            x[count // 2] = np.nan
        found = {"scale": memory.empty((1,), np.float32), "zero": memory.empty((1,), np.uint8)}
        arrivals = memory.put(np.zeros(1, np.int32))
        call = CALLS.make(
            "value_range", dtype.short, x=memory.put(x), **found, arrivals=arrivals,
            partial=memory.empty((blocks, 4), np.float32),
        )  # fmt: skip

        def expected() -> list[Expected]:
            with np.errstate(all="ignore"):
                _, scale, zero = DynamicQuantizeParams().reference([x.astype(np.float32)])
            return [Expected(found["scale"], np.reshape(scale, (1,)), 0),
                    Expected(found["zero"], np.reshape(zero, (1,)), 0)]  # fmt: skip

        return call, expected

    return make


def in_fp16(channels: int, taps: int, depthwise: bool = False) -> Maker:
    """Bytes minus a zero point as fp16 numbers, whose sums are exact; results are bytes."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        filters = channels if depthwise else 40
        x = rng.integers(-255, 256, (2, 12, 11, channels)).astype(np.float16)
        shape = (taps, taps, channels) if depthwise else (filters, taps, taps, channels)
        w = rng.integers(-128, 128, shape).astype(np.float16)
        sizes = (2, 13 - taps, 12 - taps, filters)
        row = rng.integers(-50, 200, filters).astype(np.float32)
        y, wide = memory.empty(sizes, np.uint8), memory.put(row)
        repeated = type(wide)(wide.buffer, sizes, (0, 0, 0, 1), wide.offset)
        call = CALLS.make(
            "depthwise" if depthwise else "conv", "f16", x=memory.put(x), w=memory.put(w),
            inputs=[repeated], y=[y], chain=REQUANTIZED, strides=(1, 1), dilations=(1, 1),
            pads=(0, 0),
        )  # fmt: skip

        def expected() -> list[Expected]:
            window = np.lib.stride_tricks.sliding_window_view
            seen = window(x.astype(np.float64), (taps, taps), (1, 2))
            pattern = "nhwcij,ijc->nhwc" if depthwise else "nhwcij,fijc->nhwf"
            sums = np.einsum(pattern, seen, w.astype(np.float64))
            return [Expected(y, _finished(REQUANTIZED, sums, [row]), 0)]

        return call, expected

    return make


def _warpgroups(dtype: DType) -> Iterator[Case]:
    """Depths that end within a step, few columns, pixels of a window that lie around the image."""
    kind, needs = dtype.short, ("wgmma",)
    wide = "128x256x128x4x1"
    yield Case(f"{kind} wgmma 300 264 400", gemm(dtype, 300, 264, 400),
               (wide, f"{wide}w", "128x128x128x6x1"), needs)  # fmt: skip
    yield Case(f"{kind} wgmma shifted", gemm(dtype, 140, 72, 144, 100),
               ("128x64x128x8x1",), needs)  # fmt: skip
    yield Case(f"{kind} wgmma rounded", gemm(dtype, 270, 200, 640, None, chain=ROUNDED),
               ("128x192x128x5x1", "128x192x128x5x1w", "64x192x128x6x2"), needs)  # fmt: skip
    yield Case(f"{kind} wgmma requantized", gemm(dtype, 140, 136, 144, 3, chain=REQUANTIZED),
               ("128x128x128x6x1",), needs)  # fmt: skip
    yield Case(f"{kind} wgmma divided", gemm(dtype, 140, 136, 144, 3, chain=DIVIDED),
               ("128x64x128x8x1",), needs)  # fmt: skip
    yield Case(f"{kind} wgmma levels", gemm(dtype, 140, 136, 144, 3, chain=LEVELS),
               ("128x128x128x6x1", "128x256x128x4x1w"), needs)  # fmt: skip
    yield Case(f"{kind} wgmma few", gemm(dtype, 130, 24, 16), ("128x32x128x9x1",), needs)
    image = (2, 9, 7, 160)
    yield Case(f"{kind} wgconv 3x3", conv(dtype, image, (40, 3, 3)),
               ("128x64x128x8x1", "128x128x128x6x2"), needs)  # fmt: skip
    yield Case(f"{kind} wgconv rounded", conv(dtype, (3, 9, 7, 64), (72, 3, 2), strides=(2, 1),
               chain=ROUNDED), ("128x96x128x7x1",), needs)  # fmt: skip
    yield Case(f"{kind} wgconv inside", conv(dtype, image, (40, 2, 3), None, pad=0,
               chain=ROUNDED), ("128x32x128x9x1",), needs)  # fmt: skip


def _cases() -> Iterator[Case]:
    for dtype in (DType.U8, DType.I8):
        kind = dtype.short
        yield Case(f"{kind} 70 136 200", gemm(dtype, 70, 136, 200, 100, True), TILES)
        yield Case(f"{kind} 1 1 1", gemm(dtype, 1, 1, 1, None, True, 1), TILES[:1])
        yield Case(f"{kind} plain 13 40 33", gemm(dtype, 13, 40, 33, late=3), TILES[:1])
        yield Case(f"{kind} rounded", gemm(dtype, 33, 70, 640, None, chain=ROUNDED), TILES)
        yield Case(f"{kind} zeros", gemm(dtype, 5, 20, 96, 0, True), TILES[:1])
        image = (2, 9, 7, 32)
        yield Case(f"{kind} conv 3x3", conv(dtype, image, (40, 3, 3), 7, True), TILES)
        yield Case(f"{kind} conv rounded", conv(dtype, image, (20, 3, 2), None, chain=ROUNDED,
                   strides=(2, 1)), TILES[1:2])  # fmt: skip
        yield Case(f"{kind} conv few channels", conv(dtype, (1, 11, 13, 3), (24, 5, 5), 90,
                   strides=(2, 2), pad=2), TILES[:1])  # fmt: skip
        yield Case(f"{kind} depthwise", conv(dtype, (2, 9, 7, 21), (21, 3, 3), None, True,
                   depthwise=True, chain=ROUNDED), ("256",))  # fmt: skip
        yield from _warpgroups(dtype)
        yield Case(f"{kind} embedding", looked_up(dtype), ("256",))
        yield Case(f"{kind} pool", pool(dtype, (2, 9, 7, 24)), ("256",))
    for channels, taps, tiles, needs in (
        (24, 3, ("128x128x32x4",), ()), (64, 2, ("128x64x64x8x1",), ("wgmma",)),
    ):  # fmt: skip
        yield Case(f"bytes in fp16 {channels}", in_fp16(channels, taps), tiles, needs)
    yield Case("bytes in fp16 depthwise", in_fp16(32, 3, True), ("2x2",))
    yield Case("i8 most", gemm(DType.I8, 3, 5, 32768, -128, True), TILES[:1])
    for dtype in (DType.F32, DType.F16):
        yield Case(f"range {dtype.short} 5000", value_range(dtype, 5003, 3), ("256",))
    yield Case("range one", value_range(DType.F32, 1, 1, "positive"), ("256",))
    yield Case("range nan", value_range(DType.F32, 300, 2, "nan"), ("256",))
    yield Case("range nothing", value_range(DType.F32, 0, 1), ("256",))


CASES = tuple(_cases())
