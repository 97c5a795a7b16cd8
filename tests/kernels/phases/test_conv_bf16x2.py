"""Convolutions take sums of two numbers in bf16 where that was asked for, or bf16 is ruled out and
there are matrix tiles."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.graphs import Net, every_phase, normal, relative_error
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.rewrite import DecisionTrace, SchedulerLimits, schedule_rewrites
from tracea_graph.ttg import Region, TileGraph


def net(
    channels: int, filters: int, kernel: int = 1, group: int = 1, opset: int = 17
) -> TileGraph:
    net = Net(opset)
    x, w = net.input("x", "n", channels, 9, 7), normal(filters, channels // group, kernel, kernel)
    return net.graph(net("Conv", x, net.const(w), pads=[kernel // 2] * 4, group=group))


def planned(
    graph: TileGraph, precision: str = "bf16x2", tiles: bool = True, without: Sequence[str] = ()
) -> tuple[Region, DecisionTrace]:
    """The only region left, every rewrite being as good as any other."""
    limits = SchedulerLimits(min_gain_us=float("-inf"))
    known = every_phase(precision=precision, tiles=tiles)
    kept = (p for p in known if not {rule.name for rule in p.passes} & {*without})
    trace = schedule_rewrites(graph, tuple(kept), lambda g, r: 1.0, limits)
    (region,) = graph.regions()
    return region, trace


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((20, 24, 1), "bf16x2"),
        ((19, 24, 3), "bf16x2"),
        ((32, 64, 3, 2), "bf16x2"),
        ((24, 24, 3, 24), "depthwise"),
        ((3, 24, 3), "first_layer"),
    ],
)
def test_dense_ones_between_blocks_do(shape: tuple[int, ...], layout: str) -> None:
    graph = net(*shape)
    (stored,) = (w.array() for w in graph.weights.values())
    region, _ = planned(graph)
    params = region.params
    assert (
        isinstance(params, ConvParams)
        and params.layout.name == layout
        and not params.layout.rounds
    )
    if layout == "bf16x2":
        weight = graph.weights[region.operands[1]]
        assert weight.dtype is DType.BF16 and weight.array().shape == weight.shape
        again = params.layout.filters([weight.array()], params.shape)
        assert 0 < relative_error(again, stored) < 2.0**-16


def test_opsets_without_bf16_are_a_miss() -> None:
    _, trace = planned(net(20, 24, opset=11))
    assert ("conv-bf16x2", "opset 11 has no bf16; 13 is the first") in trace.misses()


INTEGERS, EXACT = ("int16", "winograd2_int16"), ("blocked", "winograd2", "winograd4")


@pytest.mark.parametrize(
    ("kernel", "tiles", "without", "layouts"),
    [
        (1, True, ["conv-bf16"], ("bf16x2",)),
        (3, True, ["conv-bf16"], INTEGERS),
        (3, True, ["conv-bf16", "conv-int16"], ("bf16x2",)),
        (3, True, ["conv-bf16", "conv-int16", "conv-bf16x2"], EXACT),
        (1, False, ["conv-bf16"], INTEGERS),
        (1, False, ["conv-bf16", "conv-int16"], EXACT),
    ],
)
def test_what_bf16_is_too_coarse_for(
    kernel: int, tiles: bool, without: Sequence[str], layouts: Sequence[str]
) -> None:
    """With tiles integers serve what is transformed better, sums of two numbers all else."""
    region, _ = planned(net(20, 24, kernel), "bf16", tiles, without)
    assert isinstance(region.params, ConvParams) and region.params.layout.name in layouts


def test_a_value_is_split_once_for_all_its_readers() -> None:
    net = Net()
    first = net("Relu", net("Conv", net.input("x", "n", 16, 9, 7), net.weight(32, 16, 1, 1)))
    left = net("Conv", first, net.weight(16, 32, 1, 1))
    right = net("Conv", first, net.weight(16, 32, 3, 3), pads=[1] * 4)
    graph = net.graph(net("Mul", left, right))
    region, _ = planned(graph)
    assert isinstance(region.params, RegionParams)
    program = lower(graph, region)
    names = [call.name for call in program.calls]
    assert names.count("round_images_bf16x2") == 2, "of x and of what the first made of it"
    assert names.count("conv_bf16x2") == 3
    split = [c.views[-1] for c in program.calls if c.name == "round_images_bf16x2"]
    kinds = {program.temps[v.buffer.index].dtype for v in split if v is not None}
    assert kinds == {DType.BF16}


def test_products_inside_a_program_go_with_it() -> None:
    net = Net()
    deep = net("Conv", net.input("x", "n", 16, 9, 7), net.weight(32, 16, 3, 3), pads=[1] * 4)
    flat = net("Flatten", net("GlobalAveragePool", deep))
    graph = net.graph(net("Gemm", flat, net.weight(32, 10), net.weight(10)))
    region, _ = planned(graph)
    assert isinstance(region.params, RegionParams)
    assert lower(graph, region).calls[-1].name == "gemm_bf16x2"
