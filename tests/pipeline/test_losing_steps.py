"""What a plan does with steps that lose time in a program that would win without them."""

from __future__ import annotations

from tests.graphs import Net, ops
from tracea_graph.options import Options
from tracea_graph.pipeline.planning import Planner
from tracea_graph.policy import CostModel, Machine

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
