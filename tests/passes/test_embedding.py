"""Look-ups, their sums and the normalisation behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, only, ops, optimized, reasons, schedule_only
from tracea_graph.ir import DType, Expr, TensorSpec
from tracea_graph.passes import embedding
from tracea_graph.rewrite import RulePass

LIFT, SUM = RulePass(embedding.EMBEDDING), RulePass(embedding.EMBEDDING_SUM)
IDS = {"i": np.array([[3, 5, 1], [0, 8, -1]]), "j": np.array([[0, 1, 1], [1, 0, 0]])}


def lookup(net: Net, ids: str, rows: int = 9, width: int = 32) -> str:
    return net("Gather", net.weight(rows, width), ids, axis=0)


def two(net: Net) -> tuple[str, str]:
    return (
        lookup(net, net.ids("i", "batch", "seq")),
        lookup(net, net.ids("j", "batch", "seq"), 2),
    )


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32])
def test_a_lookup_is_an_embedding(dtype: DType) -> None:
    net = Net()
    graph = net.graph(lookup(net, net.input("i", "batch", "seq", dtype=dtype)))
    schedule_only(graph, LIFT)
    assert ops(graph) == ["FusedEmbedding"]
    kind = np.int64 if dtype == DType.I64 else np.int32
    assert_same(net, graph, {"i": IDS["i"].astype(kind)})


def by(net: Net, **changes: Any) -> str:
    return net("Gather", net.weight(9, 32), net.ids("i", "batch", "seq"), **changes)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: n("Gather", n.input("t", 9, 32), n.ids("i", "batch")),
        lambda n: n("Gather", n.weight(9, 8), n.ids("i", "batch")),
        lambda n: n("Gather", n.weight(9, 2, 32), n.ids("i", "batch")),
        lambda n: n("Gather", n.const(np.ones((9, 32)), np.int64), n.ids("i", "batch")),
        lambda n: by(n, axis=1),
    ],
)
def test_other_gathers_stay(make: Callable[[Net], str]) -> None:
    net = Net()
    graph = net.graph(make(net))
    trace = schedule_only(graph, LIFT)
    assert trace.applied() == trace.misses() == {}
    assert ops(graph) == ["Gather"]


def test_a_single_id_is_a_reason() -> None:
    net = Net()
    graph = net.graph(lookup(net, net.ids("i")))
    trace = schedule_only(graph, LIFT)
    assert reasons(trace, "embedding") == {"the ids are not an integer tensor of known rank"}


def test_a_sum_of_lookups_is_one_embedding() -> None:
    net = Net()
    graph = net.graph(net("Add", *two(net)))
    trace = optimized(graph)
    assert trace.applied() == {"embedding": 2, "embedding-sum": 1}
    assert only(graph, "FusedEmbedding").params.tables == 2
    assert_same(net, graph, IDS)


def test_positions_are_broadcast_over_the_batch() -> None:
    net = Net()
    words, kinds = two(net)
    positions = lookup(net, net.ids("p", 1, "seq"))
    total = net("Add", net("Add", words, kinds), positions)
    gamma, beta = net.weight(32), net.weight(32)
    graph = net.graph(net("LayerNormalization", total, gamma, beta))
    optimized(graph)
    region = only(graph, "FusedEmbedding")
    assert ops(graph) == ["FusedEmbedding"] and region.params.tables == 3
    assert region.params.norm.kind == "layer" and not region.params.keep_sum
    assert_same(net, graph, IDS | {"p": np.array([[4, 2, 0]])})


def test_positions_clipped_to_the_table_are_as_long_as_the_sequence() -> None:
    net = Net()
    words = lookup(net, net.ids("i", "batch", "seq"))
    positions = lookup(net, net.ids("p", 1, "clipped"))
    graph = net.graph(net("Add", words, positions))
    clipped = Expr("min", ("seq", 9))
    for value, shape in (("p", (1, clipped)), (positions, (1, clipped, 32))):
        graph.specs[value] = TensorSpec(graph.spec(value).dtype, shape)
    optimized(graph)
    assert only(graph, "FusedEmbedding").params.tables == 2
    assert_same(net, graph, {"i": IDS["i"], "p": np.array([[4, 2, 0]])})


def test_a_sum_others_read_is_kept() -> None:
    net = Net()
    total = net("Add", *two(net))
    graph = net.graph(net("LayerNormalization", total, net.weight(32), net.weight(32)), total)
    optimized(graph)
    region = only(graph, "FusedEmbedding")
    assert region.params.keep_sum and region.results[1] == total
    assert_same(net, graph, IDS)


# ---- misses ------------------------------------------------------------------------------


def test_a_lookup_with_other_readers_is_a_reason() -> None:
    net = Net()
    a, b = two(net)
    graph = net.graph(net("Add", a, b), net("Exp", a))
    trace = schedule_only(graph, LIFT, SUM)
    assert reasons(trace, "embedding-sum") == {
        f"the result {a!r} of FusedEmbedding has other readers"
    }


def test_more_than_four_tables_are_a_reason() -> None:
    net = Net()
    ids = net.ids("i", "batch", "seq")
    total = lookup(net, ids)
    for _ in range(4):
        total = net("Add", total, lookup(net, ids))
    graph = net.graph(total)
    trace = schedule_only(graph, LIFT, SUM)
    assert reasons(trace, "embedding-sum") == {"the lookup would read more than 4 tables"}
    assert_same(net, graph, {"i": IDS["i"]})


def test_ids_of_two_types_are_a_reason() -> None:
    net = Net()
    a = lookup(net, net.ids("i", "batch", "seq"))
    b = lookup(net, net.input("j", "batch", "seq", dtype=DType.I32))
    trace = schedule_only(net.graph(net("Add", a, b)), LIFT, SUM)
    assert reasons(trace, "embedding-sum") == {"the ids have different integer types"}


def test_ids_that_may_not_broadcast_are_a_reason() -> None:
    net = Net()
    a, b = lookup(net, net.ids("i", "batch", "seq")), lookup(net, net.ids("j", "batch", "other"))
    trace = schedule_only(net.graph(net("Add", a, b)), LIFT, SUM)
    assert reasons(trace, "embedding-sum") == {"id shapes cannot be proven to broadcast"}


def test_a_norm_of_something_else_is_left_alone() -> None:
    net = Net()
    x = net.input("x", "batch", "seq", 32)
    graph = net.graph(net("LayerNormalization", x, net.weight(32), net.weight(32)))
    assert optimized(graph).applied() == {"layer-norm-op": 1}
    assert_same(net, graph, {"x": normal(2, 5, 32)})


def test_the_same_lookup_twice_is_left_to_others() -> None:
    net = Net()
    a = lookup(net, net.ids("i", "batch", "seq"))
    graph = net.graph(net("Add", a, a))
    optimized(graph)
    assert_same(net, graph, {"i": IDS["i"]})
