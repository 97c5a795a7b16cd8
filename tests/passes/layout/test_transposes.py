"""Graphs with channels last: transposes sink and meet, convolutions see channels first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, ops, optimized, schedule_only
from tracea_graph.passes.layout.channels_last_transposes import CancelTransposes, SinkTransposes
from tracea_graph.passes.pointwise.decomposed_activations import SILU
from tracea_graph.rewrite import RulePass

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
Written = Callable[[Net, str, str], str]

FEEDS = {
    "x": normal(2, 12, 9, 7), "s": normal(2, 12, 1, 1, seed=1), "g": normal(2, 1, 1, 12, seed=2)
}  # fmt: skip


def turned(net: Net, value: str, last: bool = True) -> str:
    return net("Transpose", value, perm=LAST if last else FIRST)


def bias_and_clamp(net: Net, x: str, s: str) -> str:
    y = net("Relu", net("Add", turned(net, x), normal(12)))
    return net("Min", y, np.array([6.0], np.float32))


CASES: dict[str, Written] = {
    "a constant per channel": bias_and_clamp,
    "a constant over all": lambda net, x, s: net("Mul", normal(9, 7, 12), turned(net, x)),
    "a slope": lambda net, x, s: net("PRelu", turned(net, x), normal(1, 1, 12)),
    "two of them": lambda net, x, s: net(
        "Add", turned(net, x), net("Sigmoid", turned(net, x))
    ),
    "a gate per image": lambda net, x, s: net("Mul", turned(net, x), turned(net, s)),
    "a gate that lies so": lambda net, x, s: net(
        "Mul", turned(net, x), net("Sigmoid", net.input("g", "n", 1, 1, 12))
    ),
    "concatenated channels": lambda net, x, s: net(
        "Concat", turned(net, x), turned(net, x), axis=-1
    ),
    "padded": lambda net, x, s: net(
        "Pad", turned(net, x), np.array([0, 1, 2, 0, 0, 3, 4, 0], np.int64)
    ),
    "a slice": lambda net, x, s: net(
        "Slice", turned(net, x), net.ints(1, -3), net.ints(9, 99), net.ints(-1, 1), net.ints(2, 1)
    ),
    "a slice of the first axes": lambda net, x, s: net(
        "Slice", turned(net, x), net.ints(0, 2), net.ints(9, 5)
    ),
    "halves": lambda net, x, s: net(
        "Add", *net.many("Split", 2, turned(net, x), net.ints(6, 6), axis=-1)
    ),
    "rows": lambda net, x, s: net("Neg", net.many("Split", 3, turned(net, x), axis=1)[1]),
    "a mean that stays": lambda net, x, s: net(
        "ReduceMean", turned(net, x), axes=[1, 2], keepdims=1
    ),
}  # fmt: skip


def written(case: Written) -> tuple[Net, str]:
    net = Net()
    return net, case(net, net.input("x", "n", 12, 9, 7), net.input("s", "n", 12, 1, 1))


@pytest.mark.parametrize("name", CASES)
def test_transposes_sink_to_the_end(name: str) -> None:
    net, y = written(CASES[name])
    graph = net.graph(y)
    schedule_only(graph, SinkTransposes(), CancelTransposes())
    assert ops(graph)[-1] == "Transpose"
    large = [r for r in graph.regions() if r.op == "Transpose" and r.operands[0] == "x"]
    assert not large
    assert_same(net, graph, {name: FEEDS[name] for name in net.inputs})


@pytest.mark.parametrize("name", CASES)
def test_and_meet_there(name: str) -> None:
    net, y = written(CASES[name])
    graph = net.graph(net("Exp", turned(net, y, last=False)))
    schedule_only(graph, SinkTransposes(), CancelTransposes())
    assert all(r.operands[0] not in ("x", y) for r in graph.regions() if r.op == "Transpose")
    assert_same(net, graph, {name: FEEDS[name] for name in net.inputs})


def test_an_activation_that_is_matched_already() -> None:
    net = Net()
    x = turned(net, net.input("x", "n", 12, 9, 7))
    graph = net.graph(net("Mul", x, net("Sigmoid", x)))
    schedule_only(graph, RulePass(SILU))
    schedule_only(graph, SinkTransposes())
    assert ops(graph) == ["FusedElementwise", "Transpose"]
    assert_same(net, graph, {"x": FEEDS["x"]})


def test_a_mean_without_its_axes_needs_none() -> None:
    net = Net()
    x = net.input("x", "n", 12, 9, 7)
    graph = net.graph(net("ReduceMean", turned(net, x), axes=[1, 2], keepdims=0))
    schedule_only(graph, SinkTransposes())
    assert ops(graph) == ["ReduceMean"]
    assert_same(net, graph, {"x": FEEDS["x"]})


@pytest.mark.parametrize("axes", [[1], [-1], [0, 3]])
def test_means_over_other_axes(axes: list[int]) -> None:
    for keepdims in (0, 1):
        net = Net()
        x = net.input("x", "n", 12, 9, 7)
        graph = net.graph(net("ReduceMean", turned(net, x), axes=axes, keepdims=keepdims))
        schedule_only(graph, SinkTransposes())
        assert_same(net, graph, {"x": FEEDS["x"]})


def test_a_transpose_that_others_read_stays() -> None:
    net = Net()
    t = turned(net, net.input("x", "n", 12, 9, 7))
    graph = net.graph(net("Relu", t), t)
    schedule_only(graph, SinkTransposes())
    assert sorted(ops(graph)) == ["Relu", "Transpose", "Transpose"]
    assert_same(net, graph, {"x": FEEDS["x"]})


def test_an_operand_that_varies_otherwise_is_left_alone() -> None:
    net = Net()
    x, other = net.input("x", "n", 12, 9, 7), net.input("o", "n", 9, 7, 12)
    graph = net.graph(net("Add", turned(net, x), other))
    schedule_only(graph, SinkTransposes())
    assert ops(graph) == ["Transpose", "Add"]


def test_a_converted_net_is_one_program() -> None:
    """Every convolution between transposes of its own, biases and clamps behind them."""
    net = Net()

    def conv(x: str, i: int, o: int, kernel: int, group: int = 1) -> str:
        w = normal(o, i // group, kernel, kernel) * np.float32((i // group * kernel**2) ** -0.5)
        y = net("Conv", turned(net, x, last=False), net.const(w), group=group,
                pads=[kernel // 2] * 4)  # fmt: skip
        y = net("Add", turned(net, y), normal(o))
        return net("Min", net("Relu", y), np.array(6.0, np.float32))

    x = conv(net.input("x", "n", 8, 10, 3), 3, 16, 3)
    y = net("Add", conv(conv(x, 16, 32, 1), 32, 16, 1), x)
    y = conv(y, 16, 16, 3, 16)
    mean = net("ReduceMean", y, axes=[1, 2], keepdims=0)
    graph = net.graph(net("MatMul", mean, net.weight(16, 5)))
    optimized(graph)
    assert [op for op in ops(graph) if op != "FusedElementwise"] == ["FusedRegion"]
    assert_same(net, graph, {"x": normal(2, 8, 10, 3)})
