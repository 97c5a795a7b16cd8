"""Convolutions that ``tests.gpu.timing`` times."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.gpu.timing_row import BYTE_GROUPS, FAR, Row, Work
from tests.kernels.gpu import integer_cases, window_cases
from tests.kernels.gpu.cases import conv, depthwise, pool
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.convolution_choice import choose_few_pixels
from tracea_graph.kernels.gpu.tile_choice import FEW_PIXEL_TILES
from tracea_graph.kernels.gpu.variants import PROJECTION_TILES

__all__ = ["ROWS"]

_DEPTHS = ("128x128x64x5x1d2", "128x128x64x4x1d4", "128x128x64x4x1d8")
_BY_TWO = ("128x128x32x6x1", "128x64x32x8x1", "128x32x32x9x1")
"""Tiles whose steps have up to 32 channels of two taps."""
_WINDOWS = ("128x256x64x4x1", "128x128x64x6x2", "128x128x64x6x1", "128x64x64x8x1")


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
    if n > 1 and n * out * out * filters < _FEW_RESULTS and c % 8 == 0:
        tiles += _DEPTHS
    few = choose_few_pixels(out * out, filters, -(-c // 64) * taps * taps, FEW_PIXEL_TILES)
    if n == 1 and c % 8 == 0 and few is not None:
        tiles += ("x".join(map(str, (64, *few[0]))),)
        tiles += _DEPTHS if (side, c, filters, taps) in BOTTLENECKS else ()
    return Row(f"conv f16 b{n} {side}x{side} {c}->{filters} {taps}x{taps}/{stride}", made,
               tiles, work, 2.0 * n * out * out * filters * c * taps * taps, 0)  # fmt: skip


def _volume(n: int, sides: tuple[int, int, int], c: int, filters: int, stride: int = 1) -> Row:
    """A convolution by 3 × 3 × 3 of volumes, as 3-D U-Nets and residual networks have them."""
    out = tuple((side - 1) // stride + 1 for side in sides)
    made = conv(DType.F16, (n, *sides, c), (filters, 3, 3, 3), pads=(1,) * 3,
                strides=(stride,) * 3)  # fmt: skip

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        last = torch.channels_last_3d
        x = torch.randn(n, c, *sides, device="cuda").half().to(memory_format=last)
        w = torch.randn(filters, c, 3, 3, 3, device="cuda").half().to(memory_format=last)
        bias = torch.randn(filters, device="cuda").half()

        def run(x: Any, w: Any, b: Any) -> Any:
            return torch.nn.functional.conv3d(x, w, b, stride=stride, padding=1)

        return run, [x, w, bias]

    few = choose_few_pixels(math.prod(out), filters, -(-c // 64) * 27, FEW_PIXEL_TILES)
    tiles = ("128x128x32x4", *_WINDOWS)
    if c <= 32:
        tiles = ("128x64x64x8x1", "128x32x64x9x1", *_BY_TWO)
    tiles += _DEPTHS if n * math.prod(out) * filters < 2 * _FEW_RESULTS else ()
    if n == 1 and few is not None:
        tiles += ("x".join(map(str, (64, *few[0]))),)
    name = f"conv3d f16 b{n} {'x'.join(map(str, sides))} {c}->{filters}/{stride}"
    flops = 2.0 * n * math.prod(out) * filters * c * 27
    return Row(name, made, tiles, work, flops, 0)


VOLUMES = (
    (2, (32, 56, 56), 64, 64), (2, (16, 28, 28), 128, 128), (2, (32, 56, 56), 64, 128, 2),
    (2, (8, 14, 14), 256, 256), (1, (64, 64, 64), 32, 64), (1, (64, 64, 64), 32, 32),
    (1, (64, 64, 64), 32, 64, 2), (1, (4, 7, 7), 512, 512),
    (1, (2, 7, 7), 512, 512), (1, (2, 7, 7), 256, 256), (1, (4, 14, 14), 256, 256),
    (1, (8, 14, 14), 128, 128), (1, (4, 4, 4), 256, 256),
)  # fmt: skip
"""Convolutions of 3-D ResNets and U-Nets: batch, sides, channels, filters, stride if not 1."""


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
BOTTLENECKS = ((8, 1280, 1280, 3), (16, 1024, 1024, 3), (16, 512, 512, 3), (16, 640, 640, 3))
"""Convolutions of few pixels and many channels, as in the middle of U-Nets."""
_TAPS, _FEW_RESULTS = 3, 1 << 20
MOBILENET = ((112, 32), (112, 96, 2), (56, 144), (28, 192), (14, 384), (7, 960))
"""Depthwise convolutions of MobileNetV2: side, channels, stride if not 1."""
CONVNEXT = ((56, 96), (28, 192), (14, 384), (7, 768))
"""Those of ConvNeXt-tiny, whose windows are 7 × 7."""


def _depthwise(side: int, channels: int, stride: int = 1, taps: int = 3) -> Row:
    made = depthwise(DType.F16, (32, side, side, channels), (taps, taps), (stride, stride))
    lanes = ("8x14x32",) if stride > 1 else ("14x14x32", "7x7x32")
    tiles = ("2x2", "1x4", "1x1") if taps == _TAPS else ("1x4", "7x7", *lanes)
    return Row(f"depthwise f16 b32 {side}x{side} {channels} {taps}x{taps}/{stride}", made, tiles,
               _convolve(32, side, channels, channels, taps, stride, channels))  # fmt: skip


CHANNELWISE = (
    (2, (16, 56, 56), 56), (2, (16, 28, 28), 112), (2, (16, 14, 14), 216), (1, (32, 64, 64), 32),
)  # fmt: skip
"""Depthwise convolutions of video nets, and volumes as pools have them: batch, sides, channels."""


def _channelwise(n: int, sides: tuple[int, int, int], c: int, stride: int = 1) -> Row:
    """A depthwise convolution by 3 × 3 × 3 of volumes."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        x = torch.randn(n, c, *sides, device="cuda").half()
        w = torch.randn(c, 1, 3, 3, 3, device="cuda").half()
        last = torch.channels_last_3d

        def run(x: Any, w: Any, b: Any) -> Any:
            return torch.nn.functional.conv3d(x, w, b, stride=stride, padding=1, groups=c)

        return run, [x.to(memory_format=last), w, torch.randn(c, device="cuda").half()]

    made = depthwise(DType.F16, (n, *sides, c), (3,) * 3, (stride,) * 3)
    tiles = ("2x2", "1x4", "1x1", "256") if stride == 1 else ("1x4", "1x1")
    name = f"depthwise3d f16 b{n} {'x'.join(map(str, sides))} {c}/{stride}"
    return Row(name, made, tiles, work)


def _pooled_volume(n: int, sides: tuple[int, int, int], c: int, kind: str) -> Row:
    """A pool of every second window of 3 × 3 × 3."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        x = torch.randn(n, c, *sides, device="cuda").half()
        pooled = {"max": torch.nn.functional.max_pool3d, "average": torch.nn.functional.avg_pool3d}

        def run(x: Any) -> Any:
            return pooled[kind](x, 3, 2, 1)

        return run, [x.to(memory_format=torch.channels_last_3d)]

    name = f"pool3d {kind} f16 b{n} {'x'.join(map(str, sides))} {c}"
    return Row(name, pool(DType.F16, (n, *sides, c), kind), ("1x4", "1x1", "256"), work)


PROJECTED = (
    (112, 32, 1, 16), (112, 96, 2, 24), (56, 144, 1, 24), (56, 144, 2, 32), (28, 192, 1, 32),
    (28, 192, 2, 64), (14, 384, 1, 64), (14, 384, 1, 96), (14, 576, 1, 96),
)  # fmt: skip
"""MobileNetV2's depthwise convolutions with those behind them: side, channels, stride, filters."""


def _projected(n: int, side: int, channels: int, stride: int, filters: int) -> Row:
    """A depthwise convolution, ReLU6 and the 1 × 1 convolution behind it in one launch."""

    def work(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        first, windows = _convolve(n, side, channels, channels, _TAPS, stride, channels)(torch)
        out = (side - 1) // stride + 1
        second, pixels = _convolve(n, out, channels, filters, 1, 1, 1)(torch)

        def run(*given: Any) -> Any:
            return second(torch.clamp(first(*given[:3]), 0, 6), *given[3:])

        return run, [*windows, *pixels[1:]]

    made = window_cases.depthwise_projection(
        DType.F16, (n, side, side, channels), (_TAPS, _TAPS), (stride, stride), filters, "relu6",
        window_cases.plain(DType.F16))  # fmt: skip
    name = f"projected f16 b{n} {side}x{side}/{stride} {channels}->{filters}"
    tiles = tuple(tile for tile, *_ in PROJECTION_TILES)
    return Row(name, made, tiles, work, far=0 if n == 1 else FAR)


def _byte_windows(side: int, c: int, filters: int, taps: int) -> Row:
    """A convolution of bytes; one whose windows leave the image has no zero point."""
    made = integer_cases.conv(DType.U8, (32, side, side, c), (filters, taps, taps),
                              0 if taps > 1 else 7, pad=taps // 2)  # fmt: skip
    flops = 2.0 * 32 * side * side * filters * c * taps * taps
    tiles = "64x64x128x3", "128x128x128x6x2", *BYTE_GROUPS
    return Row(f"bytes conv b32 {side}x{side} {c}->{filters} {taps}x{taps}", made, tiles,
               _convolve(32, side, c, filters, taps, 1, 1),
               flops, 0)  # fmt: skip


ROWS: tuple[Row, ...] = (
    *(_conv(n, *shape) for n in (1, 32) for shape in RESNET),
    *(_conv(8, *shape) for shape in RESNET if shape[3] == _TAPS and shape[0] <= 14),
    *(_conv(1, *shape) for shape in BOTTLENECKS),
    *(_volume(*one) for one in VOLUMES),
    *(_channelwise(*one, stride) for one in CHANNELWISE for stride in (1, 2)),
    *(_pooled_volume(*one, kind) for one in CHANNELWISE[-1:] for kind in ("max", "average")),
    *(_grouped(32, *one) for one in ((56, 128, 32), (28, 256, 32), (14, 512, 32), (28, 512, 8))),
    *(_depthwise(*one) for one in MOBILENET),
    *(_depthwise(*one, taps=7) for one in CONVNEXT),
    *(
        _depthwise(*one, taps=5)
        for one in ((56, 144, 2), (28, 240), (14, 672), (14, 672, 2), (7, 1152))
    ),
    *(_projected(n, *one) for n in (32, 1) for one in PROJECTED),
    *(_byte_windows(*s) for s in ((56, 64, 64, 3), (14, 256, 256, 3), (28, 512, 128, 1))),
)
