"""Convolutions and maxima of 8-bit integers, channels last, and what NumPy makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.runtime.int8_cases import REQUANTIZE
from tests.runtime.int8_cases import drawn as _drawn
from tests.runtime.support import Case, normal, operator_case, spec
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.panels import INT8, INT8_ZEROS, pack_int8
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.pool import PoolParams

__all__ = ["RESIDUAL", "ROUNDED_TWICE", "conv_integer_cases", "window"]

Array = npt.NDArray[Any]
_NUMPY = {DType.U8: np.uint8, DType.I8: np.int8}
RESIDUAL = Chain(
    ("full", "row", "row", "full"),
    (
        Step("mul", (0, 1)), Step("add", (4, 2)), Step("sub", (3, 9.0)), Step("mul", (6, 0.5)),
        Step("add", (5, 7)), Step("relu", (8,)), Step("div", (9, 0.3)), Step("round", (10,)),
        Step("add", (11, 9.0)), Step("saturate", (12, 0.0, 255.0)),
    ),
    (13,), (DType.F32, DType.F32, DType.F32, DType.U8), (DType.U8,),
)  # fmt: skip

ROUNDED_TWICE = Chain(
    ("full", "row", "row", "full"),
    (
        Step("mul", (0, 1)), Step("add", (4, 2)), Step("round", (5,)),
        Step("saturate", (6, -133.0, 122.0)), Step("mul", (7, 0.0674)), Step("sub", (3, 130.0)),
        Step("mul", (9, 0.0807)), Step("add", (10, 8)), Step("div", (11, 0.0525)),
        Step("round", (12,)), Step("add", (13, 17.0)), Step("saturate", (14, 0.0, 255.0)),
    ),
    (15,), (DType.F32, DType.F32, DType.F32, DType.U8), (DType.U8,),
)  # fmt: skip
"""As quantized nets store a residual sum of two quantized values."""

TO_BYTES = Chain(
    REQUANTIZE.operands, (*REQUANTIZE.steps[:-1], Step("saturate", (6, 0.0, 255.0))), (7,), (),
    (DType.U8,),
)  # fmt: skip


def window(
    *kernel: int, strides: int = 1, dilations: int = 1, pads: tuple[int, ...] = ()
) -> ConvWindow:
    """A window, by default padded so that a stride of 1 keeps the sizes."""
    rank = len(kernel)
    spans = [dilations * (k - 1) for k in kernel]
    pads = pads or (*(s // 2 for s in spans), *(s - s // 2 for s in spans))
    return ConvWindow(kernel, (strides,) * rank, (dilations,) * rank, pads)


def _bounds(dtype: DType, *shape: int) -> Array:
    limits = np.iinfo(_NUMPY[dtype])
    return np.where(_drawn(dtype, *shape) > limits.max // 3, limits.max, limits.min).astype(
        _NUMPY[dtype]
    )


def conv_case(
    name: str, sizes: tuple[int, ...], filters: int, over: ConvWindow, groups: int = 1,
    dtype: DType = DType.U8, zero: int | None = 5, own: bool = False, chain: Chain | None = None,
    bounds: bool = False,
) -> Case:  # fmt: skip
    """The program the passes write for one convolution of images of ``sizes`` (channels last).

    ``bounds``: all bytes are the least or the most of their type.
    """
    drawn = _bounds if bounds else _drawn
    layout = INT8_ZEROS if own else INT8
    channels = sizes[-1]
    if own and groups == channels:  # such filters are joined before they are packed
        groups = 1
    integers = IntegerOperand(dtype, zero)
    params = ConvIntegerParams(channels, filters, over, integers, groups, layout, chain)
    weight = pack_int8(
        drawn(DType.I8, params.k, filters), drawn(DType.I8, filters) if own else None
    )
    given = [np.array(77, _NUMPY[dtype])] if zero is None else []
    x = drawn(dtype, *sizes)
    symbols = ("n", "h", "w") if len(sizes) == 4 else ("n", "w")
    specs = [
        spec(*symbols, channels, dtype=dtype), spec(*weight.shape, dtype=DType.I8),
        *([spec(dtype=dtype)] if given else []),
    ]  # fmt: skip
    feeds, more = [x, weight, *given], list[Array]()
    if chain:
        (made,) = replace(params, epilogue=None).infer([spec(*sizes, dtype=dtype)])
        more = [np.float32(2e-4) * abs(normal(filters, seed=3)), normal(filters, seed=4)]
        specs += [spec(filters), spec(filters)]
        if len(chain.operands) > 3:
            shape = tuple(int(str(d)) for d in made.shape or ())
            more.append(drawn(DType.U8, *shape))
            specs.append(spec(*(f"r{i}" for i in range(len(shape) - 1)), filters, dtype=DType.U8))
    case = operator_case(name, "FusedConvInteger", params, specs, (*feeds, *more), (*feeds, *more))
    if chain:
        (acc,) = replace(params, epilogue=None).reference(feeds)
        (y,) = chain.reference([acc.astype(np.float32), *more])
        case = replace(case, expected=(y.astype(np.float64),))
    return case


def pool_case(name: str, sizes: tuple[int, ...], over: ConvWindow, dtype: DType) -> Case:
    params = PoolParams("max", over, channels_last=True)
    symbols = ("n", "h", "w") if len(sizes) == 4 else ("n", "w")
    x = _drawn(dtype, *sizes)
    given = spec(*symbols, sizes[-1], dtype=dtype)
    return operator_case(name, "FusedPool", params, [given], (x,), [x])


def _transformed_cases() -> tuple[Case, ...]:
    """Convolutions that AVX-512 levels compute through transforms, and such with extreme sums."""
    return (
        conv_case("conv_transformed", (2, 23, 22, 64), 64, window(3, 3), chain=TO_BYTES),
        conv_case("conv_transformed_i8", (1, 25, 22, 128), 192, window(3, 3), dtype=DType.I8,
                  zero=-3, chain=TO_BYTES),
        conv_case("conv_transformed_uneven", (1, 33, 18, 192), 128,
                  window(3, 3, pads=(0, 2, 3, 1)), zero=None, chain=TO_BYTES),
        conv_case("conv_transformed_residual", (2, 23, 22, 64), 128, window(3, 3),
                  chain=RESIDUAL),
        conv_case("conv_transformed_twice", (1, 31, 30, 64), 64, window(3, 3),
                  chain=ROUNDED_TWICE),
        conv_case("conv_transformed_to_i8", (1, 31, 30, 64), 64, window(3, 3), chain=REQUANTIZE),
        conv_case("conv_transformed_deep", (1, 14, 14, 256), 96, window(3, 3), chain=TO_BYTES),
        conv_case("conv_transformed_deep_residual", (1, 14, 14, 256), 64, window(3, 3),
                  dtype=DType.I8, zero=-3, chain=RESIDUAL),
        conv_case("conv_transformed_bounds", (1, 32, 31, 128), 64, window(3, 3), chain=TO_BYTES,
                  bounds=True),
    )  # fmt: skip


def _window_cases() -> tuple[Case, ...]:
    """Convolutions whose windows AVX-512 levels multiply where they lie, or in padded lines."""
    return (
        conv_case("conv_windows_stem", (2, 40, 37, 3), 32, window(3, 3, strides=2),
                  chain=TO_BYTES),
        conv_case("conv_windows_i8", (2, 19, 17, 6), 100, window(5, 5), dtype=DType.I8, zero=-3,
                  chain=REQUANTIZE),
        conv_case("conv_windows_apart", (1, 23, 19, 20), 40,
                  window(3, 1, strides=2, dilations=2, pads=(1, 0, 4, 3)), chain=TO_BYTES),
        conv_case("conv_windows_pixels", (2, 14, 15, 64), 70, window(1, 1, strides=2),
                  chain=RESIDUAL),
        conv_case("conv_pixels_narrow", (2, 9, 7, 20), 16, window(1, 1), chain=TO_BYTES),
        conv_case("conv_pixels_narrower", (2, 9, 7, 20), 13, window(1, 1), chain=RESIDUAL),
        conv_case("conv_windows_inside", (2, 14, 15, 32), 32,
                  window(3, 3, pads=(0, 0, 0, 0)), zero=None, chain=TO_BYTES),
        conv_case("conv_windows_outside", (1, 4, 3, 8), 16,
                  window(2, 2, pads=(3, 5, 4, 6)), chain=TO_BYTES),
    )  # fmt: skip


def conv_integer_cases() -> tuple[Case, ...]:
    image = (2, 9, 7, 20)
    return (
        conv_case("conv_3x3", image, 40, window(3, 3)),
        conv_case("conv_pointwise", image, 40, window(1, 1)),
        conv_case("conv_pointwise_odd", (2, 9, 7, 19), 40, window(1, 1), dtype=DType.I8),
        conv_case("conv_strided_pointwise", image, 40, window(1, 1, strides=2)),
        conv_case("conv_strided", image, 17, window(3, 3, strides=2), dtype=DType.I8, zero=-3),
        conv_case("conv_dilated", image, 33, window(3, 2, dilations=3)),
        conv_case("conv_uneven", image, 16, window(2, 3, pads=(0, 2, 3, 0))),
        conv_case("conv_stem", (1, 33, 31, 3), 64, window(7, 7, strides=2)),
        conv_case("conv_deep", (1, 5, 5, 260), 97, window(3, 3)),
        conv_case("conv_large", (1, 40, 36, 16), 24, window(5, 5)),
        conv_case("conv_line", (3, 41, 12), 20, window(3)),
        conv_case("conv_groups", (1, 9, 7, 24), 48, window(3, 3), groups=3),
        conv_case("conv_groups_zeros", (1, 9, 7, 21), 48, window(3, 3), groups=3, own=True),
        conv_case("conv_zeros", image, 40, window(3, 3), dtype=DType.I8, own=True),
        conv_case("conv_given", image, 40, window(3, 3), zero=None),
        conv_case("conv_given_i8", image, 40, window(3, 3), dtype=DType.I8, zero=None, own=True),
        conv_case("conv_one", (1, 1, 1, 1), 1, window(3, 3)),
        conv_case("conv_requantized", image, 40, window(3, 3), chain=REQUANTIZE),
        *_transformed_cases(),
        *_window_cases(),
        conv_case("conv_residual", image, 40, window(3, 3, strides=2), chain=RESIDUAL),
        conv_case("conv_residual_groups", (1, 9, 7, 24), 48, window(3, 3), 3, chain=RESIDUAL),
        conv_case("conv_residual_pointwise", image, 100, window(1, 1), chain=RESIDUAL),
        conv_case("conv_rounded_twice", image, 40, window(3, 3), chain=ROUNDED_TWICE),
        conv_case("conv_rounded_twice_groups", (1, 9, 7, 24), 48, window(3, 3), 3,
                  chain=ROUNDED_TWICE),
        conv_case("conv_rounded_twice_pointwise", (1, 9, 7, 20), 100, window(1, 1),
                  chain=ROUNDED_TWICE),
        conv_case("depthwise_3x3", (2, 9, 7, 48), 48, window(3, 3), 48),
        conv_case(
            "depthwise_strided", (1, 9, 12, 19), 19, window(3, 3, strides=2), 19, DType.I8, -3
        ),
        conv_case("depthwise_5x5", (1, 9, 7, 100), 100, window(5, 5), 100, zero=None),
        conv_case("depthwise_2x2", (1, 4, 5, 7), 7, window(2, 2, dilations=2), 7, DType.I8),
        conv_case("depthwise_wide", (1, 3, 75, 16), 16, window(3, 3), 16),
        conv_case(
            "depthwise_wide_strided", (2, 7, 71, 8), 8,
            window(3, 3, strides=2, dilations=2, pads=(0, 1, 2, 5)), 8,
        ),
        conv_case("depthwise_bare", (1, 5, 40, 8), 8, window(3, 3, pads=(0, 0, 0, 0)), 8),
        conv_case("depthwise_line", (2, 31, 24), 24, window(9), 24),
        conv_case("depthwise_zeros", (1, 5, 5, 20), 20, window(3, 3), 20, own=True),
        conv_case("depthwise_chain", (1, 9, 7, 80), 80, window(3, 3), 80, chain=RESIDUAL),
        conv_case("depthwise_rounded_twice", (1, 9, 7, 80), 80, window(3, 3), 80,
                  chain=ROUNDED_TWICE),
        conv_case("depthwise_bytes", (2, 9, 37, 208), 208, window(3, 3), 208, chain=TO_BYTES),
        conv_case("depthwise_bytes_strided", (1, 9, 37, 64), 64, window(3, 3, strides=2), 64,
                  DType.I8, -3, chain=TO_BYTES),
        conv_case("depthwise_bytes_dilated", (1, 11, 40, 80), 80, window(3, 3, dilations=2), 80,
                  chain=TO_BYTES),
        conv_case("depthwise_bytes_apart", (1, 11, 41, 64), 64, window(3, 3, strides=3), 64,
                  chain=TO_BYTES),
        conv_case("conv_to_bytes", image, 100, window(3, 3), chain=TO_BYTES),
        pool_case("pool_u8", image, window(3, 3, strides=2), DType.U8),
        pool_case("pool_i8", (1, 5, 6, 19), window(2, 2, strides=2, pads=(0,) * 4), DType.I8),
        pool_case("pool_line", (2, 13, 70), window(3, dilations=2), DType.I8),
    )  # fmt: skip
