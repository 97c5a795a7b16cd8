"""What convolutions and pools of images become on GPUs."""

from __future__ import annotations

import pytest

from tests.graphs import Net, normal, optimized
from tracea_graph import passes
from tracea_graph.kernels.gpu.lowering.lower import calls_of
from tracea_graph.kernels.gpu.phases import phases
from tracea_graph.kernels.program import Call
from tracea_graph.passes import PlanRequest


def lowered(net: Net, output: str) -> list[Call]:
    """Return the calls of a model's only program in fp16."""
    graph, request = net.graph(output), PlanRequest(precision="fp16")
    optimized(graph, (*passes.phases(request), *phases(request)))
    (region,) = graph.regions()
    return [c for c in calls_of(graph, region) if c.op not in ("elementwise", "copy")]


def convolved(side: int, channels: int, filters: int) -> list[Call]:
    net = Net()
    x = net.input("x", 32, channels, side, side)
    return lowered(net, net("Conv", net("Relu", x), net.const(normal(filters, channels, 1, 1))))


@pytest.mark.parametrize(("channels", "deep"), [(24, 64), (96, 96)])
def test_a_convolution_of_single_pixels_is_a_matmul_whose_rows_are_copied_whole(
    channels: int, deep: int
) -> None:
    (call,) = convolved(56, channels, 144)
    assert call.op == "gemm" and [v.dims for v in call.views if v][:2] == [
        (32 * 56 * 56, channels), (144, deep)
    ]  # fmt: skip


def test_a_convolution_of_one_pixel_is_a_matmul_too() -> None:
    (call,) = convolved(1, 480, 20)
    assert call.op == "gemm" and next(v.dims for v in call.views if v) == (32, 480)


@pytest.mark.parametrize(("batch", "pools"), [(1, 2), (64, 1)])
def test_few_large_images_are_pooled_in_parts(batch: int, pools: int) -> None:
    net = Net()
    x = net.input("x", batch, 96, 56, 56)
    made = net("Conv", net("Relu", x), net.const(normal(96, 96, 1, 1)))
    calls = lowered(net, net("GlobalAveragePool", made))
    assert [c.op for c in calls].count("pool") == pools
