"""Reductions and softmax become regions; elementwise neighbours join them where they may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.graphs import (
    LEGAL,
    Net,
    assert_same,
    normal,
    only,
    ops,
    optimized,
    reasons,
    schedule_only,
)
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.backend import CPU
from tracea_graph.ops.reduction import REDUCTIONS
from tracea_graph.ops.top_k import TopKParams
from tracea_graph.passes.layout.gather_elements import GATHER_ELEMENTS
from tracea_graph.passes.pointwise import reductions
from tracea_graph.rewrite import Phase, RulePass

LIFT = (*map(RulePass, reductions.CONVERT_RULES),)
FEEDS = {"x": np.abs(normal(2, 5, 3, 16)) + 0.1}
OPERATORS = [op for op, _ in REDUCTIONS.values()] + ["ReduceL2", "ReduceLogSum"]


def new(opset: int = 20) -> tuple[Net, str]:
    net = Net(opset)
    return net, net.input("x", "batch", "seq", 3, 16)


def reduced(net: Net, op: str, x: str, *axes: int, **attrs: Any) -> str:
    """A reduction as the opset spells it."""
    if net.opset < (13 if op == "ReduceSum" else 18):
        return net(op, x, axes=list(axes), **attrs)
    return net(op, x, net.ints(*axes), **attrs)


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("op", OPERATORS)
def test_a_reduction_is_a_region(op: str, opset: int) -> None:
    for axes, keepdims in (((-1,), 1), ((1, 3), 0), ((0, 1, 2, 3), 1)):
        net, x = new(opset)
        graph = net.graph(reduced(net, op, x, *axes, keepdims=keepdims))
        trace = schedule_only(graph, *LIFT)
        assert trace.applied() == {"reduce": 1}
        params = only(graph, "FusedReduce").params
        assert params.axes == tuple(a if a < 0 else a - 4 for a in axes)
        assert params.keepdims == bool(keepdims)
        assert_same(net, graph, FEEDS, 2e-6)


def test_no_axes_are_every_axis_or_none() -> None:
    net, x = new()
    graph = net.graph(net("ReduceSum", x))
    schedule_only(graph, *LIFT)
    assert only(graph, "FusedReduce").params.axes == (-4, -3, -2, -1)
    assert_same(net, graph, FEEDS)
    net, x = new()
    trace = schedule_only(net.graph(net("ReduceSum", x, noop_with_empty_axes=1)), *LIFT)
    assert reasons(trace, "reduce") == {"it reduces no axis"}


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_a_global_pool_is_a_reduction(op: str) -> None:
    net, x = new()
    graph = net.graph(net(op, x))
    schedule_only(graph, *LIFT)
    assert only(graph, "FusedReduce").params.axes == (-2, -1)
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize("axis", [-1, 1, 2])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_is_a_region(op: str, axis: int) -> None:
    net, x = new()
    graph = net.graph(net(op, x, axis=axis))
    assert schedule_only(graph, *LIFT).applied() == {"softmax": 1}
    assert_same(net, graph, FEEDS)


def test_softmax_before_opset_13_flattens() -> None:
    net, x = new(11)
    trace = schedule_only(net.graph(net("Softmax", x)), *LIFT)
    assert reasons(trace, "softmax") == {"it normalises over several axes at once"}
    net, x = new(11)
    graph = net.graph(net("Softmax", x, axis=3))
    assert schedule_only(graph, *LIFT).applied() == {"softmax": 1}
    assert_same(net, graph, FEEDS)


def test_integers_and_open_axes_stay() -> None:
    net = Net(20)
    i = net.input("i", 3, 4, dtype=DType.I32)
    trace = schedule_only(net.graph(net("ReduceSum", i)), *LIFT)
    assert reasons(trace, "reduce") == {"'i' is not float32"}
    net = Net(20)
    x, axes = net.input("x", 3, 4), net.ids("a", 1)
    trace = schedule_only(net.graph(net("ReduceSum", x, axes)), *LIFT)
    assert reasons(trace, "reduce") == {"the axes 'a' are not constant"}


# ---- decomposed softmax ------------------------------------------------------------------


def spelled(net: Net, x: str, axis: int, log: bool, last: int | None = None) -> str:
    d = net("Sub", x, reduced(net, "ReduceMax", x, axis))
    total = reduced(net, "ReduceSum", net("Exp", d), axis if last is None else last)
    return net("Sub", d, net("Log", total)) if log else net("Div", net("Exp", d), total)


@pytest.mark.parametrize("axis", [-1, 2])
@pytest.mark.parametrize("log", [False, True])
def test_softmax_spelled_out(log: bool, axis: int) -> None:
    net, x = new()
    d = net("Sub", x, reduced(net, "ReduceMax", x, axis))
    e = net("Exp", d)
    total = reduced(net, "ReduceSum", e, axis)
    graph = net.graph(net("Sub", d, net("Log", total)) if log else net("Div", e, total))
    trace = schedule_only(graph, *map(RulePass, reductions.MATCH_RULES))
    assert trace.applied() == {"decomposed-log-softmax" if log else "decomposed-softmax": 1}
    assert ops(graph) == ["FusedSoftmax"]
    assert_same(net, graph, FEEDS)


def test_a_sum_over_another_axis_is_no_softmax() -> None:
    net, x = new()
    d = net("Sub", x, reduced(net, "ReduceMax", x, -1))
    e = net("Exp", d)
    graph = net.graph(net("Div", e, reduced(net, "ReduceSum", e, 1)))
    trace = schedule_only(graph, *map(RulePass, reductions.MATCH_RULES))
    assert reasons(trace, "decomposed-softmax") == {
        "its maximum and its sum are not over the same single axis"
    }


# ---- neighbours --------------------------------------------------------------------------

AROUND: dict[str, tuple[Callable[[Net, str], str], str, str]] = {
    "squares above a limit": (
        lambda n, x: n("Relu", reduced(n, "ReduceSum", n("Mul", n("Sub", x, 1.0), x), -1)),
        "full|sub(0,1.0);mul(1,0)|2", "full|relu(0)|1",
    ),
    "a gate": (
        lambda n, x: n(
            "Add", n("Sigmoid", n("GlobalAveragePool", x)), n.input("g", 1, "seq", 1, 1)
        ),
        "", "full,full|sigmoid(0);add(2,1)|3",
    ),
    "a weighted mean": (
        lambda n, x: reduced(n, "ReduceMean", n("Mul", x, n.input("w", "seq", 1, 1)), 1, 2),
        "full,col|mul(0,1)|2", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AROUND)
def test_elementwise_neighbours_join_a_reduction(name: str) -> None:
    write, before, after = AROUND[name]
    net, x = new()
    graph = net.graph(write(net, x))
    optimized(graph)
    assert ops(graph) == ["FusedReduce"]
    params = only(graph, "FusedReduce").params
    assert (params.prologue.text if params.prologue else "") == before
    assert (params.epilogue.text if params.epilogue else "") == after
    feeds = {**FEEDS, "g": normal(1, 5, 1, 1, seed=1), "w": normal(5, 1, 1, seed=2)}
    assert_same(net, graph, {n: feeds[n] for n in net.inputs}, 2e-6)


def test_scale_and_mask_join_a_softmax() -> None:
    net = Net(20)
    x = net.input("x", "batch", 3, "seq", "seq")
    mask = net.input("m", "batch", 1, 1, "seq", dtype=DType.BOOL)
    scores = net("Where", mask, net("Mul", x, 0.125), -1e9)
    graph = net.graph(net("Softmax", scores, axis=-1))
    optimized(graph)
    assert ops(graph) == ["FusedSoftmax"]
    keep = np.ones((2, 1, 1, 5), bool)
    keep[1, 0, 0, 3:] = False
    assert_same(net, graph, {"x": normal(2, 3, 5, 5), "m": keep})


def test_a_value_others_read_is_not_absorbed() -> None:
    net, x = new()
    e = net("Exp", x, name="e")
    graph = net.graph(net("Softmax", e, axis=-1), e)
    trace = optimized(graph)
    assert reasons(trace, "reduce-prologue") == {"'e' has other readers"}
    assert sorted(ops(graph)) == ["FusedElementwise", "FusedSoftmax"]


def test_a_broadcast_value_is_not_absorbed() -> None:
    net = Net(20)
    e = net("Exp", net.input("r", "seq", 16))
    y = net("Softmax", net("Add", net.input("x", "batch", "seq", 16), e), axis=-1)
    trace = optimized(net.graph(y))
    assert any("is broadcast" in r for r in reasons(trace, "reduce-prologue"))


def test_an_axis_that_is_not_there_is_no_softmax() -> None:
    """onnx's own inference cuts it to 32 bits, of which -2 is left."""
    net, x = new()
    graph = net.graph(net("Softmax", x, axis=-(2**42) - 2))
    trace = schedule_only(graph, *LIFT)
    assert reasons(trace, "softmax") == {f"'x' has no axis {-(2**42) - 2}"}


@pytest.mark.parametrize("attrs", [{}, {"axis": -1}, {"axis": 2, "keepdims": 0}])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("opset", [11, 13])
def test_an_index_is_a_region(op: str, attrs: dict[str, int], opset: int) -> None:
    net, x = new(opset)
    graph = net.graph(net(op, x, **attrs))
    assert schedule_only(graph, *LIFT).applied() == {"arg-reduce": 1}
    params = only(graph, "FusedArg").params
    assert params.axis == (attrs.get("axis", 0) - 4) % 4 - 4
    assert params.keepdims == bool(attrs.get("keepdims", 1)) and not params.select_last
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize("opset", [1, 10, 11, 20])
@pytest.mark.parametrize("axis", [-1, 3])
def test_the_best_of_a_row_are_a_region(opset: int, axis: int) -> None:
    net, x = new(opset)
    k, attrs = ((), {"k": 4}) if opset < 10 else ((net.ints(4),), {})
    graph = net.graph(*net.many("TopK", 2, x, *k, axis=axis, **attrs))
    assert schedule_only(graph, *LIFT).applied() == {"top-k": 1}
    assert only(graph, "FusedTopK").params == TopKParams(4)
    assert_same(net, graph, {"x": np.round(FEEDS["x"])})


def test_the_smallest_and_their_places_alone() -> None:
    net, x = new()
    graph = net.graph(net.many("TopK", 2, x, net.ints(16), largest=0)[1])
    optimized(graph)
    assert only(graph, "FusedTopK").params == TopKParams(16, largest=False)
    assert_same(net, graph, {"x": np.round(FEEDS["x"])})


def test_the_best_of_a_product_are_part_of_its_program() -> None:
    net = Net()
    x = net.input("x", "batch", "seq", 32)
    graph = net.graph(*net.many("TopK", 2, net("MatMul", x, net.weight(32, 100)), net.ints(5)))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    assert_same(net, graph, {"x": normal(2, 7, 32)})


def test_what_no_best_are_chosen_of() -> None:
    net, x = new()
    ends = {
        "axis": net.many("TopK", 2, x, net.ints(2), axis=1),
        "order": net.many("TopK", 2, x, net.ints(2), sorted=0),
        "many": net.many("TopK", 2, x, net.input("k", 1, dtype=DType.I64)),
        "type": net.many("TopK", 2, net.input("i", 4, dtype=DType.I8), net.ints(2)),
        "none": net.many("TopK", 2, x, net.ints(0)),
    }
    trace = schedule_only(net.graph(*(v for pair in ends.values() for v in pair)), *LIFT)
    assert reasons(trace, "top-k") == {
        "it is not along the last axis",
        "its sorted is 0, which leaves the order of results open",
        "the number of elements to choose, 'k', is not constant",
        "'i' is not float32, int32 or int64",
        "kernels do not choose 0 of 16 elements",
    }


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64])
def test_integers_are_chosen_where_a_backend_has_kernels(dtype: DType) -> None:
    net = Net()
    i, ids = net.input("i", 3, 5, dtype=dtype), net.ids("ids", 3, 2)
    made = [
        net("ArgMin", i, axis=0),
        *net.many("TopK", 2, i, net.ints(2)),
        net("GatherElements", i, ids, axis=1),
    ]
    lift = (*LIFT, RulePass(GATHER_ELEMENTS))
    graph = net.graph(*made)
    schedule_only(graph, *lift)
    assert ops(graph) == ["FusedArg", "FusedTopK", "FusedGatherElements"]
    numbers = (np.arange(15).reshape(3, 5) * 7 % 15).astype(
        np.int32 if dtype is DType.I32 else np.int64
    )
    feeds = {"i": numbers, "ids": np.array([[0, 4], [1, 1], [-1, 2]])}
    assert_same(net, graph, feeds)
    own = replace(LEGAL, lacks=CPU.lacks)
    graph = net.graph(*made)
    trace = optimized(graph, (Phase("test", lift),), own)
    assert ops(graph) == ["ArgMin", "TopK", "GatherElements"]
    rules = ("arg-reduce", "top-k", "gather-elements")
    assert [reasons(trace, rule) for rule in rules] == [{"'i' is not float32"}] * 3


def test_a_chain_of_integers_joins_no_index() -> None:
    net = Net()
    x = net("Cast", net("Mul", net.input("x", 3, 5), 9.0), to=DType.I32.onnx)
    graph = net.graph(net("ArgMax", x, axis=1))
    trace = schedule_only(graph, *LIFT, reductions.ReducePrologue())
    assert reasons(trace, "reduce-prologue") == {f"{x!r} is not float32"}
    assert_same(net, graph, {"x": normal(3, 5)})


def test_of_equal_elements_the_last_if_asked_for() -> None:
    net, x = new()
    graph = net.graph(net("ArgMax", x, axis=1, select_last_index=1))
    schedule_only(graph, *LIFT)
    assert only(graph, "FusedArg").params.select_last
    assert_same(net, graph, {"x": np.round(FEEDS["x"])})


def test_a_chain_joins_an_index() -> None:
    net, x = new()
    graph = net.graph(net("ArgMax", net("Mul", net("Tanh", x), -2.0), axis=1, keepdims=0))
    optimized(graph)
    assert ops(graph) == ["FusedArg"]
    assert only(graph, "FusedArg").params.prologue is not None
    assert_same(net, graph, FEEDS)


def test_what_no_index_is_made_of() -> None:
    """Another type, an unknown rank, nothing to choose from."""
    net = Net(20)
    net("ArgMax", net.input("i", 4, 4, dtype=DType.I8), axis=1, name="a")
    trace = schedule_only(net.graph("a"), *LIFT)
    assert reasons(trace, "arg-reduce") == {"'i' is not float32, int32 or int64"}
    net = Net(20)
    shape = net.input("s", "rank", dtype=DType.I64)
    net("ArgMax", net("Reshape", net.input("x", "n"), shape, name="r"), name="a")
    trace = schedule_only(net.graph("a"), *LIFT)
    assert reasons(trace, "arg-reduce") == {"the rank of 'r' is not within 1 .. 6"}
    net = Net(20)
    net("ArgMax", net.input("e", 3, 0), axis=1, name="a")
    trace = schedule_only(net.graph("a"), *LIFT)
    assert reasons(trace, "arg-reduce") == {"kernels do not count 0 elements of 'e'"}
