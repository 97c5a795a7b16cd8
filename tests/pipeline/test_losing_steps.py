"""What a plan does with steps that lose time in a program that would win without them."""

from __future__ import annotations

import pytest

from tests.graphs import Net, ops
from tracea_graph.options import Options
from tracea_graph.pipeline.planning import Planner
from tracea_graph.policy import CostModel, Machine
from tracea_graph.target import target_of

SIZES = {"n": 4}


def test_a_program_goes_without_the_step_that_loses() -> None:
    """A convolution over volumes, summed plainly, takes longer than all the products save."""
    net = Net()
    x = net.input("x", "n", 16, 8, 16, 16)
    volume = net("Conv", x, net.weight(64, 16, 3, 3, 3), pads=[1] * 6)
    rows = net("Transpose", net("Reshape", volume, net.ints(0, 64, -1)), perm=[0, 2, 1])
    hidden = net("Relu", net("MatMul", rows, net.weight(64, 128)))
    graph = net.graph(net("MatMul", hidden, net.weight(128, 64)))
    planner = Planner(graph, Options(), SIZES, cost=CostModel(Machine(), SIZES))
    left = ops(planner.plan().graph)
    assert "Conv" in left and "MatMul" not in left


@pytest.mark.parametrize("opset", [11, 21])
def test_integers_are_credited_with_the_convolutions_they_replace(opset: int) -> None:
    """Other operators compute the results, which sinking transposes rename."""
    net = Net(opset)
    h = net.input("x", "n", 64, 56, 56)
    for i in range(2):
        h = net("Conv", h, net.weight(64, 64, 3, 3), pads=[1] * 4, name=f"conv{i}")
        h = net("Relu", h, name=f"relu{i}")
    graph = net.graph(net("GlobalAveragePool", h, name="mean"))
    options, target = Options(precision="int8"), target_of("cpu:avx512", "int8")
    planner = Planner(graph, options, SIZES, target, CostModel(Machine(), SIZES))
    found = planner.plan().trace.applied()
    assert found["conv-int8"] == found["conv-integer"] == 2
