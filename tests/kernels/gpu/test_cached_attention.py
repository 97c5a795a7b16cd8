"""Steps of GroupQueryAttention that become one call, against NumPy."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from tests.kernels.gpu.cache_cases import cached
from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.machine import Memory
from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.kernel_selection import launches_for, variants_of
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


def steps(narrow: str, stored: str = "f32") -> tuple[RegionStep, ...]:
    """Of q, k, v, cos, sin, both caches, positions and slots, numbered 0 to 8."""
    append = KvCacheAppendParams(KEPT, SIZE, 0, KEPT * SIZE, stored=stored)
    attend = AttentionParams(HEADS, SIZE, SIZE, SIZE**-0.5, offsets=(0, 0, 0),
                             widths=(HEADS * SIZE, 0, 0), kv_heads=KEPT, causal="placed",
                             layouts=("rows", "heads", "heads", "rows"),
                             zero_rows="lowest", stored=stored)  # fmt: skip
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
    types = {"float32": DType.F32, "float16": DType.F16, "int64": DType.I64, "bool": DType.BOOL}
    specs = [TensorSpec(types[str(a.dtype)], a.shape) for a in given]
    return [call.op for call in program_of(params, specs, DType.F32).calls]


@pytest.mark.parametrize(("late", "clusters"), [(0, [8, 1]), (1, [1])])
def test_blocks_share_keys_if_rows_are_runs(late: int, clusters: list[int]) -> None:
    made = cached(DType.F32, DType.F32, (4, 4), 1, 33, late=late)
    call, _ = made(Memory(), np.random.default_rng(0))
    assert [variant.params["cluster"] for variant, _ in variants_of(call)] == clusters


@pytest.mark.parametrize(
    ("batch", "stored", "tile"),
    [(2, DType.F16, "16x256x8"), (6, DType.F16, "16x128x8"), (7, DType.F16, "16x128x4"),
     (16, DType.F16, "16x128x2"), (2, DType.F32, "256x8")],
)  # fmt: skip
def test_tensor_cores_attend_to_caches_in_their_type(batch: int, stored: DType, tile: str) -> None:
    made = cached(DType.F16, stored, (8, 4), 1, 20, batch=batch)
    call, _ = made(Memory(8), np.random.default_rng(0))
    assert [variant.tile for variant, _ in variants_of(call)] == [tile, "256x1"]


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


@pytest.mark.compiler
def test_one_row_is_appended_to_caches_in_fp16() -> None:
    params, given = RegionParams(9, steps("f16", "f16"), (11, 12, 13)), arrays(1, 37)
    given[5:7] = [cache.astype(np.float16) for cache in given[5:7]]
    assert "attention_cached" in ops(params, given)
    wide = [a.astype(np.float64) if a.dtype in (np.float32, np.float16) else a for a in given]
    for got, expected in zip(run_program(params, given), params.reference(wide), strict=True):
        most = 2 * TOLERANCE[DType.F16] * np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=most)


@pytest.mark.compiler
def test_steps_apart_read_and_write_caches_in_fp16() -> None:
    more = RegionStep(DOUBLED, (9,))
    *first, last = steps("", "f16")
    params = RegionParams(9, (*first, replace(last, params=replace(last.params, zero_rows="none")),
                              more), (11, 12, 13, 14))  # fmt: skip
    given = arrays(3, 8)
    given[5:7] = [cache.astype(np.float16) for cache in given[5:7]]
    wide = [a.astype(np.float64) if a.dtype in (np.float32, np.float16) else a for a in given]
    for got, expected in zip(run_program(params, given), params.reference(wide), strict=True):
        most = 2 * TOLERANCE[DType.F16] * np.abs(expected).max()
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


def windowed(narrow: str, stored: str = "f32") -> RegionParams:
    *first, last = steps(narrow, stored)
    last = replace(last, params=replace(last.params, window=(3, 0)))
    return RegionParams(9, (*first, last), (11, 12, 13))


def test_attention_to_a_window_stays_apart_in_float32() -> None:
    assert "attention_rows" in ops(windowed(""), arrays(1, 8))


@pytest.mark.compiler
@pytest.mark.parametrize("stored", ["f32", "f16"])
@pytest.mark.parametrize(("rows", "near"), [(1, True), (20, True), (17, False), (150, False)])
def test_many_rows_and_windows_take_tensor_cores(rows: int, near: bool, stored: str) -> None:
    """One call appends and rotates; attention reads caches in its own type."""
    own = steps("f16", stored)
    params = windowed("f16", stored) if near else RegionParams(9, own, (11, 12, 13))
    given = arrays(rows, 37)
    if stored == "f16":
        given[5:7] = [cache.astype(np.float16) for cache in given[5:7]]
    called = [op for op in ops(params, given) if op != "elementwise"]
    assert called == ["kv_append_rotated", "attention"]
    wide = [a.astype(np.float64) if a.dtype in (np.float32, np.float16) else a for a in given]
    for got, expected in zip(run_program(params, given), params.reference(wide), strict=True):
        most = 3 * TOLERANCE[DType.F16] * np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=most)


def test_the_number_of_rows_decides_in_a_run() -> None:
    params = RegionParams(9, steps("f16"), (11, 12, 13))
    shapes: list[tuple[DType, tuple[int | str, ...]]] = [
        *((DType.F32, ("b", "s", n * SIZE)) for n in (HEADS, KEPT, KEPT)),
        *((DType.F32, ("b", "s", SIZE // 2)) for _ in range(2)),
        *((DType.F32, ("b", KEPT, "p", SIZE)) for _ in range(2)),
        (DType.I64, ("b",)), (DType.BOOL, ("t",)),
    ]  # fmt: skip
    likely = {"b": 1, "s": 1, "p": 9, "t": 10}
    calls = program_of(params, [TensorSpec(*one) for one in shapes], DType.F32, likely).calls
    for rows, launched in (
        (1, ["attention_cached"]), (15, ["attention_cached"]),
        (16, ["kv_append_rotated", "attention"]), (500, ["kv_append_rotated", "attention"]),
    ):  # fmt: skip
        sizes = {"b": 2, "s": rows, "p": 40, "t": 40 + rows}
        assert [call.op for call in calls if call.op != "elementwise"
                and prod(launches_for(call)[0][0].blocks(sizes))] == launched  # fmt: skip


@pytest.mark.compiler
@pytest.mark.parametrize("queries", [1, 20])
def test_a_program_for_one_query_attends_to_keys_with_any_number(queries: int) -> None:
    params = AttentionParams(4, 32, 32, 0.2, layouts=("heads",) * 4, kv_heads=2)
    shapes: list[tuple[int | str, ...]] = [("b", 4, "s", 32), *[("b", 2, "t", 32)] * 2]
    given = [RNG.standard_normal(s).astype(np.float32)
             for s in ((2, 4, queries, 32), (2, 2, 70, 32), (2, 2, 70, 32))]  # fmt: skip
    likely = {"b": 1, "s": 1, "t": 512}
    calls = program_of(params, [TensorSpec(DType.F32, s) for s in shapes], DType.F16, likely).calls
    assert {"attention", "attention_cached"} <= {call.op for call in calls}
    (want,) = params.reference([a.astype(np.float64) for a in given])
    (got,) = run_program(params, given, DType.F16, shapes=shapes, likely=likely)
    most = 3 * TOLERANCE[DType.F16] * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=most)


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
