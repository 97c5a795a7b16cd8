"""Rows nobody reads are not computed: selections move before what computes rows apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import (
    APART,
    Net,
    assert_same,
    evaluate,
    normal,
    ops,
    optimized,
    reasons,
    schedule_only,
)
from tracea_graph.ir import DType
from tracea_graph.passes.layout.hoist_slice import HoistSlice
from tracea_graph.ttg import TileGraph

Write = Callable[[Net, str], str]
X = {"x": normal(2, 5, 16)}
LAST = np.array(-1, np.int64)


def sliced(net: Net, value: str, start: int, end: int, axis: int = 1) -> str:
    return net("Slice", value, *(net.ints(i) for i in (start, end, axis)))


def layer_norm(net: Net, x: str) -> str:
    return net("LayerNormalization", x, net.weight(16), net.weight(16), axis=-1)


def written_out_norm(net: Net, x: str) -> str:
    centred = net("Sub", x, net.mean(x))
    return net(
        "Div", centred, net("Sqrt", net("Add", net.mean(net("Mul", centred, centred)), 1.0))
    )


def flattened(net: Net, x: str) -> str:
    flat = net("Reshape", x, net.ints(-1, 16))
    return net("Reshape", net("Gemm", flat, net.weight(16, 24), net.weight(24)),
               net.ints(2, -1, 24))  # fmt: skip


def attended(net: Net, x: str) -> str:
    """Two heads; the rows of scores are those of the queries."""

    def heads(value: str, *perm: int) -> str:
        return net("Transpose", net("Reshape", value, net.ints(0, 0, 2, 8)), perm=list(perm))

    q = heads(net("MatMul", x, net.weight(16, 16)), 0, 2, 1, 3)
    k = heads(net("MatMul", x, net.weight(16, 16)), 0, 2, 3, 1)
    v = heads(net("MatMul", x, net.weight(16, 16)), 0, 2, 1, 3)
    scores = net("Add", net("MatMul", q, k), net.input("mask", 2, 1, 5, 5))
    mixed = net("MatMul", net("Softmax", scores, axis=-1), v)
    return net("Reshape", net("Transpose", mixed, perm=[0, 2, 1, 3]), net.ints(0, 0, 16))


CASES: dict[str, tuple[Write, set[str]]] = {
    "a product": (lambda n, x: n("MatMul", x, n.weight(16, 24)), {"MatMul"}),
    "a product of flattened rows": (flattened, {"Gemm"}),
    "a residual": (lambda n, x: n("Add", x, n("MatMul", x, n.weight(16, 16))), {"Add", "MatMul"}),
    "constants with and without the axis": (
        lambda n, x: n("Where", n("Less", x, 0.0), n("Mul", x, n.weight(5, 1)),
                       n("Sub", x, n.weight(16))),
        {"Where", "Less", "Mul", "Sub"},
    ),
    "a norm": (layer_norm, {"LayerNormalization"}),
    "a norm written out": (written_out_norm, {"Div", "ReduceMean"}),
    "softmax": (lambda n, x: n("Softmax", x, axis=-1), {"Softmax"}),
    "a guard against NaN": (
        lambda n, x: n("Where", n("IsNaN", n("Softmax", x, axis=-1)), 0.0, n("Relu", x)),
        {"Where", "IsNaN", "Softmax", "Relu"},
    ),
    "concatenated columns": (
        lambda n, x: n("Concat", n("Relu", x), n("MatMul", x, n.weight(16, 3)), axis=-1),
        {"Concat", "Relu", "MatMul"},
    ),
    "axes turned, parted and added": (
        lambda n, x: n("Squeeze", n("Unsqueeze", n("Reshape", n("Transpose", n(
            "Relu", x), perm=[1, 0, 2]), n.ints(5, 2, 4, 4)), n.ints(0)), n.ints(0)),
        {"Relu"},
    ),
    "attention": (attended, {"MatMul", "Softmax", "Add"}),
}  # fmt: skip
PICKS: dict[str, Write] = {
    "the last": lambda n, y: n("Gather", y, LAST, axis=1),
    "the first, its axis kept": lambda n, y: n("Gather", y, np.array([0], np.int64), axis=1),
    "a slice at the end": lambda n, y: sliced(n, y, -1, 2**31 - 1),
    "two rows": lambda n, y: sliced(n, y, 1, 3),
}


def selected(net: Net, case: str, pick: str) -> str:
    y = CASES[case][0](net, net.input("x", 2, 5, 16))
    if case == "axes turned, parted and added":
        y = net("Transpose", y, perm=[1, 0, 2, 3])
    return PICKS[pick](net, y)


def feeds(net: Net) -> dict[str, np.ndarray]:
    return {k: v for k, v in {**X, "mask": normal(2, 1, 5, 5, seed=4)}.items() if k in net.inputs}


def rows_of(graph: TileGraph, op: str) -> set[object]:
    """How many rows the operators of a kind compute."""
    return {s for r in graph.regions() if r.op == op
            for s in [(graph.spec(r.results[0]).shape or ())]}  # fmt: skip


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("case", CASES)
def test_only_what_is_selected_is_computed(case: str, pick: str) -> None:
    net = Net()
    graph = net.graph(selected(net, case, pick))
    whole = {op: rows_of(graph, op) for op in CASES[case][1]}
    schedule_only(graph, HoistSlice())
    for op, before in whole.items():
        after = rows_of(graph, op)
        assert after and (not after & before or op == "MatMul"), f"{op} computes all rows"
    if case != "attention":  # keys and values are needed of every row
        assert not {(2, 5, 24), (2, 5, 16)} & rows_of(graph, "MatMul")
    assert_same(net, graph, feeds(net))


def test_queries_are_selected_and_keys_are_not() -> None:
    net = Net()
    graph = net.graph(selected(net, "attention", "the last"))
    schedule_only(graph, HoistSlice())
    shapes = rows_of(graph, "MatMul")
    assert shapes == {(2, 1, 16), (2, 5, 16), (2, 2, 1, 5), (2, 2, 1, 8)}
    assert rows_of(graph, "Softmax") == {(2, 2, 1, 5)}


def test_it_is_recognised_behind() -> None:
    net = Net()
    net.input("x", "batch", "seq", 16)
    hidden = layer_norm(net, net("Add", "x", net("MatMul", net("Relu", net(
        "MatMul", "x", net.weight(16, 32))), net.weight(32, 16))))  # fmt: skip
    net("Gather", net("MatMul", hidden, net.weight(16, 48)), LAST, axis=1, name="y")
    graph = net.graph("y")
    optimized(graph, limits=APART)
    assert ops(graph).count("FusedGemm") == 3 and "LayerNormalization" not in ops(graph)
    rows = {graph.spec(r.results[0]).shape for r in graph.regions() if r.op == "FusedGemm"}
    assert {s[1] for s in rows if s} == {1}
    for sequence in (1, 7):
        x = {"x": normal(3, sequence, 16)}
        (expected,), (found,) = net.run(x), evaluate(graph, x)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_one_result_of_a_split_is_selected_before_it() -> None:
    net = Net()
    product = net("MatMul", net.input("x", 2, 5, 16), net.weight(16, 48))
    q, k, v = net.many("Split", 3, product, net.ints(16, 16, 16), axis=2)
    y = net("Gather", net("Relu", k), LAST, axis=1)
    graph = net.graph(y, net("Add", q, v))
    schedule_only(graph, HoistSlice())
    assert rows_of(graph, "Relu") == {(2, 1, 16)} and "Slice" in ops(graph)
    assert all(u.region.op != "Relu" for u in graph.uses(k))
    assert_same(net, graph, X)


def test_two_equal_selections_are_one_and_keep_their_names() -> None:
    net = Net()
    y = net("MatMul", net.input("x", 2, 5, 16), net.weight(16, 24))
    graph = net.graph(
        net("Gather", y, LAST, axis=1), net("Gather", y, LAST, axis=1),
        net("Gather", y, np.array([-1], np.int64), axis=1),
    )  # fmt: skip
    schedule_only(graph, HoistSlice())
    assert rows_of(graph, "MatMul") == {(2, 1, 24)} and ops(graph).count("Gather") == 1
    assert_same(net, graph, X)


REFUSED: dict[str, tuple[Callable[[Net, str], tuple[str, ...]], str]] = {
    "all of it is an output": (
        lambda n, x: (y := n("Relu", x), n("Gather", y, LAST, axis=1)), "is a graph output",
    ),
    "all of it is read": (
        lambda n, x: (n("Gather", y := n("Relu", x), LAST, axis=1), n("Exp", y)),
        "has other readers",
    ),
    "other rows are read too": (
        lambda n, x: (n("Gather", y := n("Relu", x), LAST, axis=1),
                      n("Gather", y, np.array(0, np.int64), axis=1)),
        "has other readers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_rows_somebody_reads_are_computed(name: str) -> None:
    net = Net()
    write, reason = REFUSED[name]
    graph = net.graph(*write(net, net.input("x", 2, 5, 16)))
    trace = schedule_only(graph, HoistSlice())
    assert any(reason in said for said in reasons(trace, HoistSlice.name))
    assert rows_of(graph, "Relu") == {(2, 5, 16)}


MIXED: dict[str, Write] = {
    "a softmax over the axis": lambda n, x: n("Softmax", x, axis=1),
    "a mean over the axis": lambda n, x: n("ReduceMean", x, axes=[1], keepdims=1),
    "a concatenation along it": lambda n, x: n("Concat", x, x, axis=1),
    "a norm over it": lambda n, x: n(
        "LayerNormalization", x, n.weight(5, 16), n.weight(5, 16), axis=1
    ),
    "axes that join": lambda n, x: n("Reshape", x, n.ints(1, 10, 16)),
}


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_depend_on_each_other_stay(name: str) -> None:
    net = Net()
    y = MIXED[name](net, net.input("x", 2, 5, 16))
    graph = net.graph(net("Gather", y, np.array([0], np.int64), axis=1))
    before = ops(graph)
    schedule_only(graph, HoistSlice())
    assert ops(graph) == before


@pytest.mark.parametrize("pick", [(0, 4), (1, 5)])
def test_most_of_what_there_is_is_no_selection(pick: tuple[int, int]) -> None:
    net = Net()
    graph = net.graph(sliced(net, net("Relu", net.input("x", 2, 5, 16)), *pick))
    before = ops(graph)
    schedule_only(graph, HoistSlice())
    assert ops(graph) == before


def test_columns_of_a_product_stay() -> None:
    net = Net()
    y = net("MatMul", net.input("x", 2, 5, 16), net.weight(16, 24))
    graph = net.graph(sliced(net, y, 0, 4, axis=2))
    schedule_only(graph, HoistSlice())
    assert rows_of(graph, "MatMul") == {(2, 5, 24)}


def test_integers_move_too() -> None:
    net = Net()
    y = net("Cast", net("Relu", net.input("x", 2, 5, 16)), to=DType.I64.onnx)
    graph = net.graph(net("Gather", y, LAST, axis=1))
    schedule_only(graph, HoistSlice())
    assert rows_of(graph, "Cast") == {(2, 1, 16)}
    assert_same(net, graph, X)
