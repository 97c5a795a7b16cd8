"""Look-ups and updates by index tuples: which become ops, and why others stay."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, assert_same, loaded, normal, only, ops, reasons, schedule_only
from tracea_graph.ir import DType
from tracea_graph.ops.indexed_slices import SCATTERS, GatherNDParams, ScatterNDParams
from tracea_graph.passes.layout.indexed_slices import RULES
from tracea_graph.rewrite import RulePass

GATHER, SCATTER = map(RulePass, RULES)


@pytest.mark.parametrize("items", [0, 1])
def test_slices_are_read_by_tuples(items: int) -> None:
    net = Net()
    x, index = net.input("x", "n", 3, 4), net.input("i", "n", 2, 1, dtype=DType.I64)
    graph = loaded(net, net("GatherND", x, index, batch_dims=items))
    assert schedule_only(graph, GATHER).applied() == {"gather-nd": 1}
    assert only(graph, "FusedGatherND").params == GatherNDParams(items)
    ids = np.random.default_rng(0).integers(-2, 2, (2, 2, 1))
    assert_same(net, graph, {"x": normal(2, 3, 4), "i": ids})


@pytest.mark.parametrize("reduction", SCATTERS)
def test_slices_are_updated_by_tuples(reduction: str) -> None:
    net = Net(18)
    x, index = net.input("x", 3, 4, 5), net.input("i", "m", 2, dtype=DType.I64)
    more = {} if reduction == "none" else {"reduction": reduction}
    graph = loaded(net, net("ScatterND", x, index, net.input("u", "m", 5), **more))
    assert schedule_only(graph, SCATTER).applied() == {"scatter-nd": 1}
    assert only(graph, "FusedScatterND").params == ScatterNDParams(reduction)
    ids = np.array([[0, 1], [-1, -1], [2, 0]])
    assert_same(net, graph, {"x": normal(3, 4, 5), "i": ids, "u": normal(3, 5, seed=1)})


def test_other_types_stay() -> None:
    net = Net()
    x, index = net.input("x", 3, 4, dtype=DType.U8), net.input("i", "m", 1, dtype=DType.I64)
    graph = loaded(net, net("GatherND", x, index))
    assert reasons(schedule_only(graph, GATHER), "gather-nd") == {
        "'x' is u8[3,4], neither floats nor integers"
    }
    assert ops(graph) == ["GatherND"]


def test_updates_of_unproven_shapes_stay() -> None:
    net = Net()
    x, index = net.input("x", 3, 4), net.input("i", "m", 1, dtype=DType.I64)
    graph = loaded(net, net("ScatterND", x, index, net.input("u", "k", 4)))
    assert reasons(schedule_only(graph, SCATTER), "scatter-nd") == {
        "the updates cannot be proven to be slices of the elements"
    }
