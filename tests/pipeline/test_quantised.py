"""What is rounded to integers later is computed as before, bit by bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import Net, ops

from tracea_graph import Options
from tracea_graph.pipeline.planning import Planner
from tracea_graph.pipeline.quantised import rounded_later


def rounded(net: Net, x: str, dynamic: bool) -> str:
    """x as integers, and as numbers again."""
    if dynamic:
        q, scale, zero = net.many("DynamicQuantizeLinear", 3, x)
    else:
        scale, zero = net.const(np.float32(0.1)), net.const(0, np.int8)
        q = net("QuantizeLinear", x, scale, zero)
    return net("DequantizeLinear", q, scale, zero)


@pytest.mark.parametrize("dynamic", [False, True])
def test_only_what_comes_behind_is_rewritten(dynamic: bool, tmp_path: Path) -> None:
    net = Net()
    before = net("Relu", net("MatMul", net.input("x", "n", 8), net.weight(8, 8)))
    behind = net("Softmax", net("MatMul", rounded(net, before, dynamic), net.weight(8, 8)))
    graph = net.graph(behind)
    found = rounded_later(graph)
    assert before in found and behind not in found
    assert set(found.values()) == {
        f"{before!r} is rounded to integers, which one bit can tip over"
    }
    plan = Planner(graph, Options(tmp_path, keep="legal"), {"n": 2}).plan()
    left = ops(plan.graph)
    assert left[:2] == ["MatMul", "Relu"] and "Softmax" not in left


def test_constants_and_weights_hold_nothing_back() -> None:
    net = Net()
    scale, zero = net.const(np.float32(0.1)), net.const(0, np.int8)
    weight = net("DequantizeLinear", net("QuantizeLinear", net.weight(8, 8), scale, zero), scale,
                 zero)  # fmt: skip
    graph = net.graph(net("MatMul", net.input("x", "n", 8), weight))
    assert rounded_later(graph) == {}
