"""Elementwise operators become one pass over memory, where they may."""

from __future__ import annotations

import pytest

from tests.graphs import Net, assert_same, normal, only, ops, optimized, reasons, schedule_only
from tracea_graph.passes.matmul import gemm
from tracea_graph.passes.pointwise import decomposed_activations, elementwise, vertical_fusion
from tracea_graph.rewrite import RulePass

FEEDS = {"x": normal(2, 5, 24)}


def new() -> tuple[Net, str]:
    net = Net()
    return net, net.input("x", "batch", "seq", 24)


def test_elementwise_operators_merge_into_one_pass() -> None:
    net, x = new()
    y = net("Mul", net("Exp", net("Neg", x)), net.input("r", "batch", "seq", 24))
    graph = net.graph(y)
    trace = optimized(graph)
    assert ops(graph) == ["FusedElementwise"] and trace.applied() == {"vertical-fusion": 2}
    assert only(graph, "FusedElementwise").params.chain.text == (
        "full,full|neg(0);exp(2);mul(3,1)|4"
    )
    assert_same(net, graph, FEEDS | {"r": normal(2, 5, 24, seed=2)})


MERGE = (vertical_fusion.VerticalFusion(),)


def test_other_readers_keep_elementwise_operators_apart() -> None:
    net, x = new()
    e = net("Exp", x, name="e")
    trace = schedule_only(net.graph(net("Neg", e), e), *MERGE)
    assert reasons(trace, "vertical-fusion") == {"'e' has other readers"}


def test_a_broadcast_value_keeps_elementwise_operators_apart() -> None:
    net, x = new()
    e = net("Exp", net.input("r", "seq", 24), name="e")
    graph = net.graph(net("Add", x, e))
    assert reasons(schedule_only(graph, *MERGE), "vertical-fusion") == {"'e' is broadcast"}


def test_eight_operands_are_the_most() -> None:
    net, x = new()
    y = x
    for i in range(9):
        y = net("Add", y, net.input(f"r{i}", "batch", "seq", 24))
    graph = net.graph(y)
    trace = optimized(graph)
    assert "the chain would have too many operands" in reasons(trace, "vertical-fusion")
    feeds = FEEDS | {f"r{i}": normal(2, 5, 24, seed=i) for i in range(9)}
    assert_same(net, graph, feeds)


def test_long_chains_are_several() -> None:
    """Fusing copies all steps: one chain of thousands would take quadratic time."""
    net, x = new()
    y = x
    for _ in range(300):
        y = net("Floor", net("Neg", y))
    graph = net.graph(y)
    trace = schedule_only(graph, elementwise.ElementwiseOp(), *MERGE)
    assert "the chain would have over 256 steps" in reasons(trace, "vertical-fusion")
    lengths = [len(region.params.chain.steps) for region in graph.regions()]
    assert sum(lengths) == 600 and max(lengths) <= 256 and len(lengths) < 10
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize("rank", [6, 7])
def test_elementwise_regions_have_six_axes_at_most(rank: int) -> None:
    net = Net()
    graph = net.graph(net("Relu", net.input("x", *range(1, rank + 1))))
    schedule_only(graph, elementwise.ElementwiseOp())
    assert ops(graph) == (["FusedElementwise"] if rank == 6 else ["Relu"])


def test_other_types_are_no_elementwise_regions() -> None:
    net = Net()
    x = net.ids("x", 4)
    graph = net.graph(net("Add", x, net.ints(1)))
    optimized(graph)
    assert ops(graph) == ["Add"]


def test_shapes_that_stay_open_are_no_elementwise_regions() -> None:
    net = Net()
    graph = net.graph(net("Add", net.input("x", "a", 4), net.input("r", "b", 4)))
    optimized(graph)
    assert ops(graph) == ["Add"]


def test_recognition_comes_before_fusion() -> None:
    net, x = new()
    y = net("MatMul", x, net.weight(24, 20))
    graph = net.graph(net("Mul", y, net("Sigmoid", y)))
    trace = schedule_only(graph, *map(RulePass, decomposed_activations.RULES), gemm.Gemm())
    assert trace.applied()["silu"] == 1
