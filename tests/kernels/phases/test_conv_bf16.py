"""Convolutions go to bf16 where that was asked for and their channels come in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.graphs import Net, every_phase, normal
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.filters import VNNI2
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.rewrite import DecisionTrace, SchedulerLimits, schedule_rewrites
from tracea_graph.ttg import Region, TileGraph


def net(
    channels: int, filters: int, kernel: int = 1, group: int = 1, opset: int = 17
) -> TileGraph:
    net = Net(opset)
    x, w = net.input("x", "n", channels, 9, 7), normal(filters, channels // group, kernel, kernel)
    return net.graph(net("Conv", x, net.const(w), pads=[kernel // 2] * 4, group=group))


def planned(graph: TileGraph, precision: str) -> tuple[Region, DecisionTrace]:
    """The only region left, every rewrite being as good as any other."""
    limits = SchedulerLimits(min_gain_us=float("-inf"))
    trace = schedule_rewrites(graph, every_phase(precision=precision), lambda g, r: 1.0, limits)
    (region,) = graph.regions()
    return region, trace


@pytest.mark.parametrize(
    ("shape", "layouts"),
    [
        ((20, 24, 1), ["vnni2"]),
        ((20, 24, 5), ["vnni2"]),
        ((32, 64, 3, 2), ["vnni2"]),
        ((20, 24, 3), ["vnni2", "winograd2_vnni2"]),
        ((24, 24, 3, 24), ["depthwise"]),
        ((3, 24, 3), ["first_layer"]),
    ],
)
def test_the_layout_follows_the_precision(shape: tuple[int, ...], layouts: Sequence[str]) -> None:
    graph = net(*shape)
    region, _ = planned(graph, "bf16")
    params = region.params
    assert isinstance(params, ConvParams) and params.layout.name in layouts
    assert params.layout.rounds == (params.layout.name != "first_layer")
    weight = graph.weights[region.operands[1]]
    dense = params.layout.name not in ("depthwise", "first_layer")
    assert weight.dtype is (DType.BF16 if dense else DType.F32)
    assert weight.array().shape == weight.shape


def test_float32_stays_float32() -> None:
    for precision in ("fp32", "bf16-weights"):
        region, _ = planned(net(20, 24), precision)
        assert isinstance(region.params, ConvParams) and not region.params.layout.rounds


def test_filters_are_rounded_once() -> None:
    graph = net(20, 24)
    exact = graph.weights["w0"].array()
    region, _ = planned(graph, "bf16")
    stored = VNNI2.filters([graph.weights[region.operands[1]].array()], exact.shape)
    np.testing.assert_array_equal(stored, exact.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_channels_that_are_no_pairs_are_a_miss() -> None:
    region, trace = planned(net(19, 24), "bf16")
    assert isinstance(region.params, ConvParams) and region.params.layout.name == "int16"
    assert ("conv-bf16", "its 19 channels cannot be paired") in trace.misses()


def test_an_old_opset_is_a_miss() -> None:
    _, trace = planned(net(20, 24, opset=11), "bf16")
    assert ("conv-bf16", "opset 11 has no bf16; 13 is the first") in trace.misses()


def test_a_program_stores_bf16_between_its_steps() -> None:
    net = Net()
    x = net.input("x", "n", 16, 9, 7)
    expanded = net("Relu", net("Conv", x, net.weight(32, 16, 1, 1)))
    deep = net("Conv", expanded, net.weight(32, 1, 3, 3), pads=[1] * 4, group=32)
    graph = net.graph(net("Add", net("Conv", deep, net.weight(16, 32, 1, 1)), x))
    region, _ = planned(graph, "bf16")
    assert isinstance(region.params, RegionParams)
    program = lower(graph, region)
    names = [call.name for call in program.calls]
    assert names[-4:] == ["conv_bf16", "depthwise_bf16", "conv_bf16", "reorder_to_nchw"]
    written = {c.views[-1].buffer for c in program.calls[-4:-2] if c.views[-1]}
    assert {program.temps[b.index].dtype for b in written} == {DType.BF16}


@pytest.mark.parametrize("tiles", [True, False])
def test_matrix_tiles_read_two_blocks_at_once_that_another_writes(tiles: bool) -> None:
    """Not of an input, nor of a depthwise one, nor where channels are no whole broad blocks."""
    net = Net()
    x = net.input("x", "n", 32, 16, 14)

    def conv(value: str, filters: int, channels: int, **more: Any) -> str:
        kernel, group = more.pop("kernel", 1), more.pop("group", 1)
        w = net.weight(filters, channels // group, kernel, kernel)
        pads = [kernel // 2] * 4
        return net("Relu", net("Conv", value, w, pads=pads, group=group, **more))

    first = conv(x, 64, 32)
    second = conv(first, 32, 64, strides=[2, 2])
    pooled = net("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2])
    joined = net("Concat", second, pooled, axis=1)
    third = conv(joined, 48, 96)
    deep = conv(conv(third, 32, 48), 32, 32, kernel=3, group=32)
    graph = net.graph(conv(conv(deep, 32, 32), 16, 32, kernel=3, strides=[2, 2]))
    limits = SchedulerLimits(min_gain_us=float("-inf"))
    ways = every_phase(precision="bf16", tiles=tiles)
    schedule_rewrites(
        graph, [p for p in ways if p.name != "conv-winograd"], lambda g, r: 1.0, limits
    )
    (region,) = graph.regions()
    assert isinstance(region.params, RegionParams)
    layouts = [
        s.params.layout.name for s in region.params.steps if isinstance(s.params, ConvParams)
    ]
    nchw32c = "nchw32c" if tiles else "vnni2"
    assert layouts == ["vnni2", nchw32c, nchw32c, "vnni2", "depthwise", "vnni2", nchw32c]
    names = [call.name for call in lower(graph, region).calls]
    assert names.count("copy") == 0 and names.count("pool_bf16") == 1


def test_products_inside_a_program_go_with_it() -> None:
    net = Net()
    x = net.input("x", "n", 16, 9, 7)
    deep = net("Conv", x, net.weight(32, 16, 3, 3), pads=[1] * 4)
    flat = net("Flatten", net("GlobalAveragePool", deep))
    graph = net.graph(net("Gemm", flat, net.weight(32, 10), net.weight(10)))
    region, _ = planned(graph, "bf16")
    assert isinstance(region.params, RegionParams)
    (head,) = [s for s in region.params.steps if isinstance(s.params, GemmParams)]
    assert head.params.layout.name == "vnni2"
    assert graph.weights[region.operands[head.operands[1]]].dtype is DType.BF16
    assert lower(graph, region).calls[-1].name == "gemm_bf16"
