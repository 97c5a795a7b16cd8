"""Convolutions, pools and moves of many shapes, alone and in regions, for tests of several parts.

Shapes are symbolic: ``n`` images, ``h`` rows, ``w`` columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.graphs import normal
from tracea_graph.ir import DType, Expr, Extent, TensorSpec, evaluate
from tracea_graph.kernels.cpu.filters import LAYOUTS, DepthwiseFilters, DispatchFilters
from tracea_graph.kernels.cpu.filters import Filters as Packed
from tracea_graph.kernels.cpu.fp16_layouts import FP16_FILTERS
from tracea_graph.kernels.cpu.panels import PANELS
from tracea_graph.ops import OpParams
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.filter_layouts import PLAIN, FilterLayout
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.resize import ResizeParams

__all__ = ["ALONE", "BF16", "CASES", "REGIONS", "SIZES", "Bias", "Case", "Filters", "Scales"]

Shape = tuple[Extent, ...]
SIZES = {"n": 2, "h": 9, "w": 7}


@dataclass(frozen=True)
class Filters:
    """Weights of a shape, stored in a layout."""

    shape: tuple[int, ...]
    layout: str
    seed: int | None = None  # None: the operand's place

    @property
    def stored(self) -> Shape:
        return layout_named(self.layout).shape(self.shape)

    @property
    def dtype(self) -> DType:
        layout = layout_named(self.layout)
        return layout.arrays(self.shape)[0][0] if isinstance(layout, Packed) else DType.F32

    def pack(self, seed: int) -> tuple[np.ndarray, ...]:
        """Numbers whose sums are of their size."""
        scale = np.float32(np.prod(self.shape[1:]) ** -0.5)
        plain = normal(*self.shape, seed=seed if self.seed is None else self.seed) * scale
        layout = layout_named(self.layout)
        return layout.pack(plain) if isinstance(layout, Packed) else (plain,)


@dataclass(frozen=True)
class Scales:
    """Those of filters in integers, which are operand 1."""

    of: Filters

    @property
    def stored(self) -> Shape:
        planes = 16 if self.of.layout.startswith("winograd") else 1
        return (planes * 16 * -(-self.of.shape[0] // 16),)


@dataclass(frozen=True)
class Bias:
    """So many numbers, then zeros up to whole blocks."""

    count: int

    @property
    def stored(self) -> Shape:
        return (-(-self.count // 16) * 16,)


@dataclass(frozen=True)
class Case:
    """An op and its operands: symbolic shapes, :class:`Filters` or :class:`Bias`."""

    params: OpParams
    operands: tuple[Any, ...]

    @property
    def specs(self) -> list[TensorSpec]:
        shapes = (o if isinstance(o, tuple) else o.stored for o in self.operands)
        types = map(_type, self.operands)
        return [TensorSpec(t, s) for t, s in zip(types, shapes, strict=True)]

    def arrays(self, sizes: Mapping[str, int] = SIZES) -> list[np.ndarray]:
        return [_array(o, i, sizes) for i, o in enumerate(self.operands)]


def _type(operand: Any) -> DType:
    return operand.dtype if isinstance(operand, Filters) else DType.F32


def _array(operand: Any, seed: int, sizes: Mapping[str, int]) -> np.ndarray:
    if isinstance(operand, Filters):
        return operand.pack(seed)[0]
    if isinstance(operand, Scales):
        return operand.of.pack(1)[1]
    if isinstance(operand, Bias):
        values = normal(operand.count, seed=seed)
        return np.pad(values, (0, operand.stored[0] - operand.count))
    return normal(*(evaluate(d, dict(sizes)) for d in operand), seed=seed)


def window(kernel: Any, stride: int = 1, dilation: int = 1, pads: Any = 0) -> ConvWindow:
    sizes = (kernel, kernel) if isinstance(kernel, int) else tuple(kernel)
    rank = len(sizes)
    around = (pads,) * (2 * rank) if isinstance(pads, int) else tuple(pads)
    return ConvWindow(sizes, (stride,) * rank, (dilation,) * rank, around)


def layout_named(name: str) -> FilterLayout:
    own: Mapping[str, FilterLayout] = {"plain": PLAIN, FP16_FILTERS.name: FP16_FILTERS}
    return own.get(name) or LAYOUTS[name]


def laid_out(
    channels: int, filters: int, over: ConvWindow, groups: int = 1, layout: str = "plain",
    bias: bool = False, epilogue: Chain | None = None, in_bf16: bool = False,
) -> ConvParams:  # fmt: skip
    """A convolution with its filters in the layout of a name, which says what it reads unless they
    are depthwise."""
    found = layout_named(layout)
    if isinstance(found, DepthwiseFilters):
        found = DepthwiseFilters(in_bf16)
    assert found.rounds == in_bf16
    return ConvParams(channels, filters, over, groups, found, bias, epilogue)


def conv(
    c: int, o: int, over: ConvWindow, layout: str = "blocked", groups: int = 1, *extra: Any,
    bias: bool = True, epilogue: Chain | None = None, x: Shape | None = None,
) -> Case:  # fmt: skip
    params = laid_out(c, o, over, groups, layout, bias, epilogue, layout_named(layout).rounds)
    data: Shape = x or ("n", c, *("h", "w", 5)[: over.rank])
    offsets = (Bias(o) if params.layout.biases(o) % 16 == 0 else (o,),) if bias else ()
    stored = Filters(params.shape, layout)
    scales = (Scales(stored),) if params.layout.operands > 1 else ()
    return Case(params, (data, stored, *offsets, *extra, *scales))


def either(case: Case) -> Case:
    """The convolution with its filters as they are, too."""
    assert isinstance(case.params, ConvParams)
    layout: Any = case.params.layout
    params = replace(case.params, layout=DispatchFilters(layout))
    direct = Filters(params.shape, layout.direct.name, seed=1)
    scales = (Scales(direct),) if layout.operands > 1 else ()
    return Case(params, (*case.operands, direct, *scales))


RELU = Chain(("full",), (Step("relu", (0,)),), (1,))
SILU = Chain(("full",), (Step("silu", (0,)),), (1,))
CLIP = Chain(("full",), (Step("clip", (0, 0.0, 6.0)),), (1,))
ADD_RELU = Chain(("full", "full"), (Step("add", (0, 1)), Step("relu", (2,))), (3,))
SILU_ADD = Chain(("full", "full"), (Step("silu", (0,)), Step("add", (2, 1))), (3,))
ADD_SILU = Chain(("full", "full"), (Step("add", (1, 0)), Step("silu", (2,))), (3,))
ADD_SELF = Chain(("full", "full"), (Step("add", (0, 1)), Step("mul", (2, 1))), (3,))
PRELU = Chain(("full", "row"), (Step("prelu", (0, 1)),), (2,))
CLIP_MUL = Chain(
    ("full", "full", "row", "scalar"),
    (Step("add", (0, 1)), Step("clip", (4, -1.0, 1.0)), Step("mul", (5, 2)), Step("sub", (6, 3))),
    (7,),
)
SUM = Chain(("full", "full"), (Step("add", (0, 1)),), (2,))
SCALE = Chain(("full", "full"), (Step("mul", (0, 1)),), (2,))
EXP = Chain(("full",), (Step("exp", (0,)),), (1,))

X16: Shape = ("n", 16, "h", "w")
HALVED = window(3, 2, pads=1)
HALF = HALVED.sizes(("h", "w"))

MORE = [Expr("sub", (f"1.{axis}", f"0.{axis}")) for axis in (2, 3)]
HALVES = [Expr("floordiv", (Expr("max", (d, 0)), 2)) for d in MORE]
TO_SIZE = (*HALVES, *(Expr("sub", pair) for pair in zip(MORE, HALVES, strict=True)))

ALONE = {
    "3x3": conv(16, 32, window(3, pads=1)),
    "3x3, channels not whole blocks": conv(20, 33, window(3, pads=1)),
    "3x3, no bias": conv(16, 16, window(3, pads=1), bias=False),
    "1x1": conv(24, 24, window(1)),
    "1x1, stride 2": conv(16, 16, window(1, stride=2)),
    "5x3, asymmetric": conv(16, 16, window((5, 3), pads=(2, 0, 1, 1))),
    "7x7, stride 3, dilation 2": conv(16, 16, window(3, 3, 2, 2)),
    "vnni2": conv(16, 32, window(3, pads=1), "vnni2"),
    "pairs, channels not whole blocks": conv(20, 33, window(3, 2, pads=1), "vnni2"),
    "pairs, groups of blocks": conv(32, 64, window(3, pads=1), "vnni2", 2),
    "pairs, residual, relu": conv(16, 20, window(1), "vnni2", 1, ("n", 20, "h", "w"),
                                  epilogue=ADD_RELU),
    "pairs, residual, silu": conv(16, 20, window(1), "vnni2", 1, ("n", 20, "h", "w"),
                                  epilogue=ADD_SILU),
    "pairs, silu, residual": conv(16, 20, window(1), "vnni2", 1, ("n", 20, "h", "w"),
                                  epilogue=SILU_ADD),
    "Winograd in pairs": conv(20, 33, window(3, pads=1), "winograd2_vnni2"),
    "Winograd in pairs, or directly": either(conv(20, 33, window(3, pads=1), "winograd2_vnni2")),
    "integers": conv(20, 33, window(3, 2, pads=1), "int16"),
    "integers, channels that are no pairs": conv(19, 24, window(1), "int16", bias=False),
    "integers, groups of blocks": conv(32, 64, window(5, pads=2), "int16", 2),
    "integers, residual, relu": conv(16, 20, window(1), "int16", 1, ("n", 20, "h", "w"),
                                     epilogue=ADD_RELU),
    "integers, silu, residual": conv(16, 20, window(1), "int16", 1, ("n", 20, "h", "w"),
                                     epilogue=SILU_ADD),
    "Winograd in integers": conv(20, 33, window(3, pads=1), "winograd2_int16", epilogue=RELU),
    "Winograd in integers, or directly": either(
        conv(20, 33, window(3, pads=1), "winograd2_int16", epilogue=RELU)
    ),
    "broad blocks": conv(64, 33, window(3, 2, pads=1), "nchw32c"),
    "broad blocks, residual": conv(32, 64, window(1), "nchw32c", 1, ("n", 64, "h", "w"),
                                   bias=False, epilogue=ADD_RELU),
    "broad blocks over one axis": conv(32, 16, window((3,), pads=1), "nchw32c"),
    "halves": conv(20, 33, window(3, 2, pads=1), "bf16x2"),
    "halves, groups of blocks": conv(32, 64, window(3, pads=1), "bf16x2", 2, bias=False),
    "halves, silu, residual": conv(19, 20, window(1), "bf16x2", 1, ("n", 20, "h", "w"),
                                   epilogue=SILU_ADD),
    "halves over one axis": conv(20, 16, window((3,), pads=1), "bf16x2"),
    "groups of blocks": conv(32, 64, window(3, pads=1), "blocked", 2),
    "over one axis": conv(20, 16, window((3,), pads=1)),
    "first_layer": conv(3, 24, window(3, stride=2, pads=(0, 0, 1, 1)), "first_layer"),
    "stem, 7x7": conv(3, 16, window(7, stride=2, pads=3), "first_layer"),
    "stem over one axis": conv(2, 16, window((5,), stride=2, pads=2), "first_layer"),
    "depthwise": conv(32, 32, window(3, pads=1), "depthwise", 32),
    "depthwise, 24 channels, stride 2": conv(24, 24, window(5, 2, pads=2), "depthwise", 24),
    "panels": conv(20, 33, window(1), "panels", x=("n", 20, 1, 1)),
    "panels, chain": conv(
        20, 33, window(1), "panels", 1, ("n", 33, 1, 1), (33, 1, 1), (), x=("n", 20, 1, 1),
        epilogue=CLIP_MUL,
    ),
    "Winograd, 2 x 2": conv(20, 33, window(3, pads=1), "winograd2"),
    "Winograd, 4 x 4": conv(20, 33, window(3, pads=1), "winograd4", epilogue=RELU),
    "Winograd, 2 x 2, or directly": either(conv(20, 33, window(3, pads=1), "winograd2")),
    "Winograd, 4 x 4, or directly": either(
        conv(16, 20, window(3, pads=1), "winograd4", 1, ("n", 20, "h", "w"), epilogue=ADD_RELU)
    ),
    "plain": conv(6, 10, window(3, pads=1), "plain", 2),
    "plain, no bias": conv(6, 10, window(3, pads=1), "plain", 2, bias=False),
    "plain over one axis": conv(6, 4, window((3,), 2, pads=1), "plain"),
    "plain over three axes": conv(3, 4, window((3, 2, 2), pads=1), "plain"),
    "plain, chain": conv(
        6, 10, window(3, pads=1), "plain", 1, ("n", 10, "h", "w"), (10, 1, 1), (1,),
        epilogue=CLIP_MUL,
    ),
    "relu": conv(16, 20, window(3, pads=1), epilogue=RELU),
    "clip": conv(16, 16, window(3, pads=1), "depthwise", 16, epilogue=CLIP),
    "silu": conv(3, 20, window(3, pads=1), "first_layer", epilogue=SILU),
    "residual, relu": conv(16, 20, window(3, pads=1), "blocked", 1, ("n", 20, "h", "w"),
                           epilogue=ADD_RELU),
    "silu, residual": conv(16, 20, window(1), "blocked", 1, ("n", 20, "h", "w"),
                           epilogue=SILU_ADD),
    "residual, silu": conv(16, 20, window(1), "blocked", 1, ("n", 20, "h", "w"),
                           epilogue=ADD_SILU),
    "residual, strided": conv(16, 20, HALVED, "blocked", 1, ("n", 20, *HALF), epilogue=ADD_RELU),
    "residual, strided, plain": conv(6, 4, HALVED, "plain", 2, ("n", 4, *HALF), epilogue=ADD_RELU),
    "residual used twice": conv(16, 20, window(1), "blocked", 1, ("n", 20, "h", "w"),
                                epilogue=ADD_SELF),
    "prelu": conv(16, 20, window(1), "blocked", 1, (20, 1, 1), epilogue=PRELU),
    "prelu, whole blocks": conv(16, 32, window(1), "blocked", 1, (1, 32, 1, 1), epilogue=PRELU),
    "residual, clip, scale per image": conv(
        16, 20, window(1), "blocked", 1, ("n", 20, "h", "w"), ("n", 20, 1, 1), (1,),
        epilogue=CLIP_MUL,
    ),
    "max pool": Case(PoolParams("max", window(3, 2, pads=1)), (("n", 20, "h", "w"),)),
    "max pool, dilated": Case(PoolParams("max", window(2, 1, 2)), (X16,)),
    "max pool over one axis": Case(PoolParams("max", window((2,), 2)), (("n", 20, "w"),)),
    "average, padding counted": Case(PoolParams("average", window(3, pads=1)), (X16,)),
    "average, inside": Case(PoolParams("average-inside", window(3, 2, pads=1)), (X16,)),
    "global average": Case(PoolParams("average"), (("n", 20, "h", "w"),)),
    "global maximum, flat": Case(PoolParams("max", flat=True), (X16,)),
    "global average over one axis": Case(PoolParams("average"), (("n", 20, "w"),)),
    "resize": Case(ResizeParams("half_pixel", scales=(2.0, 3.0)), (("n", 20, "h", "w"),)),
    "resize to sizes": Case(ResizeParams("align_corners", sizes=(7, 9)), (("n", 20, "h", "w"),)),
    "resize, from the corner": Case(ResizeParams("asymmetric", scales=(2.0, 1.0)), (X16,)),
    "resize to the nearest": Case(ResizeParams("nearest", sizes=(7, 9)), (("n", 20, "h", "w"),)),
    "as large as another": Case(
        ResizeParams("half_pixel", like=True), (("n", 20, "h", "w"), ("n", 3, "w", "h"))
    ),
    "shrink": Case(ResizeParams("half_pixel", scales=(0.4, 0.7)), (("n", 3, 11, 13),)),
    "resize to one": Case(ResizeParams("pytorch_half_pixel", sizes=(1, 5)), (X16,)),
    "concat": Case(LayoutParams("concat", (1,), 2), (X16, ("n", 5, "h", "w"))),
    "concat of rows": Case(LayoutParams("concat", (2,), 2), (X16, ("n", 16, 3, "w"))),
    "channels": Case(LayoutParams("channels", (3, 9)), (X16,)),
    "repeat": Case(LayoutParams("repeat", (2, 3)), (X16,)),
    "repeat over one axis": Case(LayoutParams("repeat", (2,)), (("n", 5, "w"),)),
    "repeat with channels last": Case(LayoutParams("repeat", (2, 3, 1)), (("n", "h", "w", 5),)),
    "spread": Case(LayoutParams("spread", (2, 2)), (("n", 12, "h", "w"),)),
    "spread across": Case(LayoutParams("spread", (1, 2)), (("n", 12, "h", "w"),)),
    "spread of parts by two and three": Case(LayoutParams("spread", (2, 3), 6),
                                             (("n", 3, "h", "w"),) * 6),
    "spread along a line": Case(LayoutParams("spread", (3,)), (("n", 12, "w"),)),
    "spread of parts": Case(LayoutParams("spread", (2, 2), 4), (("n", 3, "h", "w"),) * 4),
    "shuffle": Case(LayoutParams("shuffle", (4, 20)), (("n", 20, "h", "w"),)),
    "frames": Case(LayoutParams("frames", (3, 1, 1, 1, 1)), ((5, 20, "h", "w"),)),
    "frames, two on": Case(LayoutParams("frames", (2, 2, 1, 0, 1)), ((5, 3, "h", "w"),)),
    "frames far apart": Case(LayoutParams("frames", (3, 1, 2, 3, 4)), ((3, 7, 4, 6),)),
    "pad to another's size": Case(
        LayoutParams("pad", (), 2, TO_SIZE), (("n", 5, "h", "w"), ("n", 7, 11, 9))
    ),
    "pad and cut": Case(LayoutParams("pad", (), 1, (1, -2, -1, 3)), (X16,)),
    "transpose": Case(LayoutParams("transpose", (0, 2, 3, 1)), (X16,)),
    "reflect": Case(LayoutParams("reflect", (2, 1, 0, 3)), (X16,)),
    "edge": Case(LayoutParams("edge", (1, 0, 2, 7)), (("n", 3, "h", "w"),)),
}  # fmt: skip


# ---- regions -----------------------------------------------------------------------------


def region(inputs: tuple[Any, ...], steps: list[tuple[OpParams, tuple[int, ...]]],
           *results: int) -> Case:  # fmt: skip
    made = tuple(RegionStep(p, o) for p, o in steps)
    return Case(RegionParams(len(inputs), made, results), inputs)


def filters(o: int, i: int, k: int, layout: str) -> Filters:
    return Filters((o, i, k, k), layout)


FIRST_LAYER = laid_out(3, 16, window(3, 2, pads=1), 1, "first_layer", True, RELU)
SAME16 = laid_out(16, 16, window(3, pads=1), 1, "blocked", False, RELU)
SAME20 = laid_out(16, 20, window(3, pads=1), 1, "blocked", False)
DEEP = laid_out(16, 16, window(5, pads=2), 16, "depthwise", False, SILU)
VALID16 = laid_out(16, 16, window(3), 1, "blocked", False)
NORM, BARE = Norm("layer", 1e-5, True, True), Norm("layer", 1e-5, False, False)
RMS, SHIFTED = Norm("rms", 1e-5, True, False), Norm("layer", 1e-5, False, True)
ADDED = laid_out(16, 16, window(1), 1, "blocked", False, ADD_RELU)
IMAGE: Shape = ("n", 3, "h", "w")
W_STEM, W16, W_DEEP = filters(16, 3, 3, "first_layer"), filters(16, 16, 3, "blocked"), filters(
    16, 1, 5, "depthwise"
)  # fmt: skip
W1 = filters(16, 16, 1, "blocked")

REGIONS = {
    # inputs: image, stem's filters and bias, 3x3 filters, 1x1 filters
    "residual block": region(
        (IMAGE, W_STEM, Bias(16), W16, W1),
        [(FIRST_LAYER, (0, 1, 2)), (SAME16, (5, 3)), (ADDED, (6, 4, 5))], 7,
    ),
    "what a strided convolution is added to comes from outside": region(
        (X16, W1, ("n", 16, *HALF)),
        [
            (laid_out(16, 16, ConvWindow((1, 1), (2, 2), (1, 1), (0,) * 4), 1, "blocked"), (0, 1)),
            (ElementwiseParams(SUM), (3, 2)),
            (PoolParams("max", window(3, pads=1)), (4,)),
        ], 5,
    ),
    "a value in the middle leaves too": region(
        (IMAGE, W_STEM, Bias(16), W16, W1),
        [(FIRST_LAYER, (0, 1, 2)), (SAME16, (5, 3)), (ADDED, (6, 4, 5))], 6, 7,
    ),
    "squeeze and excite": region(
        (X16, W_DEEP, Filters((4, 16, 1, 1), "panels"), (4,), Filters((16, 4, 1, 1), "panels"),
         (16,), W16),
        [
            (DEEP, (0, 1)),
            (PoolParams("average"), (7,)),
            (laid_out(16, 4, window(1), 1, "panels", True, SILU), (8, 2, 3)),
            (laid_out(4, 16, window(1), 1, "panels", True, None), (9, 4, 5)),
            (ElementwiseParams(SCALE), (7, 10)),
            (SAME16, (11, 6)),
        ], 12,
    ),
    "scaling channels that fill no block": region(
        (X16, filters(20, 16, 3, "blocked"), ("n", 20, 1, 1), filters(16, 20, 3, "blocked")),
        [
            (SAME20, (0, 1)),
            (ElementwiseParams(SCALE), (4, 2)),
            (ElementwiseParams(EXP), (5,)),
            (laid_out(20, 16, window(3, pads=1), 1, "blocked"), (6, 3)),
        ], 7,
    ),
    "filters scaled in place of channels, each image's own": region(
        (("n", 20, 6, 7), filters(20, 20, 1, "blocked"), ("n", 20, 1, 1),
         filters(24, 20, 1, "blocked")),
        [
            (laid_out(20, 20, window(1), 1, "blocked"), (0, 1)),
            (ElementwiseParams(SCALE), (4, 2)),
            (laid_out(20, 24, window(1), 1, "blocked"), (5, 3)),
        ], 6,
    ),
    "filters scaled in place of channels, for all images": region(
        (("n", 32, 6, 7), filters(32, 32, 1, "blocked"), (1, 32, 1, 1),
         filters(40, 32, 1, "blocked")),
        [
            (laid_out(32, 32, window(1), 1, "blocked"), (0, 1)),
            (ElementwiseParams(SCALE), (2, 4)),
            (laid_out(32, 40, window(1), 1, "blocked", False, RELU), (5, 3)),
        ], 6,
    ),
    "a sum of two, per position and per number": region(
        (X16, W16, ("n", 1, "h", "w"), (1, 1, "h", "w"), (), (16, 1, 1)),
        [(SAME16, (0, 1)), *((ElementwiseParams(SUM), (6 + i, 2 + i)) for i in range(4))], 10,
    ),
    "concat, split, repeat": region(
        (X16, W16, filters(32, 16, 1, "blocked"), filters(16, 48, 3, "blocked")),
        [
            (SAME16, (0, 1)),
            (laid_out(16, 32, window(1), 1, "blocked"), (4, 2)),
            (LayoutParams("channels", (0, 16)), (5,)),
            (LayoutParams("channels", (16, 32)), (5,)),
            (SAME16, (7, 1)),
            (LayoutParams("concat", (1,), 3), (4, 6, 8)),
            (laid_out(48, 16, window(3, pads=1), 1, "blocked"), (9, 3)),
            (LayoutParams("repeat", (2, 2)), (10,)),
            (SAME16, (11, 1)),
        ], 12,
    ),
    "a part twice, an input as part, and a short last part": region(
        (X16, W16, filters(20, 16, 3, "blocked"), filters(16, 68, 3, "blocked")),
        [
            (SAME16, (0, 1)),
            (SAME20, (4, 2)),
            (LayoutParams("concat", (1,), 4), (4, 0, 4, 5)),
            (laid_out(68, 16, window(3, pads=1), 1, "blocked"), (6, 3)),
            (LayoutParams("concat", (1,), 2), (5, 4)),
        ], 7, 8,
    ),
    "channels last in the middle": region(
        (X16, W_DEEP, (16,), (16,), (1, 16, 24), (24,)),
        [
            (DEEP, (0, 1)),
            (LayoutParams("transpose", (0, 2, 3, 1)), (6,)),
            (NormParams(Norm("layer", 1e-6)), (7, 2, 3)),
            (LayoutParams("transpose", (0, 3, 1, 2)), (8,)),
            (ElementwiseParams(SUM), (6, 9)),
            (DEEP, (10, 1)),
            (LayoutParams("transpose", (0, 2, 3, 1)), (9,)),
        ], 9, 11, 12,
    ),
    "channels last before convolutions": region(
        (("n", "h", "w", 16), (16,), (16,), W_DEEP),
        [
            (NormParams(Norm("layer", 1e-6)), (0, 1, 2)),
            (LayoutParams("transpose", (0, 3, 1, 2)), (4,)),
            (DEEP, (5, 3)),
            (LayoutParams("transpose", (0, 2, 3, 1)), (6,)),
            (NormParams(Norm("layer", 1e-6)), (7, 1, 2)),
            (LayoutParams("transpose", (0, 3, 1, 2)), (8,)),
            (ElementwiseParams(SUM), (5, 9)),
            (DEEP, (10, 3)),
        ], 11,
    ),
    "pools and a head": region(
        (IMAGE, W_STEM, Bias(16), W16, (2, 16, 16), (20,)),
        [
            (FIRST_LAYER, (0, 1, 2)),
            (PoolParams("max", window(3, 2, pads=1)), (6,)),
            (SAME16, (7, 3)),
            (PoolParams("average", flat=True), (8,)),
            (GemmParams(16, 20, PANELS, bias=True), (9, 4, 5)),
        ], 10,
    ),
    "spread in the middle": region(
        (X16, filters(64, 16, 1, "blocked"), W16),
        [
            (laid_out(16, 64, window(1), 1, "blocked"), (0, 1)),
            (LayoutParams("spread", (2, 2)), (3,)),
            (SAME16, (4, 2)),
        ], 5,
    ),
    "spread to where it is padded and cut": region(
        (X16, filters(64, 16, 1, "blocked"), W16),
        [
            (laid_out(16, 64, window(1), 1, "blocked"), (0, 1)),
            (LayoutParams("spread", (2, 2)), (3,)),
            (LayoutParams("pad", (), 1, (1, -3, -2, 3)), (4,)),
            (SAME16, (5, 2)),
            (LayoutParams("spread", (2, 2)), (3,)),
            (LayoutParams("pad", (), 1, (-1, 2, 0, -5)), (7,)),
            (SAME16, (8, 2)),
        ], 6, 9,
    ),
    "spread for a pad and for another": region(
        (X16, filters(64, 16, 1, "blocked"), W16),
        [
            (laid_out(16, 64, window(1), 1, "blocked"), (0, 1)),
            (LayoutParams("spread", (2, 2)), (3,)),
            (LayoutParams("pad", (), 1, (1, 0, 2, 3)), (4,)),
            (SAME16, (5, 2)),
            (SAME16, (4, 2)),
        ], 6, 7,
    ),
    "padded to the size of a skip": region(
        (X16, W16, filters(16, 32, 1, "blocked")),
        [
            (SAME16, (0, 1)),
            (PoolParams("max", window(2, 2)), (3,)),
            (LayoutParams("repeat", (2, 2)), (4,)),
            (LayoutParams("pad", (), 2, TO_SIZE), (5, 3)),
            (LayoutParams("concat", (1,), 2), (3, 6)),
            (laid_out(32, 16, window(1), 1, "blocked"), (7, 2)),
        ], 8,
    ),
    "two halves, shuffled and split again": region(
        (X16, filters(20, 16, 3, "blocked"), filters(12, 16, 1, "blocked"), W16),
        [
            (laid_out(16, 20, window(3, pads=1), 1, "blocked"), (0, 1)),
            (laid_out(16, 12, window(1), 1, "blocked"), (0, 2)),
            (LayoutParams("concat", (1,), 2), (4, 5)),
            (LayoutParams("shuffle", (2, 32)), (6,)),
            (LayoutParams("channels", (0, 16)), (7,)),
            (LayoutParams("channels", (11, 27)), (7,)),
            (SAME16, (8, 3)),
            (SAME16, (9, 3)),
        ], 10, 11,
    ),
    "what is dealt is read as it is, too": region(
        (X16, filters(20, 16, 3, "blocked"), ("n", 20, "h", "w")),
        [
            (laid_out(16, 20, window(3, pads=1), 1, "blocked"), (0, 1)),
            (LayoutParams("shuffle", (5, 20)), (3,)),
            (ElementwiseParams(SUM), (4, 2)),
            (LayoutParams("concat", (1,), 2), (4, 5)),
            (LayoutParams("shuffle", (2, 40)), (6,)),
        ], 4, 7,
    ),
    "a shuffle of a slice": region(
        (X16, filters(40, 16, 1, "blocked"), filters(16, 20, 1, "blocked")),
        [
            (laid_out(16, 40, window(1), 1, "blocked"), (0, 1)),
            (LayoutParams("channels", (4, 24)), (3,)),
            (LayoutParams("shuffle", (2, 20)), (4,)),
            (laid_out(20, 16, window(1), 1, "blocked"), (5, 2)),
        ], 6,
    ),
    "frames of blocks": region(
        ((5, 16, "h", "w"), W16, filters(16, 48, 3, "blocked")),
        [
            (SAME16, (0, 1)),
            (LayoutParams("frames", (3, 2, 1, 1, 1)), (3,)),
            (laid_out(48, 16, window(3, pads=1), 1, "blocked"), (4, 2)),
        ], 5,
    ),
    "frames of parts of blocks": region(
        ((5, 16, "h", "w"), filters(20, 16, 3, "blocked"), filters(16, 40, 1, "blocked")),
        [
            (laid_out(16, 20, window(3, pads=1), 1, "blocked"), (0, 1)),
            (LayoutParams("frames", (2, 1, 1, 1, 0)), (3,)),
            (laid_out(40, 16, window(1), 1, "blocked"), (4, 2)),
        ], 5,
    ),
    "shuffled into a larger whole": region(
        (X16, W16),
        [
            (SAME16, (0, 1)),
            (LayoutParams("shuffle", (2, 16)), (2,)),
            (LayoutParams("concat", (1,), 2), (3, 2)),
            (LayoutParams("channels", (8, 24)), (4,)),
            (SAME16, (5, 1)),
        ], 6,
    ),
    "resized in the middle": region(
        (X16, W16, filters(16, 32, 1, "blocked")),
        [
            (SAME16, (0, 1)),
            (PoolParams("max", window(2, 2)), (3,)),
            (ResizeParams("half_pixel", scales=(2.0, 2.0)), (4,)),
            (SAME16, (5, 1)),
        ], 6,
    ),
    "resized to fit another": region(
        (X16, W16, filters(16, 32, 3, "blocked")),
        [
            (SAME16, (0, 1)),
            (PoolParams("max", window(2, 2)), (3,)),
            (ResizeParams("nearest", like=True), (4, 3)),
            (LayoutParams("concat", (1,), 2), (5, 3)),
            (laid_out(32, 16, window(3, pads=1), 1, "blocked", False, RELU), (6, 2)),
        ], 7,
    ),
    "reflected around a value that is read without it, too": region(
        (X16, W16),
        [
            (SAME16, (0, 1)),
            (ElementwiseParams(EXP), (2,)),
            (LayoutParams("reflect", (2, 1, 3, 4)), (3,)),
            (VALID16, (4, 1)),
            (LayoutParams("reflect", (0, 2, 0, 0)), (5,)),
            (PoolParams("max", window(2)), (6,)),
            (ElementwiseParams(SUM), (3, 2)),
        ], 7, 8,
    ),
    "borders beside one of zeros and beside each other": region(
        (X16, W16),
        [
            (SAME16, (0, 1)),
            (LayoutParams("edge", (1, 1, 1, 1)), (2,)),
            (SAME16, (2, 1)),
            (LayoutParams("reflect", (1, 1, 1, 1)), (4,)),
            (LayoutParams("edge", (3, 0, 0, 3)), (4,)),
            (SAME16, (6, 1)),
            (LayoutParams("concat", (1,), 2), (3, 5)),
            (LayoutParams("reflect", (1, 2, 1, 2)), (0,)),
        ], 7, 8, 9,
    ),
    "an instance norm, its border, a residual": region(
        (X16, filters(20, 16, 3, "blocked"), (20,), (20,), filters(20, 20, 3, "blocked")),
        [
            (SAME20, (0, 1)),
            (ChannelNormParams(NORM, 20, 4), (5, 2, 3)),
            (ElementwiseParams(RELU), (6,)),
            (LayoutParams("reflect", (1, 1, 1, 1)), (7,)),
            (laid_out(20, 20, window(3), 1, "blocked"), (8, 4)),
            (ChannelNormParams(BARE, 20, 4), (9,)),
            (ElementwiseParams(SUM), (10, 7)),
        ], 11,
    ),
    "group norms within a block and over several": region(
        (X16, filters(20, 16, 3, "blocked"), filters(64, 20, 1, "blocked"), (64,), (64,),
         (20,), filters(16, 64, 1, "blocked"), (16,)),
        [
            (SAME20, (0, 1)),
            (ChannelNormParams(RMS, 5, 4), (8, 5)),
            (laid_out(20, 64, window(1), 1, "blocked"), (9, 2)),
            (ChannelNormParams(NORM, 2, 4), (10, 3, 4)),
            (ElementwiseParams(SUM), (11, 10)),
            (laid_out(64, 16, window(1), 1, "blocked"), (12, 6)),
            (ChannelNormParams(SHIFTED, 1, 4), (13, 7)),
        ], 14, 9,
    ),
    "norms that no chain reads, and groups that fit no block": region(
        (X16, filters(24, 16, 3, "blocked"), (24,), (24,), filters(16, 24, 3, "blocked")),
        [
            (laid_out(16, 24, window(3, pads=1), 1, "blocked"), (0, 1)),
            (ChannelNormParams(NORM, 3, 4), (5, 2, 3)),
            (laid_out(24, 16, window(3, pads=1), 1, "blocked"), (6, 4)),
            (ChannelNormParams(NORM, 2, 4), (5, 2, 3)),
            (laid_out(24, 16, window(3, pads=1), 1, "blocked"), (8, 4)),
            (ElementwiseParams(SUM), (7, 9)),
        ], 10,
    ),
    "plain in the middle": region(
        (X16, W16, (16, 4, 3, 3)),
        [
            (SAME16, (0, 1)),
            (laid_out(16, 16, window(3, pads=1), 4, "plain", False, RELU), (3, 2)),
            (ElementwiseParams(EXP), (4,)),
            (SAME16, (5, 1)),
        ], 6,
    ),
}  # fmt: skip

PAIRS3 = laid_out(16, 16, window(3, pads=1), 1, "vnni2", False, RELU, True)
PAIRS1 = laid_out(16, 16, window(1), 1, "vnni2", False, ADD_RELU, True)
PAIRS_SILU = laid_out(16, 16, window(3, pads=1), 1, "vnni2", False, SILU, True)
TRANSFORMED = laid_out(16, 16, window(3, pads=1), 1, "winograd2_vnni2", False, SILU, True)
DEEP_BF16 = laid_out(16, 16, window(5, pads=2), 16, "depthwise", False, SILU, True)
P3, P1 = filters(16, 16, 3, "vnni2"), filters(16, 16, 1, "vnni2")
BROAD1 = laid_out(64, 32, window(1), 1, "nchw32c", False, RELU, True)
BROAD3 = laid_out(32, 32, window(3, pads=1), 1, "nchw32c", False, RELU, True)
BROAD_ADD = laid_out(32, 64, window(1), 1, "nchw32c", False, ADD_RELU, True)
BROAD_SILU = laid_out(32, 32, window(3, pads=1), 1, "nchw32c", False, SILU, True)
FIRST64 = laid_out(16, 64, window(3, pads=1), 1, "vnni2", False, RELU, True)
FIRST32 = filters(32, 16, 3, "vnni2")
F64, B1 = filters(64, 16, 3, "vnni2"), filters(32, 64, 1, "nchw32c")
B3, B_ADD = filters(32, 32, 3, "nchw32c"), filters(64, 32, 1, "nchw32c")

BF16 = {
    "residual block in bf16": region(
        (IMAGE, W_STEM, Bias(16), P3, P1),
        [(FIRST_LAYER, (0, 1, 2)), (PAIRS3, (5, 3)), (PAIRS1, (6, 4, 5)), (PAIRS3, (7, 3))], 8,
    ),
    "expand, depthwise, project in bf16": region(
        (X16, P3, W_DEEP, P1),
        [(PAIRS_SILU, (0, 1)), (DEEP_BF16, (4, 2)), (PAIRS1, (5, 3, 4))], 6,
    ),
    "squeeze and excite in bf16": region(
        (X16, W_DEEP, ("n", 16, 1, 1), P3, filters(16, 16, 3, "winograd2_vnni2")),
        [
            (DEEP_BF16, (0, 1)),
            (ElementwiseParams(SCALE), (5, 2)),
            (PAIRS3, (6, 3)),
            (PoolParams("max", window(3, 2, pads=1)), (7,)),
            (PAIRS3, (8, 3)),
            (TRANSFORMED, (9, 4)),
        ], 10,
    ),
    "maxima of maxima in bf16": region(
        (IMAGE, W_STEM, Bias(16), P3),
        [
            (FIRST_LAYER, (0, 1, 2)),
            (PoolParams("max", window(3, 2, pads=1)), (4,)),
            (PoolParams("max", window(3, pads=1)), (5,)),
            (PAIRS3, (6, 3)),
        ], 7,
    ),
    "maxima of maxima in bf16, whose first is wanted in float32": region(
        (IMAGE, W_STEM, Bias(16), P3),
        [
            (FIRST_LAYER, (0, 1, 2)),
            (PoolParams("max", window(3, 2, pads=1)), (4,)),
            (PoolParams("max", window(3, pads=1)), (5,)),
            (PAIRS3, (6, 3)),
        ], 4, 7,
    ),
    "a value in bf16 that leaves too, and one that is part of another": region(
        (X16, P3, filters(16, 32, 3, "vnni2")),
        [
            (PAIRS3, (0, 1)),
            (PAIRS_SILU, (3, 1)),
            (LayoutParams("concat", (1,), 2), (3, 4)),
            (laid_out(32, 16, window(3, pads=1), 1, "vnni2", False, None, True), (5, 2)),
        ], 3, 6,
    ),
    "a decoder with its skip": region(
        (X16, P3, filters(64, 16, 1, "vnni2"), filters(16, 32, 3, "vnni2")),
        [
            (PAIRS3, (0, 1)),
            (PoolParams("max", window(2, 2)), (4,)),
            (laid_out(16, 64, window(1), 1, "vnni2", False, None, True), (5, 2)),
            (LayoutParams("spread", (2, 2)), (6,)),
            (LayoutParams("pad", (), 2, TO_SIZE), (7, 4)),
            (LayoutParams("concat", (1,), 2), (4, 8)),
            (laid_out(32, 16, window(3, pads=1), 1, "vnni2", False, None, True), (9, 3)),
        ], 10,
    ),
    "a decoder with its skip, which leaves too": region(
        (X16, P3, filters(64, 16, 1, "vnni2"), filters(16, 32, 3, "vnni2")),
        [
            (PAIRS3, (0, 1)),
            (PoolParams("max", window(2, 2)), (4,)),
            (laid_out(16, 64, window(1), 1, "vnni2", False, None, True), (5, 2)),
            (LayoutParams("spread", (2, 2)), (6,)),
            (LayoutParams("pad", (), 2, TO_SIZE), (7, 4)),
            (LayoutParams("concat", (1,), 2), (4, 8)),
            (laid_out(32, 16, window(3, pads=1), 1, "vnni2", False, None, True), (9, 3)),
        ], 4, 10,
    ),
    "a decoder with its skip, both halves of which leave": region(
        (X16, P3, filters(64, 16, 1, "vnni2"), filters(16, 32, 3, "vnni2")),
        [
            (PAIRS3, (0, 1)),
            (PoolParams("max", window(2, 2)), (4,)),
            (laid_out(16, 64, window(1), 1, "vnni2", False, None, True), (5, 2)),
            (LayoutParams("spread", (2, 2)), (6,)),
            (LayoutParams("pad", (), 2, TO_SIZE), (7, 4)),
            (LayoutParams("concat", (1,), 2), (4, 8)),
            (laid_out(32, 16, window(3, pads=1), 1, "vnni2", False, None, True), (9, 3)),
        ], 8, 10,
    ),
    "a bottleneck in broad blocks": region(
        (X16, F64, B1, B3, B_ADD),
        [
            (FIRST64, (0, 1)),
            (BROAD1, (5, 2)),
            (BROAD3, (6, 3)),
            (BROAD_ADD, (7, 4, 5)),
            (BROAD1, (8, 2)),
        ], 9,
    ),
    "broad blocks that a chain writes, and that a depthwise one reads, too": region(
        (X16, F64, B1, B3, Filters((32, 1, 3, 3), "depthwise"), B_ADD),
        [
            (FIRST64, (0, 1)),
            (BROAD1, (6, 2)),
            (BROAD_SILU, (7, 3)),
            (BROAD_SILU, (8, 3)),
            (laid_out(32, 32, window(3, pads=1), 32, "depthwise", False, None, True), (9, 4)),
            (BROAD_SILU, (9, 3)),
            (BROAD_ADD, (11, 5, 6)),
        ], 10, 12,
    ),
    "a decoder in broad blocks": region(
        (X16, FIRST32, filters(128, 32, 1, "nchw32c"), filters(16, 64, 3, "nchw32c")),
        [
            (laid_out(16, 32, window(3, pads=1), 1, "vnni2", False, RELU, True), (0, 1)),
            (PoolParams("max", window(2, 2)), (4,)),
            (laid_out(32, 128, window(1), 1, "nchw32c", False, None, True), (5, 2)),
            (LayoutParams("spread", (2, 2)), (6,)),
            (LayoutParams("pad", (), 2, TO_SIZE), (7, 4)),
            (LayoutParams("concat", (1,), 2), (4, 8)),
            (laid_out(64, 16, window(3, pads=1), 1, "nchw32c", False, None, True), (9, 3)),
        ], 10,
    ),
    "a concatenation in broad blocks, of one in float32 and one that is not broad": region(
        (X16, FIRST32, filters(32, 32, 3, "vnni2"), filters(16, 64, 1, "nchw32c")),
        [
            (laid_out(16, 32, window(3, pads=1), 1, "vnni2", False, RELU, True), (0, 1)),
            (laid_out(32, 32, window(3, pads=1), 1, "vnni2", False, RELU, True), (4, 2)),
            (LayoutParams("concat", (1,), 2), (5, 4)),
            (laid_out(64, 16, window(1), 1, "nchw32c", False, None, True), (6, 3)),
        ], 5, 7,
    ),
    "broad slices and repeats": region(
        (X16, F64, B3, filters(16, 96, 1, "nchw32c")),
        [
            (FIRST64, (0, 1)),
            (LayoutParams("channels", (32, 64)), (4,)),
            (BROAD3, (5, 2)),
            (LayoutParams("concat", (1,), 2), (4, 6)),
            (LayoutParams("repeat", (2, 2)), (7,)),
            (laid_out(96, 16, window(1), 1, "nchw32c", False, None, True), (8, 3)),
        ], 9,
    ),
    "slices and repeats in bf16": region(
        (X16, filters(32, 16, 3, "vnni2"), P3, filters(16, 48, 1, "vnni2")),
        [
            (laid_out(16, 32, window(3, pads=1), 1, "vnni2", False, RELU, True), (0, 1)),
            (LayoutParams("channels", (16, 32)), (4,)),
            (PAIRS3, (5, 2)),
            (LayoutParams("concat", (1,), 2), (4, 6)),
            (LayoutParams("repeat", (2, 2)), (7,)),
            (laid_out(48, 16, window(1), 1, "vnni2", False, None, True), (8, 3)),
        ], 9,
    ),
}  # fmt: skip
"""Regions that store values in bf16; a number that rounds either way may differ by that."""

CASES = {**ALONE, **REGIONS, **BF16}
