"""Products of few rows read only the numbers of their weights that are not zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.graphs import Net, assert_same, every_phase, normal, optimized
from tracea_graph.ir import DType
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.policy import CostModel, Machine
from tracea_graph.rewrite import DecisionTrace, SchedulerLimits, schedule_rewrites
from tracea_graph.ttg import TileGraph

Array = npt.NDArray[Any]


def scattered(k: int, n: int, zeros: float) -> Array:
    kept = np.random.default_rng([k, n]).random((k, n)) >= zeros
    return (normal(k, n) * kept).astype(np.float32)


def product(w: Array, rows: int | str, opset: int = 17) -> tuple[Net, TileGraph]:
    """A product with a bias and what follows it."""
    net = Net(opset)
    added = net("Add", net("MatMul", net.input("x", rows, w.shape[0]), net.const(w)),
                net.weight(w.shape[1]))  # fmt: skip
    return net, net.graph(net("Relu", added))


def planned(
    w: Array, rows: int | str, opset: int = 17, precision: str = "fp32"
) -> tuple[Net, TileGraph, DecisionTrace]:
    """The same as the cost model would have it."""
    net, graph = product(w, rows, opset)
    cost = CostModel(Machine(), {"rows": 1})
    limits = SchedulerLimits(max_error=0.0 if precision == "fp32" else 0.1)
    return net, graph, schedule_rewrites(graph, every_phase(precision=precision), cost, limits)


def params_of(graph: TileGraph) -> GemmParams:
    (region,) = graph.regions()
    assert isinstance(region.params, GemmParams)
    return region.params


@pytest.mark.parametrize(("k", "n"), [(256, 192), (255, 200)])
def test_the_result_is_the_same(k: int, n: int) -> None:
    net, graph = product(scattered(k, n, 0.8), 2)
    assert optimized(graph, every_phase()).applied()["unstructured-sparse-gemm"] == 1
    assert params_of(graph).layout.name == "bitmap"
    assert_same(net, graph, {"x": normal(2, k)})


def test_what_is_stored_is_what_is_not_zero() -> None:
    w = scattered(256, 192, 0.8)
    _, graph, _ = planned(w, 1)
    (region,) = graph.regions()
    numbers, words = (graph.weights[region.operands[i]] for i in (1, -1))
    assert numbers.shape == numbers.array().shape == (np.count_nonzero(w),)
    assert words.dtype is DType.I32 and words.shape == words.array().shape == (12, 129)


def test_in_bf16_the_numbers_are() -> None:
    net, graph, _ = planned(scattered(256, 192, 0.8), 1, precision="bf16")
    assert params_of(graph).layout.name == "bitmap_bf16"
    (region,) = graph.regions()
    assert graph.weights[region.operands[1]].dtype is DType.BF16
    assert_same(net, graph, {"x": normal(1, 256)}, 1e-2)


@pytest.mark.parametrize("zeros", [0.0, 0.05, 0.15])
def test_dense_stays_where_it_wins(zeros: float) -> None:
    assert params_of(planned(scattered(768, 768, zeros), 1)[1]).layout.name == "panels"


def test_blocks_are_better_than_bits() -> None:
    w = normal(768, 768) * np.kron(np.random.default_rng(1).random((48, 48)) < 0.1,
                                   np.ones((16, 16)))  # fmt: skip
    assert params_of(planned(w.astype(np.float32), 1)[1]).layout.name == "block_sparse"


@pytest.mark.parametrize(("rows", "said"), [("rows", "any number of rows"), (5, "5 rows")])
def test_many_rows_are_not_bound_by_memory(rows: int | str, said: str) -> None:
    _, graph, trace = planned(scattered(256, 192, 0.8), rows)
    assert params_of(graph).layout.name == "panels"
    assert any(said in reason for _, reason in trace.misses())


def test_an_old_opset_cannot_place_numbers() -> None:
    _, graph, trace = planned(scattered(256, 192, 0.8), 1, opset=10)
    assert params_of(graph).layout.name == "panels"
    assert any("ScatterND" in reason for _, reason in trace.misses())
