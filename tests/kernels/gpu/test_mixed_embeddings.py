"""Embeddings of mixed types on GPUs: programs in the host dialect, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.program_writer import LackingError
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.norm import Norm

pytestmark = pytest.mark.compiler


def test_tables_of_a_type_share_a_call_and_sums_are_added() -> None:
    rng = np.random.default_rng(0)
    params = EmbeddingParams(4, Norm("rms", 1e-5, gamma=True, beta=False), keep_sum=True)
    kinds = ((np.float32, np.int64), (np.float16, np.int64), (np.float32, np.int32),
             (np.float32, np.int64))  # fmt: skip
    arrays = list[np.ndarray]()
    for table, index in kinds:
        arrays.append(rng.standard_normal((9, 20)).astype(table))
        arrays.append(rng.integers(-9, 9, (2, 5)).astype(index))
    arrays.append(rng.standard_normal(20).astype(np.float32))
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    for got, want in zip(run_program(params, arrays), params.reference(wide), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())
    specs = [TensorSpec(DType.F32, (9, 20)), TensorSpec(DType.I64, (2, 5))] * 2
    calls = program_of(EmbeddingParams(2), specs, DType.F32).calls
    assert [c.op for c in calls] == ["embedding"]


def test_indices_in_bytes_are_refused() -> None:
    specs = [TensorSpec(DType.F32, (9, 20)), TensorSpec(DType.U8, (2, 5))]
    with pytest.raises(LackingError, match="int32 or int64"):
        program_of(EmbeddingParams(1), specs, DType.F32)
