"""Matrices of zero blocks on GPUs: what is stored, what the rules refuse, whole models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.double import DOUBLE, driver
from tests.graphs import Net, assert_same, normal, reasons, run_body, schedule_only
from tracea_graph import Options, api, target
from tracea_graph.kernels.gpu.zero_block_rules import ColumnBlockGemm
from tracea_graph.kernels.gpu.zero_block_storage import COLUMN_BLOCKS, SIDE, active_tiles
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.passes.matmul.gemm import Gemm
from tracea_graph.passes.sparse.sampled_zero_scan import zero_map


def sparse(k: int, n: int, seed: int = 0) -> Any:
    """A matrix with numbers in about a third of its blocks, none in its last columns."""
    rng = np.random.default_rng(seed)
    kept = rng.random((k // SIDE, -(-n // SIDE))) < 0.35
    kept[:, -1], kept[0, 0] = False, True
    return (normal(k, n) * np.kron(kept, np.ones((SIDE, SIDE)))[:, :n]).astype(np.float32)


@pytest.mark.parametrize(("k", "n"), [(64, 64), (192, 200), (2304, 130)])
def test_blocks_and_map_are_the_matrix(k: int, n: int) -> None:
    w = sparse(k, n)
    tiles = active_tiles(zero_map(w))
    places = COLUMN_BLOCKS.map_of(tiles)
    stored = [COLUMN_BLOCKS.packed(w, tiles.l1_map), places]
    assert len(stored[0]) == len(tiles.l1_map) < len(tiles) or n == 64
    assert np.array_equal(COLUMN_BLOCKS.matrix(stored, k, n), w)
    header, columns = COLUMN_BLOCKS.header(k, n), -(-n // SIDE)
    assert np.array_equal(places[header:], tiles.l1_map) and places[columns] == len(stored[0])
    bits = places[columns + 1 : header - columns].astype(np.uint32)
    counts = np.diff(places[: columns + 1])[places[header - columns : header]]
    assert (np.diff(counts) <= 0).all()
    assert sum(int(b).bit_count() for b in bits) == len(tiles) - len(tiles.l1_map)
    b = BodyBuilder(2, 17)
    body = b.done(COLUMN_BLOCKS.to_onnx(b, b.inputs, k, n))
    assert np.array_equal(run_body(body, stored, 17)[0], w)


def scattered() -> Any:
    w = sparse(192, 128)
    w[::SIDE, ::SIDE] = 1  # a number in each block
    return w


@pytest.mark.parametrize(
    ("matrix", "why"),
    [
        (scattered(), "do not fill blocks"),
        (sparse(192, 130)[:130], "is not a multiple"),
    ],
)
def test_other_matrices_stay_dense(matrix: Any, why: str) -> None:
    net = Net()
    graph = net.graph(net("MatMul", net.input("x", "rows", len(matrix)), net.const(matrix)))
    trace = schedule_only(graph, Gemm(), ColumnBlockGemm())
    assert any(why in reason for reason in reasons(trace, "column-block-gemm"))


def test_products_over_blocks_are_exact() -> None:
    net = Net()
    x = net.input("x", "rows", 192)
    graph = net.graph(net("MatMul", x, net.const(sparse(192, 200))))
    assert schedule_only(graph, Gemm(), ColumnBlockGemm()).applied()["column-block-gemm"] == 1
    assert_same(net, graph, {"x": normal(5, 192)})


@pytest.mark.compiler
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_pruned_perceptron_is_one_node(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of three matrices, with a bias, a residual and a norm behind them."""
    monkeypatch.setattr(target, "BACKENDS", (*target.BACKENDS, DOUBLE))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver()))
    net = Net()
    x = net.input("x", "batch", 192)
    y = net("Relu", net("Gemm", x, net.const(sparse(192, 320)), net.weight(320)))
    y = net("Add", net("MatMul", y, net.const(sparse(320, 192, 1))), x)
    y = net("LayerNormalization", y, net.weight(192), net.weight(192), axis=-1)
    path = net.save(tmp_path / "m.onnx", net("MatMul", y, net.const(sparse(192, 100, 2))))
    options = Options(
        target="double:sm_90", keep="all", precision=precision,
        max_error=1e-2 if precision == "fp16" else None,
    )  # fmt: skip
    report = api.optimize(path, options)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.nodes_after == report.kernels == 1
    assert {row.rule: row.count for row in report.rules}["column-block-gemm"] == 3
