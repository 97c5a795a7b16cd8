"""2:4 sparse matrices on GPUs: what is stored, what the rule refuses, machine code, a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.double import DOUBLE, driver
from tests.graphs import Net, optimized, run_body
from tests.kernels.gpu.sparse_cases import CASES, pruned
from tests.kernels.gpu.test_emitter import made
from tests.kernels.gpu.test_warpgroups import HGMMA
from tracea_graph import Options, api, target
from tracea_graph.kernels.gpu import two_of_four_rules
from tracea_graph.kernels.gpu.cubin import opcodes
from tracea_graph.kernels.gpu.emitter import emit_kernel
from tracea_graph.kernels.gpu.kernel_selection import variants_of
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.phases import MixedPrecision
from tracea_graph.kernels.gpu.semantic.bank_conflicts import prove_free
from tracea_graph.kernels.gpu.semantic.epilogue_strips import TransposedStrip
from tracea_graph.kernels.gpu.semantic.wgmma_descriptors import SparseOperand, prove_read
from tracea_graph.kernels.gpu.structured_choice import TWO_OF_FOUR as WARPGROUPS
from tracea_graph.kernels.gpu.two_of_four_rules import TwoOfFourGemm
from tracea_graph.kernels.gpu.two_of_four_storage import TWO_OF_FOUR
from tracea_graph.kernels.program import Buffer, View
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.passes.matmul.gemm import Gemm
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.rewrite import Phase

NAMED = {case.name: case for case in CASES}


@pytest.mark.parametrize(("k", "n"), [(64, 64), (192, 200), (128, 130)])
def test_numbers_and_positions_are_the_matrix(k: int, n: int) -> None:
    w = pruned(np.random.default_rng(0), k, n)
    stored = TWO_OF_FOUR.packed(w)
    assert tuple(one.shape for one in stored) == TWO_OF_FOUR.shapes(k, n)
    assert np.array_equal(TWO_OF_FOUR.matrix(stored, k, n), w)
    b = BodyBuilder(2, 17)
    body = b.done(TWO_OF_FOUR.to_onnx(b, b.inputs, k, n))
    assert np.array_equal(run_body(body, list(stored), 17)[0], w)


def test_registers_hold_positions_as_the_isa_says() -> None:
    """Lane 4i + q of 16 rows: rows i and i + 8, steps 16q to 16q + 15; two different ones each."""
    w = pruned(np.random.default_rng(1), 128, 130)
    words = TWO_OF_FOUR.packed(w)[1].view("<u4").reshape(2, -1, 32)
    for k in range(0, 128, 4):
        for col in range(130):
            word = words[k // 64, col // 16, col % 8 * 4 + k % 64 // 16]
            both = int(word) >> (col % 16 // 8 * 16 + k % 16)
            first, second = both & 3, both >> 2 & 3
            assert first < second
            assert set(np.flatnonzero(w[k : k + 4, col])) <= {first, second}


def test_other_matrices_are_not_stored() -> None:
    with pytest.raises(ValueError, match="more than two"):
        TWO_OF_FOUR.packed(np.ones((64, 3), np.float32))
    with pytest.raises(ValueError, match="not a multiple"):
        TWO_OF_FOUR.check(96, 64)


@pytest.mark.parametrize("extent", [64, 128, 256])
def test_descriptors_read_what_tensor_maps_write(extent: int) -> None:
    operand = SparseOperand(extent)
    prove_read(operand, 64)
    found = {operand.written(at, k) for at in range(extent) for k in range(operand.depth)}
    assert found == set(range(0, operand.nbytes, 2))


@pytest.mark.parametrize(("cols", "run"), [(32, 4), (32, 8), (64, 4), (64, 8)])
def test_strips_have_no_bank_conflicts(cols: int, run: int) -> None:
    strip = TransposedStrip(64, cols)
    prove_free(strip.accesses(run))
    words = {strip.offset(r, c) for r in range(64) for c in range(cols)}
    assert len(words) == 64 * cols and max(words) < strip.words


def test_machine_code_has_sparse_products() -> None:
    """Of warpgroups, without local memory."""
    case = NAMED["wg two of four residual"]
    for tile in case.tiles:
        (built,) = compile_sources([emit_kernel(*made(case, "sm_90a", tile))], ["sm_90a"])
        assert built.refused is None and "C75" not in built.log
        assert built.facts is not None and built.facts.stack == 0
        assert opcodes(built.data, built.source.symbol)[HGMMA] >= 2


def _decisions(matrix: Any, levels: tuple[str, ...] = ("sm_90a",), rows: int = 512) -> list[str]:
    net = Net()
    graph = net.graph(net("MatMul", net.input("x", "rows", len(matrix)), net.const(matrix)))
    rule = TwoOfFourGemm(WeightScan(), levels, {"rows": rows} if rows else {})
    phases = [Phase(p.name, (p,)) for p in (Gemm(), MixedPrecision("f16"), rule)]
    trace = optimized(graph, tuple(phases))
    found = [entry for entry in trace.entries if entry.rule == rule.name]
    return [*trace.applied(), *(entry.reason for entry in found)]


def test_a_sparse_matrix_is_stored() -> None:
    w = pruned(np.random.default_rng(0), 768, 2304)
    assert "two-of-four-gemm" in _decisions(w, rows=4096)


@pytest.mark.parametrize(
    ("matrix", "more", "why"),
    [
        (np.ones((128, 128), np.float32), {}, "not 2:4 sparse"),
        (pruned(np.random.default_rng(0), 128, 128).T, {}, "not 2:4 sparse"),
        (pruned(np.random.default_rng(0), 800, 768), {}, "is no multiple of 64"),
        (pruned(np.random.default_rng(0), 128, 768), {}, "a side below 768"),
        (pruned(np.random.default_rng(0), 768, 768), {"rows": 0}, "unknown number"),
        (pruned(np.random.default_rng(0), 768, 768), {"rows": 200}, "not for 200 rows"),
        (pruned(np.random.default_rng(0), 768, 768), {}, "of the dense one's time"),
        (pruned(np.random.default_rng(0), 768, 768), {"levels": ("sm_80", "sm_90a")}, "timed on"),
    ],
)
def test_other_matrices_stay_dense(matrix: Any, more: dict[str, Any], why: str) -> None:
    found = _decisions(np.ascontiguousarray(matrix), **more)
    assert "two-of-four-gemm" not in found and any(why in one for one in found)


def test_many_rows_take_warpgroups_and_all_others_warps() -> None:
    call, *_ = made(NAMED["wg two of four f16"], "sm_90a", NAMED["wg two of four f16"].tiles[0])

    def names(rows: int | str) -> list[str]:
        views = tuple(
            v
            and View(Buffer("temp", 0), tuple(rows if d == 300 else d for d in v.dims), v.strides)
            for v in call.views
        )
        return [v.template for v, _ in variants_of(replace(call, views=views))]

    assert names(200) == ["gemm_two_of_four.cu.in"]
    assert names(300) == names("n") == [WARPGROUPS, "gemm_two_of_four.cu.in"]


@pytest.mark.slow  # 10 s of compiling
@pytest.mark.compiler
def test_a_pruned_perceptron_is_one_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two 2:4 sparse matrices, with biases, an activation and a residual behind them; dense
    products of such small ones would be faster."""
    monkeypatch.setattr(two_of_four_rules, "warpgroup_cycles", lambda *size: np.inf)
    monkeypatch.setattr(two_of_four_rules, "_LEAST_SIDE", 64)
    monkeypatch.setattr(target, "BACKENDS", (*target.BACKENDS, DOUBLE))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver()))
    rng, net = np.random.default_rng(0), Net()
    x = net.input("x", 400, 128)
    w1, w2 = (pruned(rng, *size) / 8 for size in ((128, 192), (192, 128)))
    y = net("Relu", net("Gemm", x, net.const(w1), net.weight(192)))
    y = net("Add", net("Gemm", y, net.const(w2), net.weight(128)), x)
    path = net.save(tmp_path / "m.onnx", y)
    options = Options(target="double:sm_90", keep="all", precision="fp16", max_error=1e-2)
    report = api.optimize(path, options)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.nodes_after == report.kernels == 1
    assert {row.rule: row.count for row in report.rules}["two-of-four-gemm"] == 2
