"""Convolutions go to 16-bit integers where that was asked for, or where bf16 is ruled out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.graphs import Net, every_phase, normal
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.kernels.cpu.phases.lower_precision import FALLBACK, LOWERING, PRECISION_FALLBACKS
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.rewrite import DecisionTrace, SchedulerLimits, schedule_rewrites
from tracea_graph.ttg import Region, TileGraph


def net(channels: int, filters: int, kernel: int = 1, group: int = 1) -> TileGraph:
    net = Net()
    x, w = net.input("x", "n", channels, 9, 7), normal(filters, channels // group, kernel, kernel)
    return net.graph(net("Conv", x, net.const(w), pads=[kernel // 2] * 4, group=group))


def planned(
    graph: TileGraph, precision: str = "int16", excluded: Sequence[str] = ()
) -> tuple[Region, DecisionTrace]:
    """The only region left, every rewrite being as good as any other."""
    written = {v for n in (node for r in graph.regions() for node in r.nodes) for v in n.outputs}
    limits = SchedulerLimits(
        min_gain_us=float("-inf"),
        excluded={rule: dict.fromkeys(written, "coarse") for rule in excluded},
    )
    trace = schedule_rewrites(graph, every_phase(precision=precision), lambda g, r: 1.0, limits)
    (region,) = graph.regions()
    return region, trace


@pytest.mark.parametrize(
    ("shape", "layouts"),
    [
        ((20, 24, 1), ["int16"]),
        ((19, 24, 1), ["int16"]),
        ((20, 24, 5), ["int16"]),
        ((20, 24, 7), ["blocked"]),
        ((32, 64, 3, 2), ["int16"]),
        ((20, 24, 3), ["int16", "winograd2_int16"]),
        ((24, 24, 3, 24), ["depthwise"]),
        ((3, 24, 3), ["first_layer"]),
    ],
)
def test_the_layout_follows_the_precision(shape: tuple[int, ...], layouts: Sequence[str]) -> None:
    graph = net(*shape)
    region, _ = planned(graph)
    params = region.params
    assert (
        isinstance(params, ConvParams)
        and params.layout.name in layouts
        and not params.layout.rounds
    )
    for name in region.operands[1:]:
        assert graph.weights[name].array().shape == graph.weights[name].shape
    if params.layout.operands > 1:
        types = [graph.weights[region.operands[i]].dtype for i in (1, -1)]
        assert types == [DType.I16, DType.F32]


def test_many_taps_are_a_miss() -> None:
    _, trace = planned(net(20, 24, 7))
    assert ("conv-int16", "32-bit sums over 49 taps leave operands too few bits") in trace.misses()


def test_what_bf16_is_too_coarse_for_goes_to_integers() -> None:
    region, _ = planned(net(20, 24), "bf16", ["conv-bf16"])
    assert isinstance(region.params, ConvParams) and region.params.layout.name == "int16"
    region, _ = planned(net(20, 24), "bf16", ["conv-bf16", "conv-int16"])
    assert isinstance(region.params, ConvParams) and region.params.layout.name == "blocked"


def test_the_last_relief_is_without_any_rounding() -> None:
    assert set(PRECISION_FALLBACKS[-1]) == set(LOWERING)
    assert FALLBACK["conv-int16"] == "conv-bf16"


def test_a_value_is_rounded_once_for_all_its_readers() -> None:
    net = Net()
    x = net.input("x", "n", 16, 9, 7)
    first = net("Relu", net("Conv", x, net.weight(32, 16, 1, 1)))
    left = net("Conv", first, net.weight(16, 32, 1, 1))
    right = net("Conv", first, net.weight(16, 32, 1, 1))
    graph = net.graph(net("Mul", left, right))
    region, _ = planned(graph)
    assert isinstance(region.params, RegionParams)
    names = [call.name for call in lower(graph, region).calls]
    assert names.count("round_images_int16") == 2, "of x and of what the first made of it"
    assert names.count("conv_int16") == 3
