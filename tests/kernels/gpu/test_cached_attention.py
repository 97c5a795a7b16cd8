"""Steps of GroupQueryAttention that become one call, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.gpu.cache_cases import cached
from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.machine import Memory
from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.kernel_selection import variants_of
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.passes.attention.rotary_embedding import RotaryOperands

HEADS, KEPT, SIZE = 4, 2, 32
RNG = np.random.default_rng(0)
DOUBLED = ElementwiseParams(Chain(("full",), (Step("mul", (0, 2.0)),), (1,)))


def rotation(heads: int) -> ConcatParams:
    split = IndexMap((ViewMove("reshape", (0, 0, heads, SIZE)),))
    table = IndexMap((ViewMove("unsqueeze", (2,)),))
    return RotaryOperands("x", "cos", "sin", "", SIZE, SIZE, False, split, table,
                          heads * SIZE).params()  # fmt: skip


def steps(narrow: str) -> tuple[RegionStep, ...]:
    """Of q, k, v, cos, sin, both caches, positions and slots, numbered 0 to 8."""
    append = KvCacheAppendParams(KEPT, SIZE, 0, KEPT * SIZE)
    attend = AttentionParams(HEADS, SIZE, SIZE, SIZE**-0.5, offsets=(0, 0, 0),
                             widths=(HEADS * SIZE, 0, 0), kv_heads=KEPT, causal="placed",
                             layouts=("rows", "heads", "heads", "rows"),
                             zero_rows="lowest")  # fmt: skip
    made = (
        (rotation(HEADS), (0, 3, 4)), (rotation(KEPT), (1, 3, 4)), (append, (10, 5, 7, 8)),
        (append, (2, 6, 7, 8)), (attend, (9, 11, 12, 7)),
    )  # fmt: skip
    return tuple(RegionStep(params, reads, narrow=narrow) for params, reads in made)


def arrays(rows: int, past: int) -> list[np.ndarray]:
    angles = RNG.uniform(-3, 3, (2, rows, SIZE // 2))
    sizes = [(2, rows, n * SIZE) for n in (HEADS, KEPT, KEPT)]
    caches = [(2, KEPT, past, SIZE)] * 2
    return [
        *(RNG.standard_normal(s).astype(np.float32) for s in sizes),
        np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32),
        *(RNG.standard_normal(s).astype(np.float32) for s in caches),
        np.array([past, past - 3]), np.zeros(past + rows, np.bool_),
    ]  # fmt: skip


def ops(params: RegionParams, given: list[np.ndarray]) -> list[str]:
    types = {"float32": DType.F32, "int64": DType.I64, "bool": DType.BOOL}
    specs = [TensorSpec(types[str(a.dtype)], a.shape) for a in given]
    return [call.op for call in program_of(params, specs, DType.F32).calls]


@pytest.mark.parametrize(("late", "clusters"), [(0, [8, 1]), (1, [1])])
def test_blocks_share_keys_if_rows_are_runs(late: int, clusters: list[int]) -> None:
    made = cached(DType.F32, DType.F32, (4, 4), 1, 33, late=late)
    call, _ = made(Memory(), np.random.default_rng(0))
    assert [variant.params["cluster"] for variant, _ in variants_of(call)] == clusters


@pytest.mark.compiler
@pytest.mark.parametrize(("rows", "narrow"), [(1, ""), (3, "f16")])
def test_rotation_appending_and_attention_are_one_call(rows: int, narrow: str) -> None:
    params, given = RegionParams(9, steps(narrow), (11, 12, 13)), arrays(rows, 37)
    called = [op for op in ops(params, given) if op != "elementwise"]
    assert called == ["attention_cached"]
    want = params.reference([a.astype(np.float64) if a.dtype == np.float32 else a for a in given])
    for got, expected in zip(run_program(params, given), want, strict=True):
        most = max(TOLERANCE[DType.F16 if narrow else DType.F32], 1e-5) * np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=most)


def test_a_cache_with_another_reader_is_written_before_attention() -> None:
    more = RegionStep(DOUBLED, (11,))
    params = RegionParams(9, (*steps(""), more), (12, 13, 14))
    found = ops(params, arrays(1, 8))
    assert "attention_cached" not in found and found.count("kv_append") == 2


def test_a_rotation_with_another_reader_stays_a_call() -> None:
    more = RegionStep(DOUBLED, (9,))
    params = RegionParams(9, (*steps(""), more), (11, 12, 13, 14))
    found = ops(params, arrays(1, 8))
    assert found[-2:] == ["attention_cached", "elementwise"] and "kv_append" not in found


def test_attention_to_a_window_stays_apart() -> None:
    *first, last = steps("")
    windowed = replace(last, params=replace(last.params, window=4))
    params = RegionParams(9, (*first, windowed), (11, 12, 13))
    assert "attention_rows" in ops(params, arrays(1, 8))
    *first, last = steps("f16")
    windowed = replace(last, params=replace(last.params, window=4))
    assert "attention" in ops(RegionParams(9, (*first, windowed), (11, 12, 13)), arrays(1, 8))


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("narrow", "queries", "keys", "op"),
    [
        (DType.F16, 1, 300, "attention_cached"),
        (DType.F32, 4, 70, "attention_cached"),
        (DType.F16, 1, 100, "attention"),
        (DType.F32, 5, 70, "attention_rows"),
    ],
)
def test_few_queries_share_out_keys_that_are_not_cached(
    narrow: DType, queries: int, keys: int, op: str
) -> None:
    """Unless a kernel with tensor cores holds all keys."""
    params = AttentionParams(4, 32, 32, 0.2, layouts=("heads",) * 4, kv_heads=2)
    shapes = [(2, 4, queries, 32), (2, 2, keys, 32), (2, 2, keys, 32)]
    given = [RNG.standard_normal(s).astype(np.float32) for s in shapes]
    program = program_of(params, [TensorSpec(DType.F32, s) for s in shapes], narrow)
    assert op in {call.op for call in program.calls}
    (want,) = params.reference([a.astype(np.float64) for a in given])
    most = max(3 * TOLERANCE[narrow], 1e-5) * np.abs(want).max()
    np.testing.assert_allclose(run_program(params, given, narrow)[0], want, rtol=0, atol=most)
