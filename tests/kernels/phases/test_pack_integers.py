"""Matrices of integers are packed whatever gain is predicted: kernels read panels only."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.graphs import (
    APART,
    LEGAL,
    Net,
    assert_same,
    every_phase,
    normal,
    optimized,
    schedule_only,
)  # fmt: skip
from tests.passes.quantized.test_conv import FEEDS, conv, filters, quantized
from tracea_graph.kernels.cpu.panels import Int8Panels
from tracea_graph.kernels.cpu.phases.pack_integers import PACK_INTEGERS
from tracea_graph.kernels.cpu.phases.pack_nbits import PACK_NBITS
from tracea_graph.passes.quantized.conv import QuantizedConv
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


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("groups", [3, 12])
def test_joined_groups_do_not_see_each_other(groups: int, kind: Any) -> None:
    """A filter's place in another group holds its zero point, which may not be 0."""
    net = Net()
    w = filters(net, 12, 12 // groups, 3, 3, own=np.arange(12, dtype=kind) + 3, kind=kind)
    y = conv(net, quantized(net, net.input("x", "n", 12, 9, 7)), w, kernel=3, group=groups)
    graph = net.graph(y)
    schedule_only(graph, QuantizedConv())
    assert optimized(graph, PACKING).applied() == {PACK_INTEGERS.name: 1}
    (region,) = (r for r in graph.regions() if r.op == "FusedConvInteger")
    assert region.params.groups == 1 and region.params.layout.own_zeros
    assert_same(net, graph, FEEDS)
