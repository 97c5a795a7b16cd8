"""Parallel convolutions whose results are added up: when they are one, and when not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, only, ops, optimized, reasons
from tracea_graph.ops.conv import ConvParams
from tracea_graph.passes.convolution import merge_parallel_convs

FEEDS = {"x": normal(2, 16, 9, 7)}


def new() -> tuple[Net, str]:
    net = Net()
    return net, net.input("x", "n", 16, 9, 7)


def batch_norm(net: Net, x: str, channels: int) -> str:
    variance = net.const(np.abs(normal(channels, seed=77)) + 0.5)
    return net("BatchNormalization", x, *(net.weight(channels) for _ in range(3)), variance)


def conv(net: Net, x: str, o: int, kernel: tuple[int, ...], groups: int = 1, **attrs: Any) -> str:
    """One that keeps sizes, but for strides."""
    spread = attrs.get("dilations", (1,) * len(kernel))
    half = [d * (k // 2) for k, d in zip(kernel, spread, strict=True)]
    weight = net.weight(o, 16 // groups, *kernel)
    return net("Conv", x, weight, net.weight(o), group=groups, pads=[*half, *half], **attrs)


def folded(net: Net, y: str) -> ConvParams:
    """The only convolution that is left, which computes what all did."""
    graph = net.graph(net("Relu", y))
    optimized(graph)
    params = only(graph, "FusedConv").params
    assert ops(graph) == ["FusedConv"] and isinstance(params, ConvParams)
    assert_same(net, graph, FEEDS)
    return params


@pytest.mark.parametrize(("filters", "groups"), [(16, 1), (20, 1), (16, 16), (16, 4), (16, 2)])
@pytest.mark.parametrize("stride", [1, 2])
def test_branches_of_a_block_in_training_are_one(filters: int, groups: int, stride: int) -> None:
    net, x = new()
    steps = {"groups": groups, "strides": [stride, stride]}
    y = net("Add", conv(net, x, filters, (1, 1), **steps), conv(net, x, filters, (3, 3), **steps))
    if filters == 16 and stride == 1:
        y = net("Add", y, batch_norm(net, x, 16))
    y = net("Add", y, batch_norm(net, conv(net, x, filters, (3, 3), **steps), filters))
    assert folded(net, y).window.kernel == (3, 3)


def test_lines_add_to_a_square_that_comes_after_them() -> None:
    net, x = new()
    lines = net("Add", conv(net, x, 20, (1, 3)), conv(net, x, 20, (3, 1)))
    assert folded(net, net("Add", lines, conv(net, x, 20, (3, 3)))).window.kernel == (3, 3)


def test_taps_of_a_dilated_kernel_are_some_of_a_larger_one() -> None:
    net, x = new()
    far = conv(net, x, 20, (3, 3), dilations=[2, 2])
    y = net("Sum", conv(net, x, 20, (5, 5)), far, conv(net, x, 20, (3, 1)))
    assert folded(net, y).window.kernel == (5, 5)


def test_pointwise_convolutions_and_a_norm_add_up() -> None:
    net, x = new()
    y = net("Add", conv(net, x, 16, (1, 1)), conv(net, x, 16, (1, 1)))
    assert folded(net, net("Add", y, batch_norm(net, x, 16))).window.pointwise


REFUSED = {
    "a branch reads positions that the widest window does not": lambda net, x: (
        conv(net, x, 16, (1, 3)), conv(net, x, 16, (3, 1)),
    ),
    "its branches differ in channels, groups or strides": lambda net, x: (
        conv(net, x, 16, (3, 3)), conv(net, x, 16, (3, 3), groups=16),
    ),
    "its branches read different values": lambda net, x: (
        conv(net, x, 16, (3, 3)), conv(net, net("Relu", x), 16, (3, 3)),
    ),
    "the results of its branches differ in shape": lambda net, x: (
        conv(net, x, 16, (3, 3)), net("Conv", x, net.weight(1, 16, 1, 1)),
    ),
    "the sum has terms that are not convolutions of this input": lambda net, x: (
        net("Add", conv(net, x, 16, (3, 3)), conv(net, net("Relu", x), 16, (3, 3))), x,
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_other_sums_stay(reason: str) -> None:
    net, x = new()
    graph = net.graph(net("Add", *REFUSED[reason](net, x)))
    assert reason in reasons(optimized(graph), "merge-parallel-convs")
    assert_same(net, graph, FEEDS)


def test_a_branch_that_others_read_stays() -> None:
    net, x = new()
    y = conv(net, x, 16, (3, 3))
    graph = net.graph(net("Add", y, conv(net, x, 16, (1, 1))), y)
    optimized(graph)
    assert_same(net, graph, FEEDS)


def test_one_branch_twice_stays() -> None:
    net, x = new()
    y = conv(net, x, 16, (3, 3))
    graph = net.graph(net("Add", y, y))
    optimized(graph)
    assert_same(net, graph, FEEDS)


def test_many_sums_in_a_row_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was asked with all that follow it, and each of these with all that it adds up."""
    looks = 0

    def counted(*args: Any) -> bool:
        nonlocal looks
        looks += 1
        return only_read_by(*args)

    only_read_by = merge_parallel_convs.only_read_by
    monkeypatch.setattr(merge_parallel_convs, "only_read_by", counted)
    net, y = new()
    for _ in range(60):
        y = net("Add", y, net.weight(7))
    graph = net.graph(y)
    rule = merge_parallel_convs.MergeParallelConvs()
    for region in graph.regions():
        list(rule.propose(graph, region))
    assert looks <= 60 * 16 * 17
