"""Rows flattened for a stretch of a network, and told apart behind it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import Net, assert_same, loaded, normal, ops, optimized, reasons
from tracea_graph.ttg import TileGraph

WIDTH = 16
FEEDS = {"x": normal(2, 5, WIDTH)}


def layer(net: Net, x: str) -> tuple[str, str]:
    """OPT's: norm, two products and a residual over all rows; the sum and it with items apart."""
    flat = net("Reshape", x, net.ints(-1, WIDTH))
    y = net("LayerNormalization", flat, net.weight(WIDTH), net.weight(WIDTH))
    y = net("Relu", net("Gemm", y, net.weight(WIDTH, 12), net.weight(12)))
    total = net("Add", flat, net("Gemm", y, net.weight(12, WIDTH), net.weight(WIDTH)))
    return total, net("Reshape", total, net("Shape", x))


def around(net: Net) -> tuple[str, str, str]:
    x = net.input("x", "batch", "seq", WIDTH)
    before = net("Relu", net("MatMul", x, net.weight(WIDTH, WIDTH)))
    total, after = layer(net, before)
    return total, after, net("MatMul", after, net.weight(WIDTH, WIDTH))


def test_items_stay_apart_and_all_is_one_program() -> None:
    net = Net()
    graph = loaded(net, around(net)[2])
    trace = optimized(graph)
    assert trace.applied()["unflatten-rows"] == 1
    assert ops(graph) == ["FusedRegion"]
    assert not {len(graph.spec(v).shape or ()) for r in graph.regions() for v in r.results} - {3}
    assert_same(net, graph, FEEDS)


def test_what_others_read_in_one_matrix_stays_so() -> None:
    net = Net()
    total, _, end = around(net)
    graph = loaded(net, end, total)
    trace = optimized(graph)
    assert reasons(trace, "unflatten-rows") == {f"{total!r} has other readers"}
    assert_same(net, graph, FEEDS)


def softmax(net: Net, rows: str) -> str:
    return net("Softmax", rows, axis=0)


def summed(net: Net, rows: str) -> str:
    return net("CumSum", rows, net.const(0, np.int64))


@pytest.mark.parametrize("mixing", [softmax, summed])
def test_rows_that_depend_on_each_other_stay_in_one_matrix(
    mixing: Callable[[Net, str], str],
) -> None:
    net = Net()
    x = net.input("x", "batch", "seq", WIDTH)
    rows = net("Reshape", net("Relu", x), net.ints(-1, WIDTH))
    mixed = mixing(net, rows)
    graph = loaded(net, net("Reshape", net("Neg", mixed), net("Shape", x)))
    trace = optimized(graph)
    assert any("may mix rows" in why for why in reasons(trace, "unflatten-rows"))
    assert_same(net, graph, FEEDS)


def test_a_vector_and_a_row_are_the_same_for_all_items() -> None:
    net = Net()
    x = net.input("x", "batch", "seq", WIDTH)
    flat = net("Reshape", x, net.ints(-1, WIDTH))
    y = net("Mul", net("Add", flat, net.weight(1, WIDTH)), net.weight(WIDTH))
    graph: TileGraph = loaded(net, net("Reshape", net("Sub", y, 2.0), net("Shape", x)))
    trace = optimized(graph)
    assert trace.applied()["unflatten-rows"] == 1
    assert_same(net, graph, FEEDS)


def test_one_row_of_one_item_is_no_vector() -> None:
    net = Net()
    x = net.input("x", 1, 1, WIDTH)
    flat = net("Reshape", x, net.ints(-1, WIDTH))
    y = net("Relu", net("Gemm", flat, net.weight(WIDTH, WIDTH), net.weight(WIDTH)))
    graph = loaded(net, net("Reshape", net("Neg", y), net.ints(1, 1, WIDTH)))
    optimized(graph)
    assert_same(net, graph, {"x": normal(1, 1, WIDTH)})
