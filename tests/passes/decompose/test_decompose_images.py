"""Transposed convolutions and resizes become forms for which there are kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, loaded, normal, ops, optimized, reasons, schedule_only
from tracea_graph.kernels.cpu.lowering.lower import lacking
from tracea_graph.ops.resize import COORDINATES
from tracea_graph.passes.convolution.resize import RESIZE
from tracea_graph.passes.decompose.decompose import Decompose
from tracea_graph.rewrite import RulePass

TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "dilated": ((8, 9, 7), (8, 6, 3, 2), {"dilations": [2, 3]}),
    "dilated with strides": ((8, 5, 6), (8, 6, 3, 3), {"dilations": [2, 2], "strides": [2, 2]}),
    "a sequence": ((8, 9), (8, 6, 3), {"dilations": [3], "pads": [2, 1]}),
    "output_shape": ((8, 5, 6), (8, 6, 3, 3), {"strides": [2, 2], "output_shape": [10, 12]}),
    "SAME": ((8, 5, 6), (8, 6, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "SAME, more before": ((8, 5, 6), (8, 6, 4, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    "phases of unequal size": ((8, 5, 6), (8, 6, 4, 5), {"strides": [3, 3]}),
    "the same, padded": (
        (8, 5, 6), (8, 6, 5, 4),
        {"strides": [3, 3], "pads": [1, 2, 2, 0], "output_padding": [1, 2]},
    ),
    "gaps between windows": ((8, 5, 6), (8, 6, 1, 2), {"strides": [3, 3]}),
    "groups": ((8, 5, 6), (8, 3, 4, 4), {"strides": [2, 2], "pads": [1] * 4, "group": 2}),
    "groups of more filters": ((4, 5, 6), (4, 2, 2, 2), {"strides": [2, 2], "group": 4}),
    "volumes": ((4, 3, 5, 4), (4, 6, 3, 2, 3), {}),
    "volumes with strides": (
        (4, 3, 5, 4), (4, 6, 4, 3, 2),
        {"strides": [2, 1, 2], "pads": [1, 0, 0, 1, 1, 0], "output_padding": [1, 0, 1]},
    ),
    "volumes, twice as large": ((4, 3, 5, 4), (4, 6, 2, 2, 2), {"strides": [2, 2, 2]}),
    "volumes in groups, dilated": (
        (4, 3, 5, 4), (4, 3, 2, 3, 2), {"dilations": [2, 1, 2], "group": 2},
    ),
    "volumes, channel by channel": (
        (4, 3, 5, 4), (4, 1, 4, 4, 4), {"strides": [2, 2, 2], "pads": [1] * 6, "group": 4},
    ),
}  # fmt: skip


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", TRANSPOSED)
def test_transposed_convolutions(form: str, bias: bool) -> None:
    shape, kernel, attrs = TRANSPOSED[form]
    net = Net()
    more = [net.weight(kernel[1] * attrs.get("group", 1))] if bias else []
    y = net("ConvTranspose", net.input("x", "n", *shape), net.weight(*kernel), *more, **attrs)
    graph = net.graph(y)
    trace = schedule_only(graph, Decompose(whole_models=True))
    assert trace.applied()["decompose"] >= 1, trace.misses()
    assert "ConvTranspose" not in ops(graph) or len(shape) < 4
    optimized(graph)
    assert not {"ConvTranspose", "Conv"} & {*ops(graph)} or len(shape) == 4
    assert_same(net, graph, {"x": normal(2, *shape)})


@pytest.mark.parametrize("size", ["n", 9])
def test_sequences_of_any_length(size: int | str) -> None:
    net = Net()
    weight = net.weight(8, 6, 5)
    y = net("ConvTranspose", net.input("x", 1, 8, size), weight, strides=[2], dilations=[2])
    graph = net.graph(y)
    assert schedule_only(graph, Decompose(whole_models=True)).applied() == {"decompose": 1}
    assert_same(net, graph, {"x": normal(1, 8, 9)})


@pytest.mark.parametrize(
    ("shape", "kernel", "attrs", "why"),
    [
        ((8, "h", "w"), (8, 6, 3, 3), {"auto_pad": "SAME_UPPER"}, "a size that is not known"),
        ((8, 5, 6), (8, 6, 2, 2), {"output_shape": [9, 9]}, "larger than what its windows reach"),
        ((4, "d", 5, 6), (4, 6, 2, 2, 2), {}, "the sizes of its volumes are not known"),
    ],
)
def test_what_stays_says_why(
    shape: tuple[int | str, ...], kernel: tuple[int, ...], attrs: dict[str, Any], why: str
) -> None:
    net = Net()
    y = net("ConvTranspose", net.input("x", 1, *shape), net.weight(*kernel), **attrs)
    trace = schedule_only(net.graph(y), Decompose(whole_models=True))
    assert not trace.applied() and any(why in said for said in reasons(trace, "decompose"))


CUBIC = {"mode": "cubic"}
SIZES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    **{
        f"cubic {how}": ((3, 7, 9), (14, 13), {**CUBIC, "coordinate_transformation_mode": how})
        for how in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
                    "half_pixel_symmetric")
    },
    "cubic, smaller": ((3, 14, 13), (7, 5), CUBIC),
    "cubic, another slope": ((3, 7, 9), (14, 13), {**CUBIC, "cubic_coeff_a": -0.5}),
    "cubic inside": ((3, 7, 9), (14, 13), {**CUBIC, "exclude_outside": 1}),
    "cubic antialias": ((3, 17, 19), (8, 7), {**CUBIC, "antialias": 1}),
    "linear antialias": ((3, 17, 19), (8, 7), {"mode": "linear", "antialias": 1}),
    "linear antialias, larger": ((3, 7, 9), (16, 15), {"mode": "linear", "antialias": 1}),
    "linear symmetric": ((3, 7, 9), (14, 13), {
        "mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}),
    "linear volumes": ((3, 4, 5, 6), (8, 7, 9), {"mode": "linear"}),
    "nearest volumes": ((3, 4, 5, 6), (8, 7, 9), {"mode": "nearest"}),
    **{
        f"nearest {how} {rounding}": ((3, 7, 10), (11, 5), {
            "mode": "nearest", "coordinate_transformation_mode": how, "nearest_mode": rounding})
        for how in ("half_pixel", "asymmetric", "align_corners")
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        if (how, rounding) != ("asymmetric", "floor")
    },
}  # fmt: skip


@pytest.mark.parametrize("form", SIZES)
def test_resizes_of_known_sizes_are_products(form: str) -> None:
    shape, sizes, attrs = SIZES[form]
    net = Net(opset=19)
    given = net.ints(*sizes)
    axes = list(range(2, 2 + len(sizes)))
    x = net.input("x", "n", *shape)
    graph = loaded(net, net("Resize", x, "", "", given, axes=axes, **attrs))
    trace = schedule_only(graph, Decompose(whole_models=True))
    assert trace.applied() == {"decompose": 1}, trace.misses()
    assert {*ops(graph)} <= {"MatMul", "Transpose"}
    assert_same(net, graph, {"x": normal(2, *shape)})


@pytest.mark.parametrize("scale", [1.7, 0.6])
@pytest.mark.parametrize("mode", ["cubic", "nearest"])
def test_scales_are_those_that_are_given(mode: str, scale: float) -> None:
    net = Net()
    scales = net.const([1, 1, scale, scale])
    x, inside = net.input("x", 2, 3, 7, 10), int(mode == "cubic")
    graph = net.graph(net("Resize", x, "", scales, mode=mode, exclude_outside=inside))
    trace = schedule_only(graph, Decompose(whole_models=True))
    assert trace.applied() == {"decompose": 1}, trace.misses()
    assert_same(net, graph, {"x": normal(2, 3, 7, 10)})


@pytest.mark.parametrize(
    ("attrs", "sizes", "why"),
    [
        ({"mode": "cubic", "keep_aspect_ratio_policy": "not_larger"}, (9, 9), "not stretch"),
        (
            {"mode": "cubic", "exclude_outside": 1},
            (9000, 9),
            "the matrix of an axis would be too large",
        ),
    ],
)
def test_resizes_that_stay_say_why(
    attrs: dict[str, Any], sizes: tuple[int, ...], why: str
) -> None:
    net = Net(opset=19)
    x = net.input("x", 2, 3, 20, 9)
    y = net("Resize", x, "", "", net.ints(2, 3, *sizes), **attrs)
    trace = schedule_only(loaded(net, y), Decompose(whole_models=True))
    assert any(why in said for said in reasons(trace, "decompose")), trace.misses()


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_resizes_with_kernels_stay(mode: str) -> None:
    net = Net()
    how = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    x, sizes = net.input("x", 2, 3, 7, 9), net.ints(2, 3, 15, 11)
    graph = loaded(net, net("Resize", x, "", "", sizes, mode=mode, **how))
    assert not schedule_only(graph, Decompose(whole_models=True)).applied()
    weight = net.weight(3, 4, 3, 3)
    graph = net.graph(net("ConvTranspose", x, weight, strides=[2, 2], pads=[0, 0, 1, 1]))
    assert not schedule_only(graph, Decompose(whole_models=True)).applied()


def test_a_scale_that_changes_no_size_stays() -> None:
    net = Net()
    scales = net.const([1, 1, 1.03, 2.0])
    x = net.input("x", 2, 3, 7, 10)
    graph = net.graph(net("Resize", x, "", scales, mode="cubic", exclude_outside=1))
    trace = schedule_only(graph, Decompose(whole_models=True))
    assert any("leaves the size" in said for said in reasons(trace, "decompose"))


def test_a_resize_to_computed_sizes_stays() -> None:
    net = Net(opset=18)
    x = net.input("x", "n", 3, "h", "w")
    scales = net.const(np.array([1, 1, 2, 2], np.float32))
    graph = loaded(net, net("Resize", x, "", scales, mode="cubic", exclude_outside=1))
    trace = schedule_only(graph, Decompose(whole_models=True))
    assert any("its sizes are not known" in said for said in reasons(trace, "decompose"))


@pytest.mark.parametrize("how", COORDINATES)
@pytest.mark.parametrize("scales", [(2.0, 3.0), (0.6, 1.7), ()])
def test_cubic_interpolation_has_a_kernel(how: str, scales: tuple[float, ...]) -> None:
    net = Net()
    given = ["", net.const([1, 1, *scales])] if scales else ["", "", net.ints(2, 3, 1, 13)]
    attrs = {"mode": "cubic", "coordinate_transformation_mode": how, "cubic_coeff_a": -0.6}
    x = net.input("x", 2, 3, 7, 10)
    graph = net.graph(net("Resize", x, *given, **attrs))
    trace = schedule_only(graph, RulePass(RESIZE))
    assert ops(graph) == ["FusedResize"], trace.misses()
    assert lacking(graph, graph.regions()[0]) == "CPU kernels do not interpolate cubically"
    assert_same(net, graph, {"x": normal(2, 3, 7, 10)})


VOLUMES = Decompose(whole_models=True, takes_volumes=True)


@pytest.mark.parametrize("scales", [(2.0, 2.0, 2.0), (1.0, 1.6, 2.0), (1.5, 1.0, 1.0), ()])
@pytest.mark.parametrize("how", [*COORDINATES, "nearest"])
def test_volumes_are_resized_as_images(how: str, scales: tuple[float, ...]) -> None:
    net = Net()
    given = ["", net.const([1, 1, *scales])] if scales else ["", "", net.ints(2, 3, 9, 1, 13)]
    attrs = {"mode": "linear", "coordinate_transformation_mode": how}
    if how == "nearest":
        attrs = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x = net.input("x", 2, 3, 4, 5, 6)
    graph = net.graph(net("Resize", x, *given, **attrs))
    trace = schedule_only(graph, VOLUMES)
    assert trace.applied() == {"decompose": 1}, trace.misses()
    assert {*ops(graph)} <= {"Reshape", "Transpose", "Resize"}
    assert_same(net, graph, {"x": normal(2, 3, 4, 5, 6)})


def test_volumes_that_no_kernel_resizes_become_products() -> None:
    net = Net()
    x = net.input("x", 2, 3, 4, 5, 6)
    y = net("Resize", x, "", net.const([1, 1, 2, 2, 2]), nearest_mode="ceil")
    graph = net.graph(y)
    trace = schedule_only(graph, VOLUMES)
    assert "MatMul" in ops(graph), trace.misses()


def test_operators_of_volumes_stay_for_targets_that_take_them() -> None:
    net = Net()
    x = net.input("x", 2, 4, 6, 6, 6)
    y = net("MaxPool", x, kernel_shape=[2, 2, 2])
    y = net("Conv", y, net.weight(8, 4, 1, 1, 1))
    graph = net.graph(net("AveragePool", y, kernel_shape=[2, 1, 2]))
    assert not schedule_only(graph, VOLUMES).applied()
    assert schedule_only(graph, Decompose(whole_models=True)).applied() == {"decompose": 3}
