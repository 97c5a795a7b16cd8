"""One row of each item, wherever it lies: the others are not computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import APART, Net, assert_same, normal, ops, optimized, reasons, schedule_only
from tracea_graph.ir import DType
from tracea_graph.passes.layout.hoist_gather import HoistGather
from tracea_graph.ttg import TileGraph

Write = Callable[[Net, str], str]
B, S, D = 3, 5, 16
LAST = np.array([1, 4, 0], np.int64)
FLAT, PAIRS = np.arange(B) * S + LAST, np.stack([np.arange(B), LAST - S], 1)
FEEDS = {"x": normal(B, S, D), "flat": FLAT, "pairs": PAIRS}


def by_gather(net: Net, y: str) -> str:
    return net("Gather", net("Flatten", y, axis=2), net.ids("flat", "batch"), axis=0)


def by_reshape(net: Net, y: str) -> str:
    return net("Gather", net("Reshape", y, net.ints(-1, D)), net.ids("flat", "batch"), axis=0)


def by_gather_nd(net: Net, y: str) -> str:
    return net("GatherND", y, net.ids("pairs", "batch", 2))


PICKS: dict[str, Write] = {
    "flattened": by_gather, "reshaped": by_reshape, "by pairs": by_gather_nd
}  # fmt: skip


def block(net: Net, x: str) -> str:
    """The end of a transformer's block and the model's last norm."""
    x = net("Add", net.weight(D), net("Add", x, net("MatMul", x, net.weight(D, D))))
    y = net("LayerNormalization", x, net.weight(D), net.weight(D), axis=2)
    y = net("Add", net("MatMul", y, net.weight(D, 24)), net.weight(24))
    y = net("MatMul", net("Mul", y, net("Sigmoid", net("Mul", y, 1.7))), net.weight(24, D))
    return net("Softmax", net("LayerNormalization", net("Add", x, y), net.weight(D), axis=-1))


def chosen(net: Net, pick: str, made: Write, *others: Write) -> TileGraph:
    y = made(net, net.input("x", "batch", "seq", D))
    z = net("MatMul", PICKS[pick](net, y), net.weight(D, 4))
    return net.graph(z, *(other(net, y) for other in others))


@pytest.mark.parametrize("pick", PICKS)
def test_only_rows_that_are_read_are_computed(pick: str) -> None:
    net = Net()
    graph = chosen(net, pick, block)
    trace = schedule_only(graph, HoistGather())
    assert trace.applied()["hoist-gather"] >= 10, trace.misses()
    graph.check()
    for region in graph.regions():
        rows = [graph.spec(v).rank for v in region.results]
        assert region.op in ("Shape", "Gather", "GatherND", "Reshape") or max(rows) < 3, region
    read = [r for r in graph.regions() if "x" in r.operands and r.op != "Shape"]
    assert len(read) == 1, read  # both who want its rows share them
    assert_same(net, graph, {k: v for k, v in FEEDS.items() if k in net.inputs})


@pytest.mark.parametrize("pick", PICKS)
def test_it_is_recognised_behind(pick: str) -> None:
    net = Net()
    graph = chosen(net, pick, block)
    optimized(graph, limits=APART)
    ranks = [graph.spec(r.results[0]).rank for r in graph.regions() if r.op == "FusedGemm"]
    assert ranks == [2] * 4, ops(graph)
    assert_same(net, graph, {k: v for k, v in FEEDS.items() if k in net.inputs})


@pytest.mark.parametrize(
    "other",
    [
        lambda n, y: y,
        lambda n, y: n("Relu", y),
        lambda n, y: n("ReduceMax", n("Flatten", y, axis=2), axes=[1]),
    ],
    ids=["an output", "a reader", "a reader of the flat rows"],
)
def test_rows_somebody_reads_are_computed(other: Write) -> None:
    net = Net()
    graph = chosen(net, "flattened", lambda n, x: n("Tanh", x), other)
    trace = schedule_only(graph, HoistGather())
    assert trace.applied() == {}
    assert all("has other readers or is an output" in r for r in reasons(trace, "hoist-gather"))


@pytest.mark.parametrize(
    "made",
    [
        lambda n, x: n("Transpose", n("Transpose", x, perm=[1, 0, 2]), perm=[1, 0, 2]),
        lambda n, x: n("Softmax", x, axis=1),
        lambda n, x: n("Add", x, n.weight(1, S, D)),
        lambda n, x: n("Add", x, n.input("offset", "batch", 1, D)),
        lambda n, x: n("Add", x, n.weight(1, 1, D)),
        lambda n, x: n("MatMul", x, n.input("each", "batch", D, D)),
        lambda n, x: n("CumSum", x, np.array(1, np.int64)),
    ],
    ids=["turned", "softmax of rows", "by place", "by item", "rank 3", "of each item", "unknown"],
)
def test_what_is_not_known_by_row_stays(made: Write) -> None:
    net = Net()
    graph = chosen(net, "flattened", made)
    assert schedule_only(graph, HoistGather()).applied() == {}


def test_several_rows_of_each_item_are_no_pick() -> None:
    net = Net()
    y = net("Tanh", net.input("x", "batch", "seq", D))
    places = net.input("places", "many", dtype=DType.I64)
    graph = net.graph(net("Gather", net("Flatten", y, axis=2), places, axis=0))
    assert schedule_only(graph, HoistGather()).applied() == {}
