"""Nets over volumes become nets over images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, ops, optimized, schedule_only
from tracea_graph.passes.convolution.conv3d_to_conv2d import Conv3dToConv2d

X = normal(1, 6, 5, 8, 7)
Written = Callable[[Net, str], str]


def convolve(net: Net, x: str, o: int, i: int, *kernel: int, **attrs: Any) -> str:
    return net("Conv", x, net.weight(o, i, *kernel), net.weight(o), **attrs)


def written(case: Written) -> tuple[Net, str]:
    net = Net()
    return net, case(net, net.input("x", *X.shape))


def turned(case: Written) -> list[str]:
    """What becomes of a net that computes the same."""
    net, y = written(case)
    graph = net.graph(y)
    schedule_only(graph, Conv3dToConv2d())
    assert_same(net, graph, {"x": X})
    return ops(graph)


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "padded": {"pads": [1] * 6},
    "not padded": {},
    "strides": {"pads": [1] * 6, "strides": [2, 2, 1]},
    "three at a time": {"pads": [1] * 6, "strides": [3, 1, 1]},
    "more zeros behind": {"pads": [0, 1, 1, 2, 0, 1]},
    "dilated": {"pads": [2, 1, 1, 2, 1, 1], "dilations": [2, 1, 1]},
    "wider than the volume": {"pads": [6, 1, 1, 6, 1, 1], "dilations": [6, 1, 1]},
    "as large as it needs": {"auto_pad": "SAME_UPPER", "strides": [2, 1, 1]},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_depth_is_the_first_axis(name: str) -> None:
    found = turned(lambda net, x: convolve(net, x, 4, 6, 3, 3, 3, **CONVOLUTIONS[name]))
    assert "Conv" in found and (("FusedLayout" in found) == (name != "wider than the volume"))


def test_volumes_stay_where_kernels_convolve_them() -> None:
    net, y = written(lambda net, x: convolve(net, x, 4, 6, 3, 3, 3))
    graph = net.graph(y)
    trace = schedule_only(graph, Conv3dToConv2d(convolves_volumes=True))
    assert ops(graph) == ["Conv"] and not trace.applied()


def test_without_taps_in_depth_nothing_is_moved() -> None:
    found = turned(lambda net, x: convolve(net, x, 4, 3, 1, 3, 3, group=2))
    assert found.count("Conv") == 1 and "FusedLayout" not in found


def test_groups_with_taps_in_depth_stay() -> None:
    assert turned(lambda net, x: convolve(net, x, 4, 3, 3, 3, 3, group=2)) == ["Conv"]


def block(net: Net, x: str) -> str:
    y = convolve(net, x, 6, 6, 3, 3, 3, pads=[1] * 6)
    gate = net("Sigmoid", convolve(net, net("GlobalAveragePool", y), 6, 6, 1, 1, 1))
    y = net("Mul", net("Relu", y), gate)
    return net("Add", net("PRelu", y, normal(6, 1, 1, 1)), x)


def unet(net: Net, x: str) -> str:
    a = convolve(net, x, 4, 6, 1, 3, 3, pads=[0, 1, 1, 0, 1, 1])
    b = net("MaxPool", a, kernel_shape=[3, 2, 2], strides=[2, 2, 1])
    up = net.weight(4, 5, 2, 2, 2), net.weight(5)
    c = net("ConvTranspose", b, *up, strides=[2, 2, 2])
    return net("Concat", c, convolve(net, c, 3, 5, 3, 1, 1, pads=[1, 0, 0, 1, 0, 0]), axis=1)


def means(net: Net, x: str) -> str:
    y = net("ReduceMean", convolve(net, x, 4, 6, 2, 2, 2), axes=[2, 3, 4], keepdims=1)
    return net("Flatten", net("Mul", y, np.array(2.0, np.float32)))


@pytest.mark.parametrize("case", [block, unet, means])
def test_what_lies_between_is_turned_with_it(case: Written) -> None:
    found = turned(case)
    assert found.count("Transpose") == (1 if case is means else 2)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("InstanceNormalization", {}),
        ("MaxPool", {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2], "ceil_mode": 1}),
        ("AveragePool", {"kernel_shape": [2, 2, 2]}),
    ],
)
def test_what_cannot_be_turned_ends_a_group(op: str, attrs: dict[str, Any]) -> None:
    scales = [normal(4), normal(4)] if op == "InstanceNormalization" else []
    found = turned(lambda net, x: net(op, convolve(net, x, 4, 6, 1, 1, 1), *scales, **attrs))
    assert op in found and found.count("Transpose") == 2


def test_transposed_windows_that_overlap_in_depth_end_a_group() -> None:
    def case(net: Net, x: str) -> str:
        y, w = convolve(net, x, 4, 6, 1, 1, 1), net.weight(4, 5, 3, 2, 2)
        return net("ConvTranspose", y, w, strides=[2, 2, 2])

    net, y = written(case)
    graph = net.graph(y)
    schedule_only(graph, Conv3dToConv2d())
    (stayed,) = (r for r in graph.regions() if r.op == "ConvTranspose")
    assert graph.spec(stayed.operands[0]).rank == 5
    assert_same(net, graph, {"x": X})


@pytest.mark.parametrize("shape", [(2, 6, 5, 8, 7), ("n", 6, 5, 8, 7), (1, 6, "d", 8, 7)])
def test_volumes_of_several_items_or_open_sizes_stay(shape: Any) -> None:
    net = Net()
    graph = net.graph(convolve(net, net.input("x", *shape), 4, 6, 3, 3, 3))
    schedule_only(graph, Conv3dToConv2d())
    assert ops(graph) == ["Conv"]


def test_values_that_others_read_are_there_as_volumes() -> None:
    net = Net()
    x = net.input("x", *X.shape)
    y = convolve(net, x, 6, 6, 3, 1, 1, pads=[1, 0, 0, 1, 0, 0])
    graph = net.graph(y, net("Softmax", y, axis=2), net("Relu", y))
    schedule_only(graph, Conv3dToConv2d())
    assert_same(net, graph, {"x": X})


def test_a_net_is_one_program() -> None:
    net = Net()

    def conv(x: str, *shape: int, **attrs: Any) -> str:
        w = normal(*shape) * np.float32(np.prod(shape[1:]) ** -0.5)
        return net("Relu", net("Conv", x, net.const(w), net.weight(shape[0]), **attrs))

    x = net.input("x", 1, 16, 5, 8, 7)
    y = conv(x, 16, 16, 3, 3, 3, pads=[1] * 6)
    z = conv(y, 24, 16, 1, 3, 3, pads=[0, 1, 1, 0, 1, 1])
    z = conv(z, 16, 24, 3, 1, 1, pads=[1, 0, 0, 1, 0, 0])
    graph = net.graph(net("Add", y, z))
    optimized(graph)
    assert ops(graph).count("FusedRegion") == 1
    assert ops(graph).count("FusedLayout") <= 1 and not {"Conv", "FusedConv"} & {*ops(graph)}
    assert_same(net, graph, {"x": normal(1, 16, 5, 8, 7)})
