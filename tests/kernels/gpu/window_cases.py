"""Cases of a depthwise convolution with the 1 × 1 convolution behind it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.gpu.cases import TOLERANCE, Case, Expected, Made, Maker, convolved, some, wide
from tests.kernels.gpu.integer_cases import REQUANTIZED, ROUNDED
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.depthwise_projection import BETWEEN, LEVELS
from tracea_graph.kernels.program import View
from tracea_graph.ops.chain import Chain, Step

__all__ = ["CASES", "depthwise_projection", "quantized_projection", "residual"]


def residual(dtype: DType) -> Chain:
    """A sum with the image from before both convolutions and the one in front of them."""
    return Chain(("full", "full"), (Step("add", (0, 1)),), (2,), (DType.F32, dtype), (dtype,))


def plain(dtype: DType) -> Chain:
    return Chain(("full",), (), (0,), (DType.F32,), (dtype,))


def depthwise_projection(
    dtype: DType, image: tuple[int, int, int, int], taps: tuple[int, int],
    strides: tuple[int, int], filters: int, activation: str, chain: Chain,
    pad: int = 0, biased: bool = True,
) -> Maker:  # fmt: skip
    """As many pixels around the image as keep its size; pixels are ``pad`` numbers apart."""
    n, h, w, c = image
    pads = (taps[0] // 2, taps[1] // 2)
    out = (h - 1) // strides[0] + 1, (w - 1) // strides[1] + 1
    rows = n * out[0] * out[1]

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, windows = some(rng, image, dtype), some(rng, (*taps, c), DType.F32)
        second = (some(rng, (filters, c), DType.F32) / c**0.5).astype(NUMPY[dtype])
        first, bias = (some(rng, (k,), DType.F32) for k in (c, filters))
        more: list[Array] = [some(rng, (rows, filters), dtype)] if len(chain.operands) > 1 else []
        y = memory.empty((rows, filters), NUMPY[dtype], pad, pad)
        call = CALLS.make(
            "depthwise_projection", dtype.short, x=memory.put(x, pad),
            w=memory.put(windows), bias1=memory.put(first) if biased else None,
            w2=memory.put(second, pad, pad), bias=memory.put(bias) if biased else None,
            inputs=[memory.put(one, pad, pad) for one in more], y=[y], chain=chain,
            strides=strides, pads=pads, image=out, activation=activation, levels=(0, 0),
            x_type=dtype.short, zero=0,
        )  # fmt: skip

        def expected() -> list[Expected]:
            each = [convolved(wide(x)[..., i : i + 1], wide(windows)[None, ..., i : i + 1],
                              strides, (1, 1), pads, out) for i in range(c)]  # fmt: skip
            sums = np.concatenate(each, -1).reshape(rows, c) + (first if biased else 0)
            steps = BETWEEN[activation]
            (between,) = Chain(("full",), steps, (len(steps),)).reference([sums])
            value = between @ wide(second).T + (bias if biased else 0)
            (value,) = chain.reference([value, *map(wide, more)])
            return [Expected(y, value, TOLERANCE[dtype])]

        return call, expected

    return make


HALVED = Chain(
    REQUANTIZED.operands, (*REQUANTIZED.steps, Step("sub", (5, 128.0))), (6,),
    REQUANTIZED.operand_types, (DType.F16,),
)  # fmt: skip
"""Requantized, minus a zero point, in fp16."""


def quantized_projection(
    kind: DType, zero: int, image: tuple[int, int, int, int], strides: tuple[int, int],
    filters: int, levels: tuple[int, int], chain: Chain,
) -> Maker:  # fmt: skip
    """Bytes of ``kind`` minus ``zero`` under windows of 3 × 3, or fp16 numbers that hold them.

    Scales are powers of two, so that float32 rounds as float64 does.
    """
    n, h, w, c = image
    out = (h - 1) // strides[0] + 1, (w - 1) // strides[1] + 1
    rows = n * out[0] * out[1]

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = rng.integers(*((0, 256) if kind is DType.U8 else (-128, 128)), image)
        windows, second = rng.integers(-127, 128, (3, 3, c)), rng.integers(-127, 128, (filters, c))
        scale = 2.0 ** rng.integers(-11, -8, c)
        bias = rng.integers(-400, 400, c) / 8
        row = rng.integers(-50, 200, filters).astype(np.float32)
        full = rng.integers(0, 256, (rows, filters)).astype(np.uint8)
        result = NUMPY[chain.result_types[0]]
        y, wide_row = memory.empty((rows, filters), result), memory.put(row)
        views = [View(wide_row.buffer, (rows, filters), (0, 1), wide_row.offset)]
        more: list[Array] = [row, full][: len(chain.operands) - 1]
        views += [memory.put(one) for one in more[1:]]
        held = memory.put(windows.astype(np.float32))
        if kind is not DType.F16:  # rows of taps in words
            words = np.zeros((3, c, 4), np.int8)
            words[..., :3] = windows.transpose(0, 2, 1)
            at = memory.put(words)
            held = View(at.buffer, (3, 3, c), (4 * c, 1, 4), at.offset)
        call = CALLS.make(
            "depthwise_projection", "f16", x=memory.put(x.astype(NUMPY[kind])), w=held,
            scale1=memory.put(scale.astype(np.float32)),
            bias1=memory.put(bias.astype(np.float32)), w2=memory.put(second.astype(np.float16)),
            bias=None, inputs=views, y=[y], chain=chain, strides=strides, pads=(1, 1), image=out,
            activation=LEVELS, levels=levels, x_type=kind.short,
            zero=0 if kind is DType.F16 else zero,
        )  # fmt: skip

        def expected() -> list[Expected]:
            shifted = x - (0 if kind is DType.F16 else zero)
            each = [convolved(wide(shifted)[..., i : i + 1], wide(windows)[None, ..., i : i + 1],
                              strides, (1, 1), (1, 1), out) for i in range(c)]  # fmt: skip
            sums = np.concatenate(each, -1).reshape(rows, c)
            between = np.clip(np.rint(sums * scale + bias), *levels)
            (value,) = chain.reference([between @ wide(second).T, *map(wide, more)])
            return [Expected(y, value, 0)]

        return call, expected

    return make


def _quantized_cases() -> Iterator[Case]:
    tiles, most = ("64x1", "128x1"), (0, 255)
    made = quantized_projection(DType.U8, 0, (2, 7, 6, 40), (1, 1), 24, most, ROUNDED)
    yield Case("projected bytes residual", made, tiles)
    made = quantized_projection(DType.U8, 131, (1, 9, 12, 144), (2, 2), 16, (-120, 135), HALVED)
    yield Case("projected bytes by two", made, tiles)
    made = quantized_projection(DType.I8, -7, (3, 6, 5, 16), (1, 1), 8, most, REQUANTIZED)
    yield Case("projected signed bytes", made, ("128x1",))
    made = quantized_projection(DType.F16, 0, (1, 6, 8, 32), (1, 1), 24, most, HALVED)
    yield Case("projected levels", made, ("128x1",))


def _cases() -> Iterator[Case]:
    yield from _quantized_cases()
    f16, tiles = DType.F16, ("64x1", "128x1")
    made = depthwise_projection(f16, (2, 7, 6, 40), (3, 3), (1, 1), 24, "relu6", residual(f16))
    yield Case("projected residual", made, tiles)
    made = depthwise_projection(f16, (1, 9, 12, 144), (3, 3), (2, 2), 16, "silu", plain(f16), 8)
    yield Case("projected by two", made, tiles)
    made = depthwise_projection(f16, (1, 5, 5, 16), (3, 2), (1, 2), 8, "none", plain(f16),
                                biased=False)  # fmt: skip
    yield Case("projected 3x2", made, ("128x1",))
    made = depthwise_projection(DType.BF16, (3, 6, 6, 72), (3, 3), (1, 1), 24, "hard_swish",
                                plain(DType.BF16))  # fmt: skip
    yield Case("projected bf16", made, ("128x1",), ("bf16",))
    made = depthwise_projection(f16, (0, 6, 6, 8), (3, 3), (1, 1), 8, "relu", plain(f16))
    yield Case("projected nothing", made, ("128x1",))


CASES = tuple(_cases())
