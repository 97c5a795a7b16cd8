"""Attention with active tiles on GPUs: programs in the host dialect, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.machine import Array
from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.program_writer import LackingError
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.attention_tiles import TileGrid

pytestmark = pytest.mark.compiler
GRID = TileGrid(16, 8, 2, 3)
PLAIN = AttentionParams(2, 16, 24, 0.2, layouts=("heads",) * 4, tiles=GRID)
ACTIVE = np.array([0, 1, 5], np.int32)
CASES = {
    "plain": (PLAIN, DType.F16),
    "added mask": (replace(PLAIN, mask="add", causal="top"), DType.F32),
    "boolean mask": (replace(PLAIN, mask="bool", zero_rows="masked"), DType.F32),
    "summary of a mask": (
        replace(PLAIN, mask="add", tiles=replace(GRID, beyond=-1e9)), DType.F32,
    ),
}  # fmt: skip


def arrays_of(params: AttentionParams, queries: int, keys: int) -> list[Array]:
    rng = np.random.default_rng(0)
    sizes = ((queries, params.head), (keys, params.head), (keys, params.head_v))
    arrays: list[Array] = [
        rng.standard_normal((2, params.heads, *size)).astype(np.float32) for size in sizes
    ]
    assert params.tiles is not None
    if params.mask == "bool":
        arrays.append(rng.random((keys,)) < 0.7)
    elif params.tiles.masks and params.mask == "add":
        arrays.append(rng.standard_normal((2, 1, 1, keys)).astype(np.float32))
    elif params.mask == "add":
        kept = params.tiles.kept(ACTIVE, queries, keys)
        arrays.append(np.where(kept, 0, -1e9).astype(np.float32))
    return [*arrays, ACTIVE]


@pytest.mark.parametrize("name", CASES)
def test_tiles_are_a_mask(name: str) -> None:
    params, narrow = CASES[name]
    arrays = arrays_of(params, 31, 22)
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    with np.errstate(invalid="ignore"):
        (want,) = params.reference(wide)
    got = run_program(params, arrays, narrow)[0]
    most = max(3 * TOLERANCE[narrow], 3e-6) * np.nanmax(np.abs(want))
    np.testing.assert_allclose(got, want, rtol=0, atol=most)


def test_a_finite_score_in_place_of_masked_ones_is_refused() -> None:
    params = replace(PLAIN, mask="bool", fill=-1e4)
    specs = [TensorSpec(DType.F32, (2, 2, 31, 16)), TensorSpec(DType.F32, (2, 2, 22, 16)),
             TensorSpec(DType.F32, (2, 2, 22, 24)), TensorSpec(DType.BOOL, (31, 22)),
             TensorSpec(DType.I32, (3,))]  # fmt: skip
    with pytest.raises(LackingError, match="only if the mask drops keys by −∞"):
        program_of(params, specs, DType.F32, {})
