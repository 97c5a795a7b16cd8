"""Sums of images go into the matmuls that make them, across their transposes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, ops, optimized
from tracea_graph import passes
from tracea_graph.kernels.gpu.phases import phases
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.passes import PlanRequest
from tracea_graph.ttg import TileGraph

CHANNELS = 8
FEEDS = {"x": normal(2, CHANNELS, 3, 5)}


def block(net: Net, x: str, seed: int) -> str:
    """Return a ConvNeXt block's branch over channels last."""
    w = net.const(normal(CHANNELS, CHANNELS, seed=seed))
    scale = net.const(normal(CHANNELS, seed=seed + 1))
    last = net("Transpose", net("Tanh", x), perm=[0, 2, 3, 1])
    return net("Mul", scale, net("MatMul", last, w))


def first(net: Net, x: str) -> str:
    return net("Transpose", x, perm=[0, 3, 1, 2])


def checked(net: Net, *outputs: str) -> TileGraph:
    graph = net.graph(*outputs)
    request = PlanRequest()
    optimized(graph, (*passes.phases(request), *phases(request, {})[:-1]))  # no programs
    assert_same(net, graph, FEEDS)
    return graph


def epilogues(graph: TileGraph) -> list[int]:
    return [r.params.epilogue_inputs for r in graph.regions() if isinstance(r.params, GemmParams)]


@pytest.mark.parametrize("swapped", [False, True])
def test_residuals_in_two_layouts_go_into_epilogues(swapped: bool) -> None:
    net = Net()
    x = net.input("x", "batch", CHANNELS, 3, 5)
    for seed in (0, 10):
        made = first(net, block(net, x, seed))
        x = net("Add", *((made, x) if swapped else (x, made)))
    last = net("Add", net("Transpose", x, perm=[0, 2, 3, 1]), block(net, x, 20))
    graph = checked(net, last)
    assert epilogues(graph) == [2, 2, 2], "a scale and a residual each"


def test_a_matmul_with_other_readers_keeps_its_result() -> None:
    net = Net()
    x = net.input("x", "batch", CHANNELS, 3, 5)
    made = block(net, x, 0)
    graph = checked(net, net("Add", x, first(net, made)), net("Exp", made))
    assert epilogues(graph) == [1]


def test_operands_of_another_shape_stay_behind() -> None:
    net = Net()
    x = net.input("x", "batch", CHANNELS, 3, 5)
    column = net.const(np.float32(normal(CHANNELS, 1, 1)))
    graph = checked(net, net("Mul", first(net, block(net, x, 0)), column))
    assert "FusedElementwise" in ops(graph)
