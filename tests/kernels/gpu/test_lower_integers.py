"""8-bit integers on GPUs: programs in the host dialect, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.program_writer import LackingError
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.weight_layouts import KN, NK, WeightLayout

pytestmark = pytest.mark.compiler
NUMBERS = {"uint8": DType.U8, "int8": DType.I8, "float32": DType.F32}


def test_signals_are_images_of_one_row() -> None:
    rng = np.random.default_rng(0)
    params = ConvIntegerParams(
        16, 24, ConvWindow((3,), (2,), (1,), (1, 1)), IntegerOperand(DType.I8, -128), layout=NK
    )
    x = rng.integers(-128, 128, (2, 21, 16)).astype(np.int8)
    w = rng.integers(-128, 128, (24, 48)).astype(np.int8)
    (got,), (want,) = run_program(params, [x, w]), params.reference([x, w])
    assert got.shape == (2, 11, 24) and np.array_equal(got, want)


@pytest.mark.parametrize("image", [(1, 6, 7), (1, 1, 1), (1, 5, 1), (3, 1, 4)])
@pytest.mark.parametrize("groups", [1, 8])
def test_single_images_rows_and_columns(image: tuple[int, int, int], groups: int) -> None:
    """An axis of size 1 has no stride of its own."""
    rng = np.random.default_rng(0)
    window = ConvWindow((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    params = ConvIntegerParams(8, 8, window, IntegerOperand(DType.I8, 3), groups, layout=NK)
    x = rng.integers(-128, 128, (*image, 8)).astype(np.int8)
    w = rng.integers(-128, 128, (8, params.k)).astype(np.int8)
    (got,), (want,) = run_program(params, [x, w]), params.reference([x, w])
    assert got.shape == (*image, 8) and np.array_equal(got, want)


ADDED = Chain(("full", "full"), (Step("add", (0, 1)),), (2,))


@pytest.mark.parametrize(("groups", "layout", "zero"), [(1, NK, -7), (2, KN, None)])
def test_volumes_are_images_of_more_channels(
    groups: int, layout: WeightLayout, zero: int | None
) -> None:
    """Frames beyond the volume have the zero point of x, known or an operand."""
    rng = np.random.default_rng(0)
    window = ConvWindow((3, 2, 3), (2, 1, 1), (1, 1, 1), (2, 0, 1, 1, 1, 1))
    params = ConvIntegerParams(
        8, 16, window, IntegerOperand(DType.I8, zero), groups, layout, epilogue=ADDED
    )
    x = rng.integers(-128, 128, (2, 5, 4, 6, 8)).astype(np.int8)
    w = rng.integers(-128, 128, (16, params.k)).astype(np.int8)
    zeros = [np.array([-3], np.int8)] if zero is None else []
    added = rng.integers(-9, 9, (2, 1, 1, 1, 16)).astype(np.float32)
    arrays = [x, w.T.copy() if layout == KN else w, *zeros, added]
    (got,), (want,) = run_program(params, arrays), params.reference(arrays)
    assert got.shape == (2, 3, 4, 6, 16) and np.array_equal(got, want)


TO_BYTES = Chain(
    ("full", "row"),
    (Step("mul", (0, 0.0078125)), Step("add", (2, 1)), Step("round", (3,)),
     Step("add", (4, 3.0)), Step("saturate", (5, 0.0, 255.0))),
    (6,), stores=(DType.U8,),
)  # fmt: skip


def in_bytes(filters: int, channels: int, zero: int, depthwise: bool = False) -> ConvIntegerParams:
    """A convolution of pixels, or 3 × 3 of each channel, whose results are bytes."""
    groups, taps = (channels, (3, 3)) if depthwise else (1, (1, 1))
    pads = (1, 1, 1, 1) if depthwise else (0, 0, 0, 0)
    window, own = ConvWindow(taps, (1, 1), (1, 1), pads), IntegerOperand(DType.U8, zero)
    return ConvIntegerParams(channels, filters, window, own, groups, NK, TO_BYTES)


@pytest.mark.parametrize("narrow", [DType.F32, DType.F16])
def test_few_channels_are_convolved_in_fp16(narrow: DType) -> None:
    """Exactly: a convolution of 3 channels, one of 24, and one of each channel behind it."""
    steps = (RegionStep(in_bytes(24, 3, 7), (0, 1, 2)), RegionStep(in_bytes(32, 24, 3), (7, 3, 4)),
             RegionStep(in_bytes(32, 32, 3, True), (8, 5, 6)))  # fmt: skip
    params = RegionParams(7, steps, (9,))
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (2, 6, 5, 3)).astype(np.uint8)
    arrays: list[np.ndarray] = [x]
    for n, k in ((24, 3), (32, 24), (32, 9)):
        arrays += [rng.integers(-127, 128, (n, k)).astype(np.int8),
                   rng.integers(-20, 20, n).astype(np.float32)]  # fmt: skip
    specs = [TensorSpec(NUMBERS[a.dtype.name], a.shape) for a in arrays]
    made = program_of(params, specs, narrow).calls
    assert not any(c.op.startswith("integer") for c in made)
    read_bytes = [c for c in made if c.op == "elementwise" and c.chain
                  and c.chain.operand_types == (DType.U8,)]  # fmt: skip
    assert len(read_bytes) == 1  # the image; others are stored minus their zero points
    (got,), (want,) = run_program(params, arrays, narrow), params.reference(arrays)
    assert got.dtype == np.uint8 and len(np.unique(got)) > 30
    assert np.array_equal(got, want)


def test_many_pixels_of_few_channels_are_stored_as_bytes() -> None:
    specs = [TensorSpec(DType.U8, (1, 256, 256, 24)), TensorSpec(DType.I8, (32, 24)),
             TensorSpec(DType.F32, (32,))]  # fmt: skip
    (product,) = (
        c for c in program_of(in_bytes(32, 24, 3), specs, DType.F16).calls if c.op == "gemm"
    )
    assert product.chain is not None and product.chain.result_types == (DType.U8,)


def test_volumes_of_separate_channels_are_refused() -> None:
    window = ConvWindow((3, 3, 3), (1, 1, 1), (1, 1, 1), (1,) * 6)
    params = ConvIntegerParams(8, 8, window, IntegerOperand(DType.I8), 8)
    specs = [TensorSpec(DType.I8, (1, 5, 5, 5, 8)), TensorSpec(DType.I8, (8, 27))]
    with pytest.raises(LackingError, match="each channel of integers"):
        program_of(params, specs, DType.F32)


def test_products_of_computed_integers_are_refused() -> None:
    both = IntegerOperand(DType.U8, 3), IntegerOperand(DType.U8, 4)
    specs = [TensorSpec(DType.U8, (5, 7)), TensorSpec(DType.U8, (7, 6))]
    with pytest.raises(LackingError, match="multiply integers by constant matrices only"):
        program_of(MatMulParams(integers=both), specs, DType.F32)
