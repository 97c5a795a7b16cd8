"""Convolutions of volumes that every way of running GPU kernels has to compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.kernels.gpu.cases import RESNET, Case, conv, depthwise, pool
from tracea_graph.ir import DType

__all__ = ["CASES"]


def _cases() -> Iterator[Case]:
    small, large, needs = "64x64x64x3", "128x128x32x4", ("wgmma",)
    plain, ones = replace(RESNET, dtypes=(), stores=()), (1, 1, 1)
    made = conv(DType.F16, (2, 3, 5, 7, 24), (70, 3, 3, 3), pads=ones, chain=RESNET)
    yield Case("volume 3x3x3", made, (small, large))
    made = conv(DType.F16, (1, 4, 5, 6, 3), (10, 3, 2, 3), pads=(1, 0, 1), strides=(1, 2, 2),
                dilations=(2, 1, 1))  # fmt: skip
    yield Case("volume of few channels", made, (small,))
    made = conv(DType.BF16, (1, 4, 6, 5, 40), (24, 3, 3, 3), pads=ones, parts=3)
    yield Case("volume cut", made, (small,), ("bf16",))
    for multiply, tiles in (("tf32x3", ("64x64x32x3", "128x64x16x4")), ("tf32", ("64x64x32x3",))):
        made = conv(DType.F32, (1, 3, 4, 5, 16), (20, 2, 3, 3), pads=(1, 1, 0), chain=plain,
                    multiply=multiply)  # fmt: skip
        yield Case(f"volume {multiply}", made, tiles, ("bf16",) if multiply == "tf32" else ())
    made = conv(DType.F32, (1, 3, 4, 5, 6), (20, 2, 3, 3), pads=(1, 1, 0), chain=plain)
    yield Case("volume f32", made, ("64x64x8", "128x128x8"))
    groups = ("128x64x64x8x1", "128x32x64x9x1")
    made = conv(DType.F16, (2, 3, 5, 7, 128), (70, 3, 3, 3), pads=ones, chain=RESNET)
    yield Case("volume by warpgroups", made, (*groups, "128x128x64x6x2"), needs)
    made = conv(DType.F16, (2, 7, 5, 6, 64), (24, 3, 2, 3), dilations=(2, 3, 1), pads=(3, 1, 2),
                strides=(2, 1, 2))  # fmt: skip
    yield Case("volume apart by warpgroups", made, groups, needs)
    made = conv(DType.BF16, (3, 4, 5, 9, 96), (80, 1, 1, 1), strides=(2, 2, 2), groups=2)
    yield Case("volume of channel groups by warpgroups", made, groups[1:], needs)
    made = conv(DType.F16, (2, 3, 6, 5, 32), (24, 3, 3, 3), pads=ones, late=8)
    yield Case("volume of half steps by warpgroups", made, groups, needs)
    by_two = ("128x64x32x8x1", "128x32x32x9x1")
    yield Case("volume by two taps", made, (*by_two, "128x128x32x6x1"), needs)
    made = conv(DType.BF16, (2, 5, 7, 6, 24), (70, 3, 2, 3), dilations=(2, 3, 1), pads=(3, 1, 2),
                strides=(2, 1, 2))  # fmt: skip
    yield Case("volume apart by two taps", made, by_two[:1], needs)
    made = conv(DType.F16, (3, 9, 7, 16), (24, 3, 3), pads=(1, 1), chain=RESNET)
    yield Case("image by two taps", made, by_two[1:], needs)
    for multiply, tile in (("tf32", "128x64x32x8x1"), ("tf32x3", "128x64x32x6x1")):
        made = conv(DType.F32, (3, 2, 5, 7, 64), (72, 2, 3, 3), pads=ones, chain=plain,
                    multiply=multiply)  # fmt: skip
        yield Case(f"volume {multiply} by warpgroups", made, (tile,), needs)
    made = conv(DType.F16, (1, 3, 5, 7, 128), (70, 3, 3, 3), pads=ones, chain=RESNET)
    yield Case("volume of few pixels", made, ("64x32x1", "64x16x4"), needs)
    made = conv(DType.BF16, (2, 5, 6, 7, 64), (24, 2, 3, 2), strides=(2, 1, 2), pads=(1, 2, 0),
                dilations=(1, 2, 1))  # fmt: skip
    yield Case("volume of few pixels apart", made, ("64x24x3",), needs)
    yield from _windows()


def _windows() -> Iterator[Case]:
    tiles = ("256", "1x4", "1x1")
    made = depthwise(DType.F16, (2, 3, 6, 8, 24), (3, 3, 3), (1, 1, 1), RESNET)
    yield Case("volume depthwise", made, (*tiles, "2x2"))
    made = depthwise(DType.F16, (1, 4, 7, 5, 40), (5, 3, 3), (2, 2, 1))
    yield Case("volume depthwise apart", made, tiles)
    made = depthwise(DType.F32, (2, 3, 5, 6, 7), (3, 2, 5), (1, 2, 1), dilations=(2, 1, 1))
    yield Case("volume depthwise dilated", made, tiles[:1])
    made = depthwise(DType.BF16, (1, 3, 4, 9, 16), (2, 5, 3), (1, 1, 2))
    yield Case("volume depthwise bf16", made, tiles, ("bf16",))
    for kind in ("max", "average", "average_inside"):
        made = pool(DType.F16, (2, 4, 5, 8, 24), kind)
        yield Case(f"volume pool {kind}", made, tiles)
    yield Case("volume pool of each", pool(DType.F32, (1, 3, 4, 5, 12), "max", 1), tiles)


CASES = tuple(_cases())
