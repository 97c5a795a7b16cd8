"""What convolutions and pools of images become on GPUs."""

from __future__ import annotations

import pytest

from tests.graphs import Net, normal, optimized
from tracea_graph import passes
from tracea_graph.kernels.gpu.kernel_selection import variants_of
from tracea_graph.kernels.gpu.lowering.lower import calls_of
from tracea_graph.kernels.gpu.phases import phases
from tracea_graph.kernels.program import Call
from tracea_graph.passes import PlanRequest


def calls_in(net: Net, output: str) -> list[Call]:
    """Return the calls of a model's only program in fp16."""
    graph, request = net.graph(output), PlanRequest(precision="fp16")
    optimized(graph, (*passes.phases(request), *phases(request, {})))
    (region,) = graph.regions()
    return list(calls_of(graph, region))


def lowered(net: Net, output: str) -> list[Call]:
    """Return the calls that do more than copy numbers."""
    return [
        c for c in calls_in(net, output) if c.op not in ("elementwise", "copy", "concat", "pack")
    ]


def convolved(side: int, channels: int, filters: int) -> list[Call]:
    net = Net()
    x = net.input("x", 32, channels, side, side)
    return lowered(net, net("Conv", net("Relu", x), net.const(normal(filters, channels, 1, 1))))


@pytest.mark.parametrize(
    ("side", "channels", "filters", "rows", "deep"),
    [(56, 24, 144, 2, 64), (56, 96, 144, 1, 96), (56, 144, 24, 2, 288), (112, 32, 16, 4, 128),
     (28, 24, 144, 1, 64)],
)  # fmt: skip
def test_a_convolution_of_single_pixels_is_a_matmul_whose_rows_are_copied_whole(
    side: int, channels: int, filters: int, rows: int, deep: int
) -> None:
    """Pixels of few channels share a row if there are many."""
    (call,) = convolved(side, channels, filters)
    assert call.op == "gemm" and [v.dims for v in call.views if v][:2] == [
        (32 * side * side // rows, rows * channels), (rows * filters, deep)
    ]  # fmt: skip


@pytest.mark.parametrize(("side", "filters", "scaled"), [(56, 48, True), (28, 240, False)])
def test_factors_of_channels_are_in_the_weights_of_many_pixels(
    side: int, filters: int, scaled: bool
) -> None:
    net = Net()
    x = net.input("x", 32, 144, side, side)
    first = net("Conv", net("Relu", x), net.const(normal(144, 144, 1, 1)))
    factors = net("Sigmoid", net("GlobalAveragePool", first))
    last = net("Conv", net("Mul", first, factors), net.const(normal(filters, 144, 1, 1)))
    calls = calls_in(net, last)
    *_, weight = [c.views[1] for c in calls if c.op == "gemm"]
    (product,) = [c.views[0] for c in calls if c.op == "elementwise" and len(c.views) == 3]
    assert weight is not None and product is not None
    assert weight.dims == ((32, filters, 144) if scaled else (filters, 144))
    assert product.dims[:2] == (32, filters if scaled else side * side)


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


@pytest.mark.parametrize(("side", "channels", "depth"), [(16, 3, 768), (4, 3, 64), (2, 1, 64)])
def test_patches_of_an_image_are_rows_of_a_matrix(side: int, channels: int, depth: int) -> None:
    """Rows are padded to whole copies; patches that overlap or leave pixels out stay images."""
    net = Net()
    x = net.input("x", 2, channels, 224, 224)
    filters = net.const(normal(40, channels, side, side))
    strides, image = {"strides": [side, side]}, net("Relu", x)
    (call,) = lowered(net, net("Conv", image, filters, **strides))
    rows = 2 * (224 // side) ** 2
    assert call.op == "gemm" and [v.dims for v in call.views if v][:2] == [
        (rows, depth), (40, depth)
    ]  # fmt: skip


@pytest.mark.parametrize("more", [{"strides": [4, 3]}, {"strides": [4, 4], "pads": [0, 0, 4, 0]}])
def test_other_windows_are_no_patches(more: dict[str, list[int]]) -> None:
    net = Net()
    x = net.input("x", 2, 3, 224, 224)
    (call,) = lowered(net, net("Conv", net("Relu", x), net.const(normal(40, 3, 4, 4)), **more))
    assert call.op == "conv"


@pytest.mark.parametrize(
    ("channels", "filters", "groups", "multiplied"),
    [(128, 128, 32, 2), (512, 512, 8, 8), (96, 192, 96, 3), (224, 224, 4, 4)],
)
def test_groups_of_channels_are_one_call(
    channels: int, filters: int, groups: int, multiplied: int
) -> None:
    """Few channels share a matmul with those of other groups."""
    net = Net()
    x = net.input("x", 2, channels, 28, 28)
    weight = net.const(normal(filters, channels // groups, 3, 3))
    more = {"group": groups, "pads": [1, 1, 1, 1]}
    (call,) = lowered(net, net("Conv", net("Relu", x), weight, **more))
    weights = call.views[1]
    assert (call.op, call.attributes["groups"]) == ("conv", multiplied) and weights is not None
    assert weights.dims == (filters, 3, 3, channels // multiplied)


def test_joined_images_stay_channels_last() -> None:
    net = Net()
    x = net("Relu", net.input("x", 2, 64, 28, 28))
    around = {"pads": [1, 1, 1, 1]}
    first = net("Conv", x, net.const(normal(64, 64, 3, 3)), **around)
    second = net("Conv", first, net.const(normal(64, 64, 3, 3)), **around)
    joined = net("Concat", first, second, axis=1)
    calls = calls_in(net, net("Conv", joined, net.const(normal(64, 128, 3, 3)), **around))
    assert all(c.op != "copy" for c in calls), "both are stored where they are joined"
    strides = {v.strides for c in calls if c.op == "conv" for v in (c.views[0], c.views[-1]) if v}
    assert (28 * 28 * 128, 28 * 128, 128, 1) in strides


def test_images_joined_behind_numbers_of_channels_stay_channels_last() -> None:
    """As in DenseNets, whose layers scale and shift all channels so far."""
    net = Net()
    x = net("Relu", net.input("x", 2, 64, 28, 28))
    around = {"pads": [1, 1, 1, 1]}
    first = net("Conv", x, net.const(normal(64, 64, 3, 3)), **around)
    second = net("Conv", first, net.const(normal(64, 64, 3, 3)), **around)
    joined = net("Concat", first, second, axis=1)
    scaled = net("Relu", net("Mul", joined, net.const(normal(128, 1, 1))))
    calls = calls_in(net, net("Conv", scaled, net.const(normal(64, 128, 3, 3)), **around))
    read = [c.views[0] for c in calls if c.op == "conv" and c.views[0]]
    assert all(c.op != "copy" for c in calls)
    assert read[-1].strides == (28 * 28 * 128, 28 * 128, 128, 1)


def test_joined_pixels_of_images_are_no_image() -> None:
    """Detectors flatten maps of several scales and join them, as [N, C, pixels]."""
    net = Net()
    x = net("Relu", net.input("x", 2, 64, 28, 28))
    maps = [net("Conv", x, net.const(normal(64, 64, 1, 1)), strides=[s, s]) for s in (1, 2)]
    rows = [net("Reshape", y, net.ints(2, 64, -1)) for y in maps]
    calls = calls_in(net, net("Softmax", net("Concat", *rows, axis=2), axis=1))
    assert "softmax" in {c.op for c in calls}


@pytest.mark.parametrize(("step", "lines"), [(2, 2), (1, 1)])
def test_an_image_of_few_channels_is_packed_by_one_call(step: int, lines: int) -> None:
    """Zeros around it included; the filters are packed by another one, once."""
    net = Net()
    x = net.input("x", 2, 3, 224, 224)
    more = {"strides": [step, step], "pads": [1, 1, 1, 1]}
    y = net("Conv", net("Relu", x), net.const(normal(40, 3, 3, 3)), **more)
    packed = [c for c in calls_in(net, y) if c.op == "pack"]
    assert [c.attributes["lines"] for c in packed] == [lines] * 2
    assert [c.views[0].dims[0] for c in packed if c.views[0]] == [2, 40]


def excited(more: str = "", gate: str = "Sigmoid", channels: int = 96) -> list[str]:
    """Return the ops of a squeeze-and-excitation, perhaps with another reader of its means."""
    net = Net()
    x = net.input("x", 2, channels, 56, 56)
    y = net("Relu", net("Conv", x, net.const(normal(channels, channels, 1, 1))))
    means = net("GlobalAveragePool", y)
    first = [net.const(normal(4, channels, 1, 1)), net.const(normal(4))]
    second = [net.const(normal(channels, 4, 1, 1)), net.const(normal(channels))]
    hidden = net("Conv", means, *first)
    hidden = net("Mul", hidden, net("Sigmoid", hidden))
    made = net("Mul", y, net(gate, net("Conv", hidden, *second)))
    if more:
        made = net("Add", made, net(more, means))
    return [c.op for c in calls_in(net, net("Conv", made, net.const(normal(8, channels, 1, 1))))]


@pytest.mark.parametrize("gate", ["Sigmoid", "HardSigmoid"])
def test_squeeze_and_excitation_is_one_call(gate: str) -> None:
    ops = excited(gate=gate)
    assert ops.count("squeeze_excite") == 1 and "pool" not in ops


@pytest.mark.parametrize(("more", "channels"), [("Abs", 96), ("", 100)])
def test_means_that_are_read_elsewhere_or_have_odd_channels_are_calls(
    more: str, channels: int
) -> None:
    ops = excited(more, channels=channels)
    assert "squeeze_excite" not in ops and "pool" in ops


@pytest.mark.parametrize(("batch", "windows"), [(1, 1), (32, 2)])
def test_windows_of_few_channels_share_a_row_if_there_are_many(batch: int, windows: int) -> None:
    net = Net()
    x = net.input("x", batch, 3, 224, 224)
    more = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    (call,) = lowered(net, net("Conv", net("Relu", x), net.const(normal(32, 3, 3, 3)), **more))
    assert [v.dims for v in call.views if v][:2] == [
        (batch, 113, 112 // windows, 16 + 16 * windows), (32 * windows, 2, 1, 16 + 16 * windows)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("side", "taps", "step", "tile"),
    [(56, 3, 1, "2x2"), (7, 3, 1, "1x4"), (28, 5, 1, "14x14x32"), (7, 5, 1, "7x7x32"),
     (56, 5, 2, "8x14x32")],
)  # fmt: skip
def test_windows_have_kernels_for_their_sizes(side: int, taps: int, step: int, tile: str) -> None:
    """Squares of pixels for images with even sides; channels by lanes for large windows."""
    net = Net()
    x = net.input("x", 32, 96, side, side)
    filters, more = net.const(normal(96, 1, taps, taps)), {"pads": [taps // 2] * 4}
    first = net("Conv", x, net.const(normal(96, 96, 1, 1)))
    calls = lowered(net, net("Conv", first, filters, group=96, strides=[step] * 2, **more))
    (call,) = [c for c in calls if c.op == "depthwise"]
    assert variants_of(call)[0][0].tile == tile


@pytest.mark.parametrize(("batch", "when"), [(256, 8 * 256 - 4 * 132), (1, 8 - 4 * 132)])
def test_pools_over_many_images_need_few_threads_each(batch: int, when: int) -> None:
    net = Net()
    x = net.input("x", batch, 64, 7, 7)
    y = net("Relu", net("Conv", x, net.const(normal(2048, 64, 1, 1))))
    (call,) = [c for c in calls_in(net, net("GlobalAveragePool", y)) if c.op == "pool"]
    first, second, *_ = variants_of(call)
    assert (first[0].tile, first[1], second[0].tile, second[1]) == ("128x32", when, "512", 1)
