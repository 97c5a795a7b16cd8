"""Matrices of integers are packed whatever gain is predicted: kernels read panels only."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.graphs import APART, LEGAL, Net, every_phase, normal, optimized
from tracea_graph.kernels.cpu.panels import Int8Panels
from tracea_graph.kernels.cpu.phases.pack_integers import PACK_INTEGERS
from tracea_graph.kernels.cpu.phases.pack_nbits import PACK_NBITS
from tracea_graph.rewrite import Phase, RulePass

PACKING = (Phase("pack", (RulePass(PACK_INTEGERS), RulePass(PACK_NBITS))),)


@pytest.mark.parametrize("precision", ["int8", "int4-weights"])
def test_no_gain_is_needed(precision: str) -> None:
    net = Net()
    graph = net.graph(net("MatMul", net.input("x", 1, 64), net.const(normal(64, 128))))
    packing = {PACK_INTEGERS.name, PACK_NBITS.name}
    before = itertools.takewhile(
        lambda phase: packing.isdisjoint(p.name for p in phase.passes),
        every_phase(precision=precision),
    )
    optimized(graph, tuple(before), APART)
    (region,) = (r for r in graph.regions() if r.op == "FusedGemm")
    assert not isinstance(region.params.layout, Int8Panels)
    trace = optimized(graph, PACKING, replace(LEGAL, min_gain_us=float("inf")))
    assert sum(trace.applied().values()) == 1 and packing.issuperset(trace.applied())
