"""Heads that a product does without are neither projected nor attended to."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import APART, Net, assert_same, every_phase, normal, ops
from tracea_graph.passes.sparse.chosen_compression import CompressedMatrix
from tracea_graph.policy import CostModel, Machine
from tracea_graph.rewrite import schedule_rewrites
from tracea_graph.ttg import TileGraph

HEADS, D, K, N = 4, 8, 24, 48


def attending(dead: tuple[int, ...]) -> tuple[Net, TileGraph]:
    """Projections, attention, and a product whose matrix has no numbers for some heads."""
    net, width = Net(), HEADS * D
    x, heads = net.input("x", "batch", "seq", K), []
    for i in range(3):
        value = net("Add", net("MatMul", x, net.weight(K, width)), net.weight(width))
        value = net("Reshape", value, net.ints(0, 0, HEADS, D))
        heads.append(net("Transpose", value, perm=[0, 2, 3, 1] if i == 1 else [0, 2, 1, 3]))
    p = net("Softmax", net("Div", net("MatMul", heads[0], heads[1]), 4.0))
    y = net("Transpose", net("MatMul", p, heads[2]), perm=[0, 2, 1, 3])
    last = normal(width, N, seed=7).reshape(HEADS, D, N).copy()
    last[list(dead)] = 0.0
    y = net("MatMul", net("Reshape", y, net.ints(0, 0, width)), net.const(last.reshape(-1, N)))
    return net, net.graph(net("Add", y, net.weight(N)))


def planned(graph: TileGraph, **chosen: CompressedMatrix) -> TileGraph:
    cost = CostModel(Machine(), {"batch": 2, "seq": 5})
    planned = graph.copy()
    schedule_rewrites(planned, every_phase(compressed=chosen), cost, APART)
    return planned


@pytest.mark.parametrize("dead", [(1,), (0, 3), (0, 1, 2)])
def test_heads_without_numbers_go(dead: tuple[int, ...]) -> None:
    net, graph = attending(dead)
    weight = next(w for w in graph.weights.values() if w.shape == (HEADS * D, N))
    chosen = {weight.name: CompressedMatrix((np.asarray(weight.array()),), 0.0)}
    smaller = planned(graph, **chosen)
    assert ops(smaller) == ["FusedGemm", "FusedAttention", "FusedGemm"]
    qkv, attention, out = (r.params for r in smaller.regions())
    left = HEADS - len(dead)
    assert (qkv.n, attention.heads, out.k) == (3 * left * D, left, left * D)
    assert_same(net, smaller, {"x": normal(2, 5, K, seed=4)})
