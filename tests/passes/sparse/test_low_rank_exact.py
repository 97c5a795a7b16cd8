"""Matrices of exactly low rank are found, and products by them become two."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.graphs import APART, Net, assert_same, normal, optimized
from tracea_graph.ir import DType, Weight
from tracea_graph.passes.sparse.find_exact_low_rank import RankScan, exact_factors, largest_rank

Array = npt.NDArray[Any]


def low(k: int, n: int, rank: int) -> Array:
    return (normal(k, rank, seed=1) @ normal(rank, n, seed=2)).astype(np.float32)


@pytest.mark.parametrize(("k", "n", "rank"), [(256, 256, 3), (300, 700, 75), (700, 300, 1)])
def test_the_factors_are_the_matrix(k: int, n: int, rank: int) -> None:
    found = exact_factors(low(k, n, rank))
    assert found is not None
    a, b = found
    assert a.shape == (k, rank) and b.shape == (rank, n)
    error = np.linalg.norm(a.astype(np.float64) @ b - low(k, n, rank))
    assert error < 2e-6 * np.linalg.norm(low(k, n, rank))


@pytest.mark.parametrize(
    "matrix",
    [
        normal(256, 256),
        low(256, 300, largest_rank(256, 300) + 1),
        low(256, 300, 5) + 1e-4 * normal(256, 300, seed=9),
        np.zeros((256, 256), np.float32),
        np.full((256, 256), np.nan, np.float32),
        low(100, 100, 1),
    ],
    ids=["full", "too high", "noise", "zero", "nan", "small"],
)
def test_what_is_no_low_rank(matrix: Array) -> None:
    assert exact_factors(matrix.astype(np.float32)) is None


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_becomes_two(turned: bool) -> None:
    net = Net()
    x, w = net.input("x", "rows", 256), low(256, 400, 20)
    stored = net.const(np.ascontiguousarray(w.T) if turned else w)
    y = net("Gemm", x, stored, net.weight(400), transB=int(turned))
    graph = net.graph(net("Relu", y))
    trace = optimized(graph, limits=APART)
    assert trace.applied()["low-rank-exact"] == 1
    first, second = graph.regions()
    assert (first.params.n, second.params.k, second.params.n) == (32, 32, 400)
    assert second.params.epilogue is not None
    assert_same(net, graph, {"x": normal(7, 256)})


def test_equal_matrices_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    array, scan, asked = low(256, 256, 4), RankScan(), []

    def counted(matrix: Array) -> None:
        asked.append(matrix)

    monkeypatch.setattr("tracea_graph.passes.sparse.find_exact_low_rank.exact_factors", counted)
    for name in ("a", "b"):
        scan.factors(Weight(name, DType.F32, array.shape, lambda: array))
    assert len(asked) == 1
