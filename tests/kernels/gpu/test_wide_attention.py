"""Attention with wide heads on GPUs: programs in the host dialect, against NumPy."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.machine import Array
from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec, evaluate
from tracea_graph.kernels.gpu.kernel_selection import launches_for
from tracea_graph.kernels.gpu.lowering import attention as lowering
from tracea_graph.ops.attention import AttentionParams

pytestmark = pytest.mark.compiler
HEADS = ("heads",) * 4
PLAIN = AttentionParams(2, 160, 136, 0.08, layouts=HEADS)
WIDER = replace(PLAIN, head=272, head_v=264, scale=0.06)
CASES = {
    "plain": WIDER,
    "causal": replace(WIDER, causal="top", softcap=3.0),
    "last query sees all": replace(WIDER, causal="bottom", fill=-1e9),
    "added mask": replace(WIDER, mask="add"),
    "boolean mask": replace(WIDER, mask="bool", kv_heads=1, fill=-1e4),
}
"""Attention by matmuls in fp16."""


def compare(params: AttentionParams, narrow: DType, queries: int = 20, keys: int = 23) -> None:
    rng = np.random.default_rng(0)
    shapes = [
        (2, params.heads, queries, params.head), (2, params.shared_heads, keys, params.head),
        (2, params.shared_heads, keys, params.head_v),
    ]  # fmt: skip
    arrays: list[Array] = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    if params.stored == "i8":
        arrays[1:] = [np.clip(40 * a, -128, 127).astype(np.int8) for a in arrays[1:]]
    if params.mask == "add":
        arrays.append(rng.standard_normal((2, 1, queries, keys)).astype(np.float32))
    elif params.mask == "bool":
        arrays.append(rng.random((1, 1, queries, keys)) < 0.7)
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    (want,), (got,) = params.reference(wide), run_program(params, arrays, narrow)
    most = max(3 * TOLERANCE[narrow], 3e-6) * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=most)


def ops(params: AttentionParams, narrow: DType, length: int = 0) -> list[str]:
    queries, keys = (length, length) if length else ("s", "t")
    shapes = [(1, params.heads, queries, params.head), (1, params.heads, keys, params.head),
              (1, params.heads, keys, params.head_v)]  # fmt: skip
    specs = [TensorSpec(DType.F32, s) for s in shapes]
    return [c.op for c in program_of(params, specs, narrow, {"s": 4096, "t": 4096}).calls]


USUAL = ("causal", "boolean mask")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in USUAL else [pytest.mark.slow]) for n in CASES]
)
def test_matmuls_and_a_softmax(name: str) -> None:
    compare(CASES[name], DType.F16)


def test_halves_take_a_kernel() -> None:
    compare(replace(PLAIN, mask="bool", kv_heads=1, causal="bottom"), DType.F16)


def test_float32_heads() -> None:
    compare(replace(PLAIN, head=272, head_v=40), DType.F32)


@pytest.mark.parametrize("least", [1, 1 << 30])
def test_float32_attends_by_matmuls_to_many_keys(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values are stored by columns where scores are very many."""
    monkeypatch.setattr(lowering, "_LEAST_SCORES", 1)
    monkeypatch.setattr(lowering, "_MANY_SCORES", least)
    compare(replace(PLAIN, mask="add", kv_heads=1), DType.F32)


@pytest.mark.parametrize("changes", [{"mask": "bool"}, {"window": (4, 4), "global_keys": 3}])
def test_float32_attends_by_one_kernel(changes: dict[str, Any]) -> None:
    compare(replace(PLAIN, head=24, head_v=40, kv_heads=1, **changes), DType.F32)


def test_integers_are_converted_first() -> None:
    compare(replace(PLAIN, head=16, head_v=24, scale=0.002, stored="i8"), DType.F16)


def test_rows_that_may_be_empty_take_a_kernel() -> None:
    params = replace(PLAIN, head=272, head_v=288, mask="bool", zero_rows="masked")
    compare(params, DType.F32, queries=3, keys=5)


def test_calls() -> None:
    for head in (160, 256):
        assert "attention" in ops(replace(PLAIN, head=head), DType.F16)
    assert ops(WIDER, DType.F16)[-3:] == ["gemm", "softmax", "gemm"]
    either = ["copy", "gemm", "softmax", "gemm", "attention_rows"]
    assert ops(PLAIN, DType.F32) == either, "for any lengths"
    assert ops(PLAIN, DType.F32, 32) == ["attention_rows"]
    short = replace(PLAIN, head=64, head_v=128)
    assert ops(short, DType.F32, 16) == ["attention"], "by tensor cores, too"
    assert ops(short, DType.F32, 15) == ["attention_rows"]
    assert ops(short, DType.F32) == ["attention"]
    assert ops(replace(WIDER, causal="bottom"), DType.F16)[-1] == "attention_rows"


@pytest.mark.parametrize(
    ("sizes", "many"), [((1, 40, 40), False), ((1, 400, 300), True), ((9, 4096, 4096), False)]
)
def test_lengths_of_a_run_choose_between_matmuls_and_a_kernel(
    sizes: tuple[int, int, int], many: bool
) -> None:
    """Too few scores are not worth it, too many do not fit into memory."""
    params = replace(PLAIN, causal="top")
    shapes = [("b", 2, *one) for one in (("s", 160), ("t", 160), ("t", 136))]
    specs = [TensorSpec(DType.F32, s) for s in shapes]
    program = program_of(params, specs, DType.F32, {"b": 1, "s": 400, "t": 300})
    own = dict(zip("bst", sizes, strict=True))
    for call in program.calls:
        if call.op != "iota":
            grids = [prod(launch.blocks(own)) for launch, _ in launches_for(call)]
            assert (grids[-1] > 0) == (many if call.op != "attention_rows" else not many)
    rows = sum(evaluate(t.count, own) for t in program.temps)
    assert (rows > sizes[1] * sizes[2]) == many
