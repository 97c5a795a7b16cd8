"""Channel shuffles: one move, and units of a shuffled net as one program."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, only, ops, optimized, reasons

X = normal(2, 24, 5, 6)


def shuffled(net: Net, x: str, groups: int = 2, flat: bool = False) -> str:
    space = (30,) if flat else (5, 6)
    split = net("Reshape", x, net.ints(2, groups, 24 // groups, *space))
    turned = net("Transpose", split, perm=[0, 2, 1, 3] if flat else [0, 2, 1, 3, 4])
    return net("Reshape", turned, net.ints(*X.shape))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("groups", [2, 3, 24])
def test_three_operators_are_one_move(groups: int, flat: bool) -> None:
    net = Net()
    graph = net.graph(shuffled(net, net.input("x", *X.shape), groups, flat))
    optimized(graph)
    assert only(graph, "FusedLayout").params.ints == (groups, 24)
    assert_same(net, graph, {"x": X})


def test_a_unit_that_splits_and_shuffles_is_one_program() -> None:
    net = Net()
    x = net("Conv", net.input("x", *X.shape), net.weight(24, 24, 1, 1))
    left, right = net.many("Split", 2, x, net.ints(12, 12), axis=1)
    y = net("Relu", net("Conv", right, net.weight(12, 12, 1, 1)))
    y = net("Conv", y, net.weight(12, 1, 3, 3), group=12, pads=[1] * 4)
    joined = net("Concat", left, net("Relu", y), axis=1)
    z = net("Conv", shuffled(net, joined), net.weight(16, 24, 1, 1))
    graph = net.graph(net("Relu", z))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    assert_same(net, graph, {"x": X}, 3e-5)


def test_what_others_read_stays() -> None:
    net = Net()
    split = net("Reshape", net.input("x", *X.shape), net.ints(2, 2, 12, 5, 6))
    turned = net("Transpose", split, perm=[0, 2, 1, 3, 4])
    graph = net.graph(net("Reshape", turned, net.ints(*X.shape)), turned)
    trace = optimized(graph)
    assert "FusedLayout" not in ops(graph)
    assert any("is a graph output" in reason for reason in reasons(trace, "channel-shuffle"))


def test_another_shape_is_no_shuffle() -> None:
    net = Net()
    split = net("Reshape", net.input("x", *X.shape), net.ints(2, 2, 12, 5, 6))
    turned = net("Transpose", split, perm=[0, 2, 1, 3, 4])
    graph = net.graph(net("Reshape", turned, net.ints(2, 12, 10, 6)))
    trace = optimized(graph)
    assert "FusedLayout" not in ops(graph)
    assert any("shape of 'x'" in reason for reason in reasons(trace, "channel-shuffle"))


def test_every_second_channel_is_a_shuffle_and_a_half() -> None:
    net = Net()
    x = net("Conv", net.input("x", *X.shape), net.weight(24, 24, 1, 1))
    split = net("Reshape", x, net.ints(24, 2, 30))
    turned = net("Transpose", split, perm=[1, 0, 2])
    piles = net("Reshape", turned, net.ints(2, -1, 12, 5, 6))
    even, odd = (net("Gather", piles, net.const(i, np.int64), axis=0) for i in (0, -1))
    y = net("Relu", net("Conv", odd, net.weight(12, 12, 1, 1)))
    z = net("Conv", net("Concat", even, y, axis=1), net.weight(16, 24, 1, 1))
    graph = net.graph(net("Relu", z))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    assert_same(net, graph, {"x": X}, 3e-5)
