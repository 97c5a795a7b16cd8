"""Weights in fp16 as they are stored, and the table of kernels that only Arm has."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import normal
from tracea_graph.kernels.cpu.exported_functions import ARM_KERNELS, KERNELS
from tracea_graph.kernels.cpu.fp16_layouts import (
    FP16_FILTERS,
    FP16_PANELS,
    pack_fp16,
    round_fp16,
)
from tracea_graph.kernels.cpu.library_table import table_source
from tracea_graph.kernels.program import LibraryContents


@pytest.mark.parametrize(("k", "n"), [(1, 1), (7, 20), (8, 16), (33, 49)])
def test_panels_hold_the_rounded_matrix(k: int, n: int) -> None:
    matrix = normal(k, n, seed=1)
    stored = pack_fp16(matrix)
    assert stored.dtype == np.float16 and stored.shape == FP16_PANELS.shape(k, n)
    np.testing.assert_array_equal(FP16_PANELS.matrix((stored,), k, n), round_fp16(matrix))
    panel = stored.reshape(len(stored), -1, 16)
    np.testing.assert_array_equal(panel[0, :k, 0].astype(np.float32), round_fp16(matrix)[:, 0])


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (33, 24, 3, 3), (16, 40, 1, 5)])
def test_filters_hold_the_rounded_ones(shape: tuple[int, ...]) -> None:
    plain = normal(*shape, seed=2)
    (stored,) = FP16_FILTERS.pack(plain)
    assert stored.dtype == np.float16 and stored.shape == FP16_FILTERS.shape(shape)
    np.testing.assert_array_equal(FP16_FILTERS.filters((stored,), shape), round_fp16(plain))


def test_only_tables_with_kernels_of_arm_have_their_functions() -> None:
    levels = ("scalar", "neon", "neonfp16")
    plain = table_source("tracea.0000000000", LibraryContents(kernels=KERNELS), levels)
    assert "f16_gemm_f16" not in plain.replace("bf16", "")
    made = table_source(
        "tracea.0000000000", LibraryContents([], {"gemm", *ARM_KERNELS}, []), levels
    )
    for level, rows in (("scalar", 4), ("neon", 6), ("neonfp16", 6)):
        assert f"tracea_f16_gemm_f16_{rows}x16__{level}" in made
        assert f"chains_{level}, tracea_f16_gemm_f16_{rows}x16__{level}, " in made
