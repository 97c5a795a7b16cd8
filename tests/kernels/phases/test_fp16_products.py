"""Products and convolutions in fp16, where that was asked for and values fit."""

from __future__ import annotations

import pytest

from tests.graphs import Net, every_phase, normal, relative_error
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.kernels.cpu.phases.fp16_products import ConvFp16, GemmFp16
from tracea_graph.passes import PARTITION
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Phase, SchedulerLimits, schedule_rewrites
from tracea_graph.ttg import Region, TileGraph

ANY = SchedulerLimits(min_gain_us=float("-inf"))


def conv_net(channels: int, kernel: int = 1) -> TileGraph:
    net = Net(17)
    x, w = net.input("x", "n", channels, 9, 7), normal(24, channels, kernel, kernel)
    return net.graph(net("Conv", x, net.const(w), pads=[kernel // 2] * 4))


def gemm_net(k: int) -> TileGraph:
    net = Net(17)
    return net.graph(net("MatMul", net.input("x", "n", k), net.const(normal(k, 40))))


def planned(graph: TileGraph) -> Region:
    """The only region left, every rewrite being as good as any other."""
    schedule_rewrites(graph, tuple(every_phase(precision="fp16")), lambda g, r: 1.0, ANY)
    (region,) = graph.regions()
    return region


@pytest.mark.parametrize("graph", [conv_net(20, 5), gemm_net(33)], ids=["conv", "gemm"])
def test_weights_become_fp16_and_operands_are_rounded(graph: TileGraph) -> None:
    (plain,) = (w.array() for w in graph.weights.values())
    region = planned(graph)
    params, weight = region.params, graph.weights[region.operands[1]]
    assert params.layout.name == "f16" and weight.dtype is DType.F16
    stored = [weight.array()]
    assert stored[0].shape == weight.shape
    is_gemm = region.op == "FusedGemm"
    again = (
        params.layout.matrix(stored, params.k, params.n)
        if is_gemm
        else params.layout.filters(stored, params.shape)
    )
    assert 0 < relative_error(again, plain) < 2.0**-10
    calls = [(call.op, call.dtype) for call in lower(graph, region).calls]
    wanted = ("round", "gemm") if is_gemm else ("round_images", "conv")
    assert [call for call in calls if call[1] == "f16"] == [(op, "f16") for op in wanted]


@pytest.mark.parametrize(("largest", "why"), [(1e5, "above fp16's"), (1e-6, "rounds coarsely")])
def test_values_outside_its_range_are_a_miss(largest: float, why: str) -> None:
    for graph, rule in ((conv_net(20), ConvFp16), (gemm_net(32), GemmFp16)):
        phases = [p for p in every_phase(precision="fp32") if p.name != PARTITION]
        made = (*phases, Phase("precision", (rule({"x": largest}),)))
        trace = schedule_rewrites(graph, made, lambda g, r: 1.0, ANY)
        (reason,) = (text for name, text in trace.misses() if name == rule.name)
        assert why in reason and isinstance(reason, Reason) and reason.code is Code.OUT_OF_RANGE
