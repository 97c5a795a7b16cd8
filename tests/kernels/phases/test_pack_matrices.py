"""How the CPU stores the matrices of products: in panels, alone and inside programs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import (
    APART,
    Net,
    assert_same,
    every_phase,
    normal,
    only,
    optimized,
    schedule_only,
)
from tracea_graph.kernels.cpu.panels import PANELS
from tracea_graph.kernels.cpu.phases.pack_matrices import PackMatrices
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import KN, NK, PlainMatrix
from tracea_graph.passes.matmul.gemm import Gemm
from tracea_graph.passes.region_helpers import fused_region

LAYOUTS = [KN, NK]


@pytest.mark.parametrize("n", [1, 16, 20])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_a_matrix_is_packed_into_panels(trans_b: int, n: int) -> None:
    net = Net()
    weight = net.weight(n, 24) if trans_b else net.weight(24, n)
    graph = net.graph(net("Gemm", net.input("x", "m", 24), weight, transB=trans_b))
    schedule_only(graph, Gemm())
    assert only(graph, "FusedGemm").params.layout == (NK if trans_b else KN)
    schedule_only(graph, PackMatrices())
    region = only(graph, "FusedGemm")
    assert region.params.layout == PANELS and region.rule == "gemm"
    assert graph.weights[region.operands[1]].shape == (-(-n // 16), 24, 16)
    assert_same(net, graph, {"x": normal(7, 24)})


@pytest.mark.parametrize("twice", [False, True])
def test_a_matrix_others_need_is_packed_beside_where_that_is_smaller(twice: bool) -> None:
    net = Net()
    table = net.weight(1024, 24)
    x = net("Gather", table, net.ids("i", "batch", "seq"), axis=0)
    graph = net.graph(x, net("Gemm", net.input("z", 3, 24), table, transB=1))
    schedule_only(graph, Gemm())
    schedule_only(graph, PackMatrices(twice))
    assert only(graph, "FusedGemm").params.layout.name == ("panels" if twice else "nk")
    assert_same(net, graph, {"i": np.array([[3, 5, 1]]), "z": normal(3, 24)})


def test_products_of_one_matrix_share_its_panels() -> None:
    net = Net()
    weight = net.weight(24, 24)
    graph = net.graph(net("MatMul", net("MatMul", net.input("x", "m", 24), weight), weight))
    optimized(graph, every_phase(), APART)
    assert len({r.operands[1] for r in graph.regions()}) == 1
    assert_same(net, graph, {"x": normal(5, 24)})


def test_weights_stay_without_prepacking() -> None:
    net = Net()
    graph = net.graph(net("MatMul", net.input("x", "m", 24), net.weight(24, 20)))
    optimized(graph, every_phase(prepack=False))
    assert only(graph, "FusedGemm").params.layout == KN


@pytest.mark.parametrize("second", LAYOUTS, ids=lambda layout: layout.name)
def test_a_program_packs_what_only_its_products_read(second: PlainMatrix) -> None:
    """x·W·W is packed; x·W·Wᵀ reads one weight in two ways, which stays."""
    net = Net()
    x, weight = net.input("x", "m", 24), net.weight(24, 24)
    graph = net.graph(net("MatMul", net("MatMul", x, weight), weight))
    first, last = graph.regions()
    steps = (
        RegionStep(GemmParams(24, 24, KN), (0, 1)),
        RegionStep(GemmParams(24, 24, second), (2, 1)),
    )
    program = RegionParams(2, steps, (3,))
    new = fused_region("cluster", program, (x, weight), last.results, [first, last])
    graph.replace((first, last), (new,))
    schedule_only(graph, PackMatrices())
    (region,) = graph.regions()
    layouts = [step.params.layout for step in region.params.steps]
    assert layouts == ([PANELS, PANELS] if second == KN else [KN, NK])
