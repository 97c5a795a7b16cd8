"""Integers are dequantized in front of views, and after a lookup."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, ops, schedule_only
from tracea_graph.ir import DType
from tracea_graph.passes.quantized.dequantize_past_views import (
    DEQUANTIZE_EACH,
    QUANTIZE_PARTS,
    CancelQuantize,
    DequantizeFirst,
    GatherFirst,
    SelectFirst,
)
from tracea_graph.rewrite import RulePass


def test_a_transpose_of_integers_becomes_one_of_numbers() -> None:
    net = Net()
    s, z = net.const(np.float32(0.1)), net.const(5, np.uint8)
    q = net("QuantizeLinear", net.input("x", "n", 3, 8), s, z)
    turned = net("Transpose", q, perm=(0, 2, 1))
    graph = net.graph(net("Relu", net("DequantizeLinear", turned, s, z)))
    assert schedule_only(graph, DequantizeFirst()).applied() == {"dequantize-first": 1}
    assert ops(graph) == ["QuantizeLinear", "DequantizeLinear", "Transpose", "Relu"]


def test_other_readers_keep_the_view() -> None:
    net = Net()
    s, z = net.const(np.float32(0.1)), net.const(5, np.uint8)
    q = net("QuantizeLinear", net.input("x", "n", 3, 8), s, z)
    turned = net("Transpose", q, perm=(0, 2, 1))
    graph = net.graph(net("DequantizeLinear", turned, s, z), turned)
    assert schedule_only(graph, DequantizeFirst()).applied() == {}


def _split_again(net: Net, scale: float, shown: bool) -> list[str]:
    """Integers whose numbers are split into heads, then rounded with a scale."""
    s, z = net.const(np.float32(0.1)), net.const(5, np.uint8)
    q = net("QuantizeLinear", net.input("x", "n", 3, 8), s, z)
    x = net("Reshape", net("DequantizeLinear", q, s, z), net.ints(0, 0, 2, 4))
    turned = net("Transpose", x, perm=(0, 2, 1, 3))
    return [net("QuantizeLinear", turned, net.const(np.float32(scale)), z), *[turned] * shown]


def test_numbers_that_are_rounded_again_behind_views_stay_integers() -> None:
    net = Net()
    graph = net.graph(*_split_again(net, 0.1, False))
    assert schedule_only(graph, CancelQuantize()).applied() == {"cancel-quantize": 1}
    assert ops(graph) == ["QuantizeLinear", "Reshape", "Transpose"]
    assert_same(net, graph, {"x": normal(2, 3, 8)}, limit=1e-9)


@pytest.mark.parametrize("scale,shown", [(0.2, False), (0.1, True)])
def test_numbers_of_another_scale_or_reader_are_rounded(scale: float, shown: bool) -> None:
    net = Net()
    graph = net.graph(*_split_again(net, scale, shown))
    assert schedule_only(graph, CancelQuantize()).applied() == {}


def test_only_the_rows_that_are_looked_up_are_dequantized() -> None:
    net = Net()
    table = np.random.default_rng(0).integers(0, 255, (500, 300), np.uint8)
    s, z = net.const(np.float32(0.1)), net.const(5, np.uint8)
    numbers = net("DequantizeLinear", net.const(table, np.uint8), s, z)
    graph = net.graph(net("Gather", numbers, net.input("ids", "n", dtype=DType.I64)))
    assert schedule_only(graph, GatherFirst()).applied() == {"gather-first": 1}
    assert ops(graph) == ["Gather", "DequantizeLinear"]


def _silu(net: Net, *readers: str) -> list[str]:
    """A SiLU whose numbers are dequantized once, and what other operators make of them."""
    s, z = net.const(np.float32(0.1)), net.const(5, np.uint8)
    q = net("QuantizeLinear", net.input("x", "n", 3, 8), s, z)
    numbers = net("DequantizeLinear", q, s, z)
    silu = net("Mul", numbers, net("Sigmoid", numbers))
    return [silu, *(net(op, numbers) for op in readers)]


def test_every_elementwise_reader_dequantizes() -> None:
    net = Net()
    graph = net.graph(*_silu(net))
    assert schedule_only(graph, RulePass(DEQUANTIZE_EACH)).applied() == {"dequantize-each": 1}
    assert sorted(ops(graph)) == ["DequantizeLinear"] * 2 + ["Mul", "QuantizeLinear", "Sigmoid"]


def test_other_readers_keep_their_numbers() -> None:
    net = Net()
    graph = net.graph(*_silu(net, "Softmax"))
    assert schedule_only(graph, RulePass(DEQUANTIZE_EACH)).applied() == {"dequantize-each": 1}
    assert ops(graph).count("DequantizeLinear") == 3


def _again(net: Net, value: str, scale: float = 0.1, zero: int = 5) -> str:
    return net("QuantizeLinear", value, net.const(np.float32(scale)), net.const(zero, np.uint8))


def _numbers(net: Net) -> str:
    s, z = net.const(np.float32(0.1)), net.const(5, np.uint8)
    q = net("QuantizeLinear", net.input("x", "n", 4, 8, 6), s, z)
    return net("DequantizeLinear", q, s, z)


def test_parts_that_are_quantized_again_are_selected_from_integers() -> None:
    net = Net(19)
    parts = net.many("Split", 2, _numbers(net), net.ints(1, 3), axis=1)
    graph = net.graph(*(net("Transpose", _again(net, p), perm=(0, 2, 3, 1)) for p in parts))
    done = schedule_only(graph, SelectFirst(), CancelQuantize()).applied()
    assert done == {"select-first": 1, "cancel-quantize": 2}
    assert ops(graph) == ["QuantizeLinear", "Split", "Transpose", "Transpose"]
    assert_same(net, graph, {"x": normal(2, 4, 8, 6)})


@pytest.mark.parametrize(
    ("mode", "scale", "zero", "count"),
    [
        ("nearest", 0.1, 5, 1),
        ("linear", 0.1, 5, 0),
        ("nearest", 0.2, 5, 0),
        ("nearest", 0.1, 4, 0),
    ],
)
def test_a_resize_of_integers_takes_the_nearest_and_keeps_their_scale(
    mode: str, scale: float, zero: int, count: int
) -> None:
    net = Net(19)
    big = net("Resize", _numbers(net), "", net.const([1, 1, 2, 2]), mode=mode)
    graph = net.graph(net("Transpose", _again(net, big, scale, zero), perm=(0, 2, 3, 1)))
    done = schedule_only(graph, SelectFirst()).applied()
    assert done == ({"select-first": count} if count else {})
    if mode == "nearest":
        assert_same(net, graph, {"x": normal(2, 4, 8, 6)})


def test_numbers_that_something_else_reads_stay() -> None:
    net = Net(19)
    part = net("Slice", _numbers(net), net.ints(0), net.ints(2), net.ints(1))
    graph = net.graph(net("Transpose", _again(net, part), perm=(0, 2, 3, 1)), net("Relu", part))
    assert schedule_only(graph, SelectFirst()).applied() == {}


def test_what_is_concatenated_is_quantized_part_by_part() -> None:
    net = Net(19)
    numbers = _numbers(net)
    other = net("Sigmoid", net.input("y", "n", 4, 8, 6))
    graph = net.graph(_again(net, net("Concat", numbers, other, numbers, axis=1), 0.02, 9))
    assert schedule_only(graph, RulePass(QUANTIZE_PARTS)).applied() == {"quantize-parts": 1}
    assert ops(graph).count("QuantizeLinear") == 3
    assert_same(net, graph, {"x": normal(2, 4, 8, 6), "y": normal(2, 4, 8, 6, seed=1)})


def test_numbers_of_a_concatenation_without_integers_stay() -> None:
    net = Net(19)
    x, y = (net("Sigmoid", net.input(name, "n", 4)) for name in "xy")
    graph = net.graph(_again(net, net("Concat", x, y, axis=1)))
    assert schedule_only(graph, RulePass(QUANTIZE_PARTS)).applied() == {}
