"""Channels that are constant or unused between two products are neither computed nor stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.graphs import APART, Net, assert_same, every_phase, normal, reasons
from tracea_graph.policy import CostModel, Machine
from tracea_graph.rewrite import DecisionTrace, schedule_rewrites
from tracea_graph.ttg import TileGraph

Array = npt.NDArray[Any]
K, HIDDEN, N = 24, 96, 40


def planned(graph: TileGraph) -> DecisionTrace:
    cost = CostModel(Machine(), {"batch": 2, "seq": 5})
    return schedule_rewrites(graph, every_phase(), cost, APART)


def mlp(first: Array, last: Array, bias: Array, activation: str = "Relu") -> tuple[Net, TileGraph]:
    net = Net()
    x = net.input("x", "batch", "seq", K)
    hidden = net("Add", net("MatMul", x, net.const(first)), net.const(bias))
    return net, net.graph(net("MatMul", net(activation, hidden), net.const(last)))


def with_zeros(array: Array, at: Any) -> Array:
    array = array.copy()
    array[at] = 0.0
    return array


def hidden_sizes(graph: TileGraph) -> list[tuple[int, int]]:
    return [(r.params.k, r.params.n) for r in graph.regions()]


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid", "Softplus"])
def test_columns_of_zeros_are_constants_of_the_next_bias(activation: str) -> None:
    """ReLU of a negative constant among them."""
    dead = np.arange(0, 70)
    first, bias = with_zeros(normal(K, HIDDEN), (slice(None), dead)), normal(HIDDEN, seed=3)
    made, graph = mlp(first, normal(HIDDEN, N, seed=2), bias, activation)
    assert planned(graph).applied()["dead-channels"] == 1
    assert hidden_sizes(graph) == [(K, 32), (32, N)]  # 26 alive, in whole panels
    assert_same(made, graph, {"x": normal(2, 5, K, seed=4)})


def test_rows_of_zeros_are_channels_nobody_uses() -> None:
    last = with_zeros(normal(HIDDEN, N), np.arange(3, 83))
    made, graph = mlp(normal(K, HIDDEN, seed=1), last, normal(HIDDEN))
    assert planned(graph).applied()["dead-channels"] == 1
    assert hidden_sizes(graph) == [(K, 16), (16, N)]
    assert_same(made, graph, {"x": normal(2, 5, K, seed=4)})


def test_everything_dead_leaves_a_panel() -> None:
    made, graph = mlp(np.zeros((K, HIDDEN), np.float32), normal(HIDDEN, N), normal(HIDDEN))
    planned(graph)
    assert hidden_sizes(graph)[0] == (K, 16)
    assert_same(made, graph, {"x": normal(2, 5, K, seed=4)})


def test_transposed_weights_of_a_gemm() -> None:
    net = Net()
    x = net.input("x", "batch", K)
    dead = np.arange(20, 60)
    first = net.const(with_zeros(normal(HIDDEN, K), dead))
    hidden = net("Relu", net("Gemm", x, first, net.weight(HIDDEN), transB=1))
    y = net("Gemm", hidden, net.weight(N, HIDDEN), net.weight(N), transB=1)
    graph = net.graph(y)
    assert planned(graph).applied()["dead-channels"] == 1
    assert hidden_sizes(graph) == [(K, 64), (64, N)]
    assert_same(net, graph, {"x": normal(2, K, seed=4)})


def test_a_few_dead_channels_fill_no_panel() -> None:
    first = with_zeros(normal(K, HIDDEN), (slice(None), slice(0, 9)))
    _, graph = mlp(first, normal(HIDDEN, N), normal(HIDDEN))
    trace = planned(graph)
    assert any("too few dead channels" in r for r in reasons(trace, "dead-channels"))


def test_what_others_read_stays() -> None:
    net = Net()
    x = net.input("x", "batch", "seq", K)
    first = net.const(with_zeros(normal(K, HIDDEN), (slice(None), slice(0, 64))))
    hidden = net("Relu", net("MatMul", x, first))
    y = net("MatMul", hidden, net.weight(HIDDEN, N))
    made = net.graph(y, hidden)
    trace = planned(made)
    assert "dead-channels" not in trace.applied()
    assert any("has other readers" in r for r in reasons(trace, "dead-channels"))


def network(gamma: Array, beta: Array, pads: int, activation: str = "Relu") -> tuple[Net, str]:
    """Convolution, batch norm, activation, convolution."""
    net = Net()
    x = net.input("x", "batch", 8, 12, 12)
    channels = len(gamma)
    conv = net("Conv", x, net.weight(channels, 8, 3, 3), kernel_shape=[3, 3], pads=[1] * 4)
    figures = [net.const(v) for v in (gamma, beta, normal(channels, seed=5))]
    variance = net.const(np.abs(normal(channels, seed=6)) + 0.5)
    norm = net("BatchNormalization", conv, *figures, variance)
    size = 3 if pads else 1
    last = net.weight(24, channels, size, size)
    y = net("Conv", net(activation, norm), last, kernel_shape=[size] * 2, pads=[pads] * 4)
    return net, y


@pytest.mark.parametrize(
    ("pads", "activation", "sign", "left"),
    [(1, "Relu", -1, 32), (0, "Relu", 1, 32), (0, "Sigmoid", 1, 32), (1, "Sigmoid", 1, 64)],
    ids=["negative", "unpadded", "unpadded-sigmoid", "padded-sigmoid"],
)
def test_channels_of_zero_scale(pads: int, activation: str, sign: int, left: int) -> None:
    """A constant that is not 0 cannot be padded with, so it stays where there is padding."""
    gamma = with_zeros(normal(64, seed=2), np.arange(10, 42))
    beta = sign * np.abs(normal(64, seed=3))
    net, y = network(gamma, beta, pads, activation)
    graph = net.graph(y)
    planned(graph)
    filters = [r.params.filters for r in graph.regions() if hasattr(r.params, "filters")]
    assert filters == [left, 24]
    assert_same(net, graph, {"x": normal(2, 8, 12, 12, seed=4)})


def separable(
    first: Array, bias: Array, middle: Array, last: Array, pads: int, activation: str = "Relu"
) -> tuple[Net, TileGraph]:
    """1x1, 3x3 depthwise with a bias, 1x1, as mobile networks have them."""
    net, channels = Net(), len(first)
    x = net.input("x", "batch", 8, 12, 12)
    wide = net(activation, net("Conv", x, net.const(first), net.const(bias)))
    window = {"kernel_shape": [3, 3], "pads": [pads] * 4, "group": channels}
    shift = net.const(normal(channels, seed=8))
    deep = net(activation, net("Conv", wide, net.const(middle), shift, **window))
    return net, net.graph(net("Conv", deep, net.const(last)))


@pytest.mark.parametrize(
    ("where", "pads", "sign", "left"),
    [
        ("first", 1, -1, 32),
        ("first", 1, 1, 64),
        ("first", 0, 1, 32),
        ("middle", 1, 1, 32),
        ("last", 1, 1, 32),
        ("none", 1, 1, 64),
    ],
)
def test_dead_channels_through_a_depthwise_convolution(
    where: str, pads: int, sign: int, left: int
) -> None:
    """A constant that is not 0 is no longer one where it is padded with zeros."""
    dead = np.arange(10, 42)
    weights = {
        "first": normal(64, 8, 1, 1),
        "middle": normal(64, 1, 3, 3, seed=1),
        "last": normal(24, 64, 1, 1, seed=2),
    }
    if where in weights:
        at = (slice(None), dead) if where == "last" else dead
        weights[where] = with_zeros(weights[where], at)
    net, graph = separable(bias=sign * np.abs(normal(64, seed=3)), pads=pads, **weights)
    planned(graph)
    filters = [r.params.filters for r in graph.regions() if hasattr(r.params, "filters")]
    assert filters == [left, left, 24]
    assert_same(net, graph, {"x": normal(2, 8, 12, 12, seed=4)})
