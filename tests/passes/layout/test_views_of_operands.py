"""Look-ups by counted positions and softmax over axes: which become views, and which stay."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, assert_same, loaded, normal, ops, schedule_only
from tracea_graph.ir import DType
from tracea_graph.passes.layout.item_rows import ItemRows
from tracea_graph.passes.layout.mask_positions import MaskPositions
from tracea_graph.passes.layout.softmax_over_axes import SOFTMAX_OVER_AXES
from tracea_graph.passes.layout.true_comparisons import TrueComparisons
from tracea_graph.passes.pointwise.elementwise import ElementwiseOp
from tracea_graph.passes.pointwise.reductions import ARG_REDUCE
from tracea_graph.passes.pointwise.vertical_fusion import VerticalFusion
from tracea_graph.rewrite import RulePass

MASK = np.arange(24).reshape(3, 8) % 3


def size(net: Net, value: str, axis: int) -> str:
    return net("Gather", net("Shape", value), net.const(axis, np.int64), axis=0)


def count(net: Net, length: str, *new: int, start: int = 0) -> str:
    """Count up along an axis beside axes of size 1."""
    first, one = net.const(start, np.int64), net.const(1, np.int64)
    return net("Unsqueeze", net("Range", first, length, one), net.ints(*new))


def joined(net: Net, positions: list[str]) -> str:
    shape = net("Shape", net("Max", *positions))
    parts = [net("Unsqueeze", net("Expand", p, shape), np.array([-1])) for p in positions]
    return net("Concat", *parts, axis=-1)


def inputs(net: Net) -> tuple[str, str, str]:
    """Batch and new keys, past keys, and a mask of more items than the batch has."""
    x, past = net.input("x", "batch", "n", 4), net.input("past", "batch", "p", 4)
    return x, past, net.ids("mask", "items", "keys")


FEEDS = {"x": normal(2, 5, 4), "past": normal(2, 2, 4, seed=2), "mask": MASK}


def test_the_leading_part_of_a_mask_is_a_slice() -> None:
    net = Net(18)
    x, past, mask = inputs(net)
    both = net("Add", size(net, past, 1), size(net, x, 1))
    positions = [count(net, size(net, x, 0), 1, 2), count(net, both, 0, 1)]
    graph = loaded(net, net("GatherND", mask, joined(net, positions)))
    schedule_only(graph, MaskPositions())
    graph.prune()
    assert ops(graph) == ["FusedRegion", "FusedRegion", "FusedElementwise"]
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize("column", [False, True])
def test_leading_rows_of_a_flat_mask(column: bool) -> None:
    net = Net(18)
    x, _, mask = inputs(net)
    flat = net("Flatten", mask, axis=2) if column else net("Reshape", mask, net.ints(-1))
    rows = net("Mul", count(net, size(net, x, 0), 1, 2), size(net, mask, 1))
    positions = net("Add", rows, count(net, size(net, mask, 1), 0, 1))
    seen = net("Gather", flat, positions, axis=0)
    if column:
        seen = net("Reshape", net("Reshape", seen, net.ints(-1)), net("Shape", positions))
    graph = loaded(net, seen)
    schedule_only(graph, MaskPositions())
    graph.prune()
    assert ops(graph) == ["FusedRegion", "FusedElementwise"]
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize("kind", ["step", "start", "columns", "order"])
def test_other_positions_are_looked_up(kind: str) -> None:
    """Rows of another length, other first columns, too few columns, and columns first."""
    net = Net(18)
    x, past, mask = inputs(net)
    flat = net("Reshape", mask, net.ints(-1))
    step = size(net, x, 1) if kind == "step" else size(net, mask, 1)
    columns = size(net, past, 1) if kind == "columns" else size(net, mask, 1)
    last = count(net, columns, 0, 1, start=int(kind == "start"))
    if kind == "order":
        last = count(net, columns, 1, 2)
    rows = count(net, size(net, x, 0), *((0, 1) if kind == "order" else (1, 2)))
    positions = net("Add", net("Mul", rows, step), last)
    graph = loaded(net, net("Gather", flat, positions, axis=0))
    schedule_only(graph, MaskPositions())
    assert "FusedElementwise" not in ops(graph)


@pytest.mark.parametrize("kind", ["argmax", "numbers", "fewer"])
def test_rows_of_items_need_an_argmax_over_all_of_them(kind: str) -> None:
    net = Net(18)
    x = net.input("x", "batch", "n", 4)
    scores = net.mean(x, axis=1 if kind == "fewer" else 2, keepdims=0)
    place = net("ArgMax", scores, axis=-1, keepdims=0)
    if kind == "numbers":
        place = net("Cast", net.mean(scores, axis=1, keepdims=0), to=DType.I64.onnx)
    first = net("Mul", net("Range", np.array(0), size(net, x, 0), np.array(1)), size(net, x, 1))
    row = net("Gather", net("Flatten", x, axis=2), net("Add", place, first), axis=0)
    graph = loaded(net, row)
    schedule_only(graph, RulePass(ARG_REDUCE))
    schedule_only(graph, ItemRows())
    graph.prune()
    assert ("FusedGatherElements" in ops(graph)) == (kind == "argmax")
    if kind == "argmax":
        assert_same(net, graph, {"x": normal(3, 5, 4)})


@pytest.mark.parametrize(
    ("opset", "dims", "axis", "found"),
    [
        (11, ("b", 4, 5), 1, True), (11, (2, 4, 5), 0, True), (13, ("b", 4, 5), 1, False),
        (11, ("b", 4, "w"), 1, False), (11, ("b", 4, 0), 1, False), (11, ("b", 5), 0, False),
    ],
)  # fmt: skip
def test_softmax_over_several_axes_of_known_size(
    opset: int, dims: tuple[int | str, ...], axis: int, found: bool
) -> None:
    net = Net(opset)
    graph = loaded(net, net("Softmax", net.input("x", *dims), axis=axis))
    trace = schedule_only(graph, RulePass(SOFTMAX_OVER_AXES))
    assert ("FusedSoftmax" in ops(graph)) == found
    if found:
        assert_same(net, graph, {"x": normal(2, 4, 5)})
    else:
        assert [e.verdict for e in trace.entries] == ["missed"]


@pytest.mark.parametrize(
    ("op", "number", "start", "dropped"),
    [
        ("GreaterOrEqual", 0, 0, True), ("Greater", -1, 0, True), ("Less", -1, 0, True),
        ("LessOrEqual", 0, 0, True), ("Greater", 0, 0, False), ("LessOrEqual", 1, 0, False),
        ("GreaterOrEqual", 1, 0, False),
    ],
)  # fmt: skip
def test_conditions_that_hold_everywhere_are_dropped(
    op: str, number: int, start: int, dropped: bool
) -> None:
    net = Net(18)
    x, mask = net.input("x", "batch", "n", 4), net.input("seen", "batch", 1, "n", dtype=DType.BOOL)
    positions = count(net, size(net, x, 1), 0, 2, start=start)
    sides = (positions, net.const(number, np.int64))
    known = net(op, *(sides if op[0] == "G" else sides[::-1]))
    both = net("And", net("And", net.const(True, np.bool_), known), mask)
    graph = loaded(net, both)
    schedule_only(graph, ElementwiseOp())
    schedule_only(graph, VerticalFusion())
    schedule_only(graph, TrueComparisons())
    graph.prune()
    assert (ops(graph) == ["FusedRegion"]) == dropped
    feeds = {"x": normal(2, 5, 4), "seen": np.arange(10).reshape(2, 1, 5) % 3 > 0}
    if dropped:
        assert_same(net, graph, feeds)
