"""Attention gets the windows that were asked for, where it looks at its own sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import APART, Net, evaluate, every_phase, normal, reasons, relative_error
from tracea_graph.config import AttentionWindow
from tracea_graph.ir import DType
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.policy import CostModel, Machine
from tracea_graph.rewrite import DecisionTrace, schedule_rewrites
from tracea_graph.ttg import TileGraph

HEADS, HEAD = 2, 8


def attention(net: Net, x: str, keys: str, keep: str = "") -> str:
    """Heads of one attention over values ``[B,S,16]``; ``keep`` says which keys are no padding."""

    def heads(source: str, perm: tuple[int, ...]) -> str:
        wide = net("MatMul", source, net.weight(16, 16))
        return net("Transpose", net("Reshape", wide, net.ints(0, 0, HEADS, HEAD)), perm=perm)

    scores = net("MatMul", heads(x, (0, 2, 1, 3)), heads(keys, (0, 2, 3, 1)))
    scores = net("Mul", scores, HEAD**-0.5)
    scores = net("Where", keep, scores, -np.inf) if keep else scores
    shares = net("Softmax", scores, axis=-1)
    y = net("Transpose", net("MatMul", shares, heads(keys, (0, 2, 1, 3))), perm=(0, 2, 1, 3))
    return net("Reshape", y, net.ints(0, 0, 16))


def layers(count: int = 3) -> tuple[Net, TileGraph]:
    net = Net()
    x = net.input("x", "batch", "seq", 16)
    for _ in range(count):
        x = attention(net, x, x)
    return net, net.graph(x)


def planned(
    graph: TileGraph, *windows: AttentionWindow
) -> tuple[list[AttentionParams], DecisionTrace]:
    cost = CostModel(Machine(), {"batch": 1, "seq": 1024})
    trace = schedule_rewrites(graph, every_phase(windows=windows), cost, APART)
    return [r.params for r in graph.regions() if r.op == "FusedAttention"], trace


def test_without_a_wish_nothing_changes() -> None:
    found, trace = planned(layers()[1])
    assert [p.window for p in found] == [None] * 3 and "impose-window" not in trace.applied()


def test_the_last_window_that_names_a_layer_counts() -> None:
    found, _ = planned(layers()[1], AttentionWindow(64), AttentionWindow(16, 1, (1, 2)))
    assert [p.window for p in found] == [(32, 32), (8, 8), (32, 32)]
    assert [p.global_keys for p in found] == [0, 1, 0]


def test_a_query_with_padding_all_around_gives_zeros() -> None:
    """NaN would reach every query of the next layer: 0 times NaN is NaN."""
    net, keep = Net(), "keep"
    net.input(keep, "batch", 1, 1, "seq", dtype=DType.BOOL)
    x = net.input("x", "batch", "seq", 16)
    for _ in range(2):
        x = attention(net, x, x, keep)
    graph = net.graph(x)
    (first, second), _ = planned(graph, AttentionWindow(4))
    assert first.zero_rows == second.zero_rows == "masked"
    seen = np.ones((1, 1, 1, 32), bool)
    seen[..., :12] = False
    (y,) = evaluate(graph, {"x": normal(1, 32, 16), keep: seen})
    assert np.isfinite(y).all() and not y[:, :8].any() and y[:, 12:].all()


def test_layers_nobody_names_see_all() -> None:
    found, _ = planned(layers()[1], AttentionWindow(8, layers=(0, 2)))
    assert [p.window for p in found] == [(4, 4), (4, 4), None]


def test_attention_to_another_sequence_sees_all() -> None:
    net = Net()
    x, other = net.input("x", "batch", "seq", 16), net.input("m", "batch", "more", 16)
    found, trace = planned(net.graph(attention(net, x, other)), AttentionWindow(8))
    assert [p.window for p in found] == [None]
    assert reasons(trace, "impose-window") == {
        "attention 0 has seq queries and more keys: not self-attention"
    }


@pytest.mark.parametrize("seq", [1, 5, 13])
@pytest.mark.parametrize("global_keys", [0, 2])
def test_what_it_computes(seq: int, global_keys: int) -> None:
    """Half of the window on either side: the same as a mask of that shape."""
    net, graph = layers(1)
    planned(graph, AttentionWindow(4, global_keys))
    feeds = {"x": normal(2, seq, 16)}
    place = np.arange(seq)
    near = abs(place[:, None] - place) <= 2
    near |= (place < global_keys) | (place[:, None] < global_keys)
    same = Net()
    same.nodes, same.inputs, same.weights = list(net.nodes), net.inputs, dict(net.weights)
    scores = next(n for n in same.nodes if n.op_type == "Softmax")
    same.weights["near"] = np.where(near, 0, -np.inf).astype(np.float32)
    scores_in = scores.input[0]
    at = same.nodes.index(scores)
    scores.input[0] = "masked"
    same.nodes.insert(at, _add(scores_in))
    same.graph(net.nodes[-1].output[0])
    (expected,) = same.run(feeds)
    (actual,) = evaluate(graph, feeds)
    assert relative_error(np.asarray(actual), expected) < 1e-5


def _add(value: str) -> Any:
    from onnx import helper

    return helper.make_node("Add", [value, "near"], ["masked"])
