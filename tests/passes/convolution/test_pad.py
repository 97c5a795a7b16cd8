"""Padding by computed sizes: what is read, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, only, ops, reasons, schedule_only
from tracea_graph.passes.convolution import pad
from tracea_graph.rewrite import RulePass


def sizes(net: Net, x: str, like: str, axis: int) -> tuple[str, str]:
    """Half of what is missing along an axis before, the rest behind: as torch writes it."""
    there, here = (net("Gather", net("Shape", v), net.const(axis, np.int64)) for v in (like, x))
    missing = net("Sub", there, here)
    before = net("Div", missing, net.const(2, np.int64))
    after = net("Sub", missing, before)
    zero = net.ints(0)
    return net("Unsqueeze", before, zero), net("Unsqueeze", after, zero)


def padded(net: Net, x: str, like: str) -> str:
    (top, bottom), (left, right) = sizes(net, x, like, 2), sizes(net, x, like, 3)
    pairs = net("Concat", left, right, top, bottom, net.ints(0, 0, 0, 0), axis=0)
    rows = net("Reshape", pairs, net.ints(-1, 2))
    turned = net("Slice", rows, net.ints(-1), net.ints(-(2**62)), net.ints(0), net.ints(-1))
    flat = net("Reshape", net("Transpose", turned, perm=[1, 0]), net.ints(-1))
    return net("Pad", x, net("Cast", flat, to=7), mode="constant")


@pytest.mark.parametrize("other", [(9, 7), (12, 10), (6, 5), (8, 7)])
def test_padding_to_another_size_and_cutting_to_it(other: tuple[int, int]) -> None:
    net = Net()
    x, like = net.input("x", "n", 3, "h", "w"), net.input("like", "n", 5, "a", "b")
    graph = net.graph(padded(net, x, like))
    schedule_only(graph, RulePass(pad.PAD))
    graph.prune()
    assert ops(graph) == ["FusedLayout"]
    assert only(graph, "FusedLayout").operands == ("x", "like")
    feeds = {"x": normal(2, 3, 8, 6), "like": normal(2, 5, *other)}
    assert_same(net, graph, feeds)


def test_constant_padding() -> None:
    net = Net()
    x = net.input("x", "n", 3, "h", "w")
    graph = net.graph(net("Pad", x, net.ints(0, 0, 1, -2, 0, 0, 3, 0)))
    schedule_only(graph, RulePass(pad.PAD))
    assert only(graph, "FusedLayout").params.sizes == (1, -2, 3, 0)
    assert_same(net, graph, {"x": normal(2, 3, 8, 6)})


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_padding_with_what_is_inside(mode: str) -> None:
    net = Net()
    x = net.input("x", "n", 3, "h", "w")
    graph = net.graph(net("Pad", x, net.ints(0, 0, 1, 4, 0, 0, 3, 0), mode=mode))
    schedule_only(graph, RulePass(pad.PAD))
    move = only(graph, "FusedLayout").params
    assert (move.kind, move.ints) == (mode, (1, 4, 3, 0))
    assert_same(net, graph, {"x": normal(2, 3, 8, 6)})


@pytest.mark.parametrize(
    ("pads", "attrs", "reason"),
    [
        ((0, 0, 1, 1, 0, 0, 1, 1), {"mode": "wrap"}, "its mode (wrap) is not supported"),
        (
            (0, 0, 1, -1, 0, 0, 1, 1),
            {"mode": "edge"},
            "an amount of padding is computed or negative",
        ),
        ((0, 1, 1, 1, 0, 0, 1, 1), {}, "batch or channels are padded"),
        (None, {}, "the amounts of padding are not known"),
    ],
)
def test_other_padding_stays(pads: Any, attrs: dict[str, Any], reason: str) -> None:
    net = Net()
    x = net.input("x", "n", 3, "h", "w")
    amounts = net.ids("pads", 8) if pads is None else net.ints(*pads)
    graph = net.graph(net("Pad", x, amounts, **attrs))
    trace = schedule_only(graph, RulePass(pad.PAD))
    assert ops(graph) == ["Pad"] and reasons(trace, "pad") == {reason}
