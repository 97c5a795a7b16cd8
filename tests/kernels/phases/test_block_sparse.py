"""Products skip the zero blocks of their weights, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from models.zero_blocks import block_mask
from tests.graphs import Net, assert_same, every_phase, normal, optimized
from tracea_graph.ir import DType, Weight
from tracea_graph.kernels.cpu.panels import PANELS, BlockSparsePanels
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.passes.sparse.sampled_zero_scan import (
    ZeroMaps,
    nonzero_tiles,
    sampled_zeros,
    zero_map,
)
from tracea_graph.policy import CostModel, Machine
from tracea_graph.rewrite import DecisionTrace, SchedulerLimits, schedule_rewrites
from tracea_graph.ttg import TileGraph

Array = npt.NDArray[Any]


def product(w: Array, opset: int = 17) -> tuple[Net, TileGraph]:
    """A product with a bias and what follows it."""
    net = Net(opset)
    x = net.input("x", "rows", w.shape[0])
    added = net("Add", net("MatMul", x, net.const(w)), net.weight(w.shape[1]))
    return net, net.graph(net("Relu", added))


def sparse(k: int, n: int, zeros: float, block: tuple[int, int] = (16, 16)) -> Array:
    return normal(k, n) * block_mask((k, n), zeros, block, "random")


def planned(graph: TileGraph, rows: int) -> tuple[GemmParams, DecisionTrace]:
    """The product as the cost model would have it."""
    cost = CostModel(Machine(), {"rows": rows})
    trace = schedule_rewrites(graph, every_phase(), cost, SchedulerLimits())
    (region,) = graph.regions()
    assert isinstance(region.params, GemmParams)
    return region.params, trace


@pytest.mark.parametrize(("k", "n"), [(64, 48), (70, 50), (33, 16)])
def test_the_result_is_the_same(k: int, n: int) -> None:
    made, graph = product(sparse(k, n, 0.7))
    trace = optimized(graph, every_phase())
    assert trace.applied()["block-sparse-gemm"] == 1
    (region,) = graph.regions()
    assert isinstance(region.params.layout, BlockSparsePanels)
    assert_same(made, graph, {"x": normal(5, k)})


def test_what_is_stored_is_what_is_not_zero() -> None:
    w = sparse(96, 64, 0.75)
    _, graph = product(w)
    optimized(graph, every_phase())
    (region,) = graph.regions()
    blocks, places = (graph.weights[region.operands[i]].array() for i in (1, -1))
    assert blocks.size == np.count_nonzero(w) and len(places) == len(blocks) == 6
    assert graph.weights[region.operands[-1]].dtype is DType.I32


@pytest.mark.parametrize(
    ("zeros", "block", "chosen"),
    [(0.9, (16, 16), 16), (0.9, (64, 64), 64), (0.9, (32, 32), 32), (0.8, (4, 16), 4),
     (0.8, (1, 16), 1), (0.5, (16, 16), 16)],
)  # fmt: skip
def test_the_cost_model_chooses_the_block(
    zeros: float, block: tuple[int, int], chosen: int
) -> None:
    params, _ = planned(product(sparse(768, 768, zeros, block))[1], 128)
    assert params.layout == BlockSparsePanels(chosen)


@pytest.mark.parametrize("zeros", [0.0, 0.05, 0.08])
def test_dense_stays_where_it_wins(zeros: float) -> None:
    params, _ = planned(product(sparse(768, 768, zeros))[1], 128)
    assert params.layout == PANELS


def test_scattered_zeros_fill_no_block() -> None:
    w = normal(128, 64) * (np.random.default_rng(1).random((128, 64)) < 0.5)
    params, trace = planned(product(w.astype(np.float32))[1], 128)
    assert params.layout == PANELS
    assert any("fill runs of 16" in reason for _, reason in trace.misses())


def test_an_old_opset_cannot_place_blocks() -> None:
    params, trace = planned(product(sparse(64, 64, 0.8), opset=10)[1], 128)
    assert params.layout == PANELS
    assert any("ScatterND" in reason for _, reason in trace.misses())


def test_a_matrix_of_zeros_keeps_one_block() -> None:
    made, graph = product(np.zeros((64, 48), np.float32))
    optimized(graph, every_phase())
    (region,) = graph.regions()
    assert graph.spec(region.operands[1]).shape is not None
    assert graph.weights[region.operands[1]].shape[0] == 1
    assert_same(made, graph, {"x": normal(3, 64)})


def test_projections_that_became_one_product_are_skipped_together() -> None:
    made = Net()
    x = made.input("x", "rows", 64)
    parts = [made("MatMul", x, made.const(sparse(64, 32, 0.6 + i / 10))) for i in range(3)]
    graph = made.graph(*parts)
    assert optimized(graph, every_phase()).applied()["block-sparse-gemm"] == 1
    (region,) = graph.regions()
    assert region.params.splits == (32, 32, 32) and isinstance(
        region.params.layout, BlockSparsePanels
    )
    assert_same(made, graph, {"x": normal(4, 64)})


def test_a_dense_matrix_is_never_read_as_a_whole() -> None:
    scan = ZeroMaps()
    weight = Weight("w", DType.F32, (512, 512), lambda: normal(512, 512))

    def never() -> Array:
        raise AssertionError("the matrix was read")

    narrowed = Weight("narrowed", DType.F32, (512, 64), never)
    found = scan.zeros([weight], narrowed, GemmParams(512, 64))
    assert found.size == 0 and scan.looked == 0


def test_a_matrix_is_looked_at_once_whatever_its_name() -> None:
    array, scan = sparse(64, 64, 0.7), ZeroMaps()
    for name in ("a", "b"):
        weight = Weight(name, DType.F32, array.shape, lambda: array)
        assert scan.zeros([weight], weight, GemmParams(64, 64)).mean() == 0.6875
    assert scan.looked == 1


def test_a_narrowed_matrix_has_a_map_of_its_own() -> None:
    array, scan = sparse(64, 64, 0.7), ZeroMaps()
    weight = Weight("w", DType.F32, array.shape, lambda: array)
    narrowed = Weight("narrowed", DType.F32, (64, 32), lambda: array[:, 32:])
    assert scan.zeros([weight], weight, GemmParams(64, 64)).shape == (4, 64)
    expected = zero_map(array[:, 32:])
    assert np.array_equal(scan.zeros([weight], narrowed, GemmParams(64, 32)), expected)
    assert scan.stored([weight], narrowed) == np.count_nonzero(array[:, 32:])


def test_tiles_count_panels_then_k() -> None:
    zeros = np.ones((2, 6), np.bool_)
    zeros[0, 5] = zeros[1, 0] = False
    assert nonzero_tiles(zeros, 4).l1_map.tolist() == [1, 2]
    assert nonzero_tiles(zeros, 1).l1_map.tolist() == [5, 6]
    assert sampled_zeros(zeros) == pytest.approx(2 / 12)
