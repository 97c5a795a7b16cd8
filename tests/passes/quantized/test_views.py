"""Integers are dequantized in front of views, and after a lookup."""

from __future__ import annotations

import numpy as np

from tests.graphs import Net, ops, schedule_only
from tracea_graph.ir import DType
from tracea_graph.passes.quantized.dequantize_past_views import (
    DEQUANTIZE_EACH,
    DequantizeFirst,
    GatherFirst,
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
