"""Programs of block-quantized matrices and of rounded rows on GPUs, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.machine import Array
from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops import OpParams
from tracea_graph.ops.block_quantized import BlockQuantized
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.quantize_rows import QuantizeRowsParams
from tracea_graph.ops.quantized_embedding import QuantizedEmbeddingParams

pytestmark = pytest.mark.compiler
RNG = np.random.default_rng(0)
RELU = Chain(("full",), (Step("relu", (0,)),), (1,))


def stored(layout: BlockQuantized, k: int, n: int) -> list[Array]:
    """Codes and scales of a matrix ``[K, N]``."""
    blocks = layout.blocks(k)
    codes = layout.packed(RNG.integers(0, 2**layout.bits, (n, blocks * layout.block)))
    scales = RNG.uniform(0.5, 2, layout.scales_shape(k, n)).astype(np.float32) / 2**layout.bits
    scales[1:] = RNG.integers(0, 2**layout.bits, scales[1:].shape)
    return [codes, scales]


def compare(params: OpParams, arrays: list[Array], narrow: DType = DType.F32) -> None:
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    for got, want in zip(run_program(params, arrays, narrow), params.reference(wide), strict=True):
        most = max(TOLERANCE[narrow], 3e-6) * np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=most)


@pytest.mark.parametrize("narrow", [DType.F32, DType.F16])
@pytest.mark.parametrize(
    ("layout", "k", "rows"),
    [
        (BlockQuantized(4, 32, "integer"), 128, 3),
        (BlockQuantized(4, 16), 40, 3),  # half a window is filled
        pytest.param(BlockQuantized(8, 64, "integer"), 192, 30, marks=pytest.mark.slow),
        pytest.param(BlockQuantized(2, 32, "integer"), 64, 3, marks=pytest.mark.slow),
        (BlockQuantized(4, 32, "middle", int8_rows=True), 72, 3),
    ],
)
def test_products(layout: BlockQuantized, k: int, rows: int, narrow: DType) -> None:
    x = RNG.standard_normal((1, rows, k)).astype(np.float32)
    bias = RNG.standard_normal(21).astype(np.float32)
    params = GemmParams(k, 21, layout, bias=True, epilogue=RELU)
    compare(params, [x, *stored(layout, k, 21), bias], narrow)


def test_codes_are_reordered_by_calls_of_constants_alone() -> None:
    layout = BlockQuantized(4, 32)
    specs = [
        TensorSpec(DType.F32, (1, 64)), TensorSpec(DType.U8, layout.shape(64, 16)),
        TensorSpec(DType.F32, layout.scales_shape(64, 16)),
    ]  # fmt: skip
    calls = program_of(GemmParams(64, 16, layout), specs, DType.F32).calls
    assert [c.op for c in calls] == ["copy", "gemm_nbits"]


@pytest.mark.parametrize("scaled", [False, True])
def test_rows_are_rounded(scaled: bool) -> None:
    x = RNG.standard_normal((2, 5, 33)).astype(np.float32)
    x[0, 1], x[0, 2, 3], x[1, 0, 0] = 0, np.nan, np.inf
    arrays = [x, RNG.uniform(0.5, 2, 33).astype(np.float32)] if scaled else [x]
    params = QuantizeRowsParams(scaled)
    got, want = run_program(params, arrays), params.reference(arrays)
    assert np.array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-6)


@pytest.mark.parametrize(
    "layout",
    [BlockQuantized(4, 32, "integer"), BlockQuantized(8, 16), BlockQuantized(2, 16, "float")],
)
@pytest.mark.parametrize("narrow", [DType.F32, DType.F16])
def test_rows_of_quantized_tables(layout: BlockQuantized, narrow: DType) -> None:
    ids = np.array([[3, 0, 17], [19, -1, 4]], np.int64)
    compare(QuantizedEmbeddingParams(40, 20, layout), [*stored(layout, 40, 20), ids], narrow)
