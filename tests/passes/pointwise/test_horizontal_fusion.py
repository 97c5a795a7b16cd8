"""Elementwise regions that read the same become one with two results."""

from __future__ import annotations

from tests.graphs import Net, assert_same, normal, only, ops, optimized, schedule_only
from tracea_graph.passes.pointwise.elementwise import ElementwiseOp
from tracea_graph.passes.pointwise.horizontal_fusion import HorizontalFusion
from tracea_graph.reason_codes import Code

FEEDS = {"x": normal(2, 5, 24)}


def new() -> tuple[Net, str]:
    net = Net()
    return net, net.input("x", "batch", "seq", 24)


def test_two_readers_of_one_value_read_it_once() -> None:
    net, x = new()
    graph = net.graph(net("Sin", x), net("Mul", net("Cos", x), net.weight(24)))
    optimized(graph)
    assert ops(graph) == ["FusedElementwise"]
    assert len(only(graph, "FusedElementwise").results) == 2
    assert_same(net, graph, FEEDS)


def test_a_value_that_others_need_is_written_and_used_at_once() -> None:
    net, x = new()
    e = net("Exp", x, name="e")
    graph = net.graph(net("Add", e, net("Tanh", x)), net("Softmax", e))
    optimized(graph)
    assert sorted(ops(graph)) == ["FusedElementwise", "FusedSoftmax"]
    assert only(graph, "FusedElementwise").results[0] == "e"
    assert_same(net, graph, FEEDS)


def test_no_region_has_more_than_two_results() -> None:
    net, x = new()
    graph = net.graph(*(net(op, x) for op in ("Sin", "Cos", "Exp", "Tanh")))
    optimized(graph)
    assert ops(graph) == ["FusedElementwise"] * 2
    assert_same(net, graph, FEEDS)


def test_no_cycle_is_made() -> None:
    """y feeds what z waits for: side by side they would wait for themselves."""
    net, x = new()
    y = net("Exp", x)
    graph = net.graph(net("Add", x, net("Softmax", y)), y)
    trace = schedule_only(graph, ElementwiseOp())
    trace = schedule_only(graph, HorizontalFusion())
    assert ops(graph) == ["FusedElementwise", "Softmax", "FusedElementwise"]
    assert any(entry.code is Code.CYCLE for entry in trace.entries)
    assert_same(net, graph, FEEDS)


def test_other_shapes_and_other_views_stay_apart() -> None:
    net, x = new()
    y, z = net("Exp", x), net("Sin", net("Transpose", x, perm=[0, 2, 1]))
    graph = net.graph(y, z, net("Add", x, net.input("r", 3, "batch", "seq", 24)))
    optimized(graph)
    assert ops(graph) == ["FusedElementwise"] * 3
    assert_same(net, graph, FEEDS | {"r": normal(3, 2, 5, 24, seed=3)})


def test_nine_operands_are_too_many() -> None:
    net, x = new()
    names = [net.input(f"r{i}", "batch", "seq", 24) for i in range(8)]
    total = x
    for name in names[:4]:
        total = net("Mul", total, name)
    other = x
    for name in names[4:]:
        other = net("Sub", other, name)
    graph = net.graph(net("Exp", total), net("Exp", other))
    optimized(graph)
    assert ops(graph) == ["FusedElementwise"] * 2
    assert_same(net, graph, FEEDS | {n: normal(2, 5, 24, seed=i) for i, n in enumerate(names)})
