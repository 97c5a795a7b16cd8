"""Resizing: every spelling ONNX Runtime takes, and what is left to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, only, ops, optimized, reasons
from tests.interpreter import run
from tracea_graph import load
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.ops.resize import COORDINATES, ResizeParams
from tracea_graph.ttg import TileGraph

X = normal(2, 5, 6, 7)


def resized(net: Net, x: str, how: str, scales: Any = None, sizes: Any = None, **more: Any) -> str:
    given = ("", net.const(np.asarray(scales, np.float32))) if scales else ("", "")
    last = (net.ints(*sizes),) if sizes else ()
    more = {"mode": "linear", "coordinate_transformation_mode": how, **more}
    return net("Resize", x, *given, *last, **more)


@pytest.mark.parametrize("how", COORDINATES)
@pytest.mark.parametrize(
    "where",
    [
        {"scales": (1, 1, 2, 2)}, {"scales": (1, 1, 1.7, 0.6)}, {"scales": (1, 1, 3, 1)},
        {"sizes": (2, 5, 11, 3)}, {"sizes": (2, 5, 1, 20)},
    ],
)  # fmt: skip
def test_it_is_what_onnx_runtime_makes_of_it(how: str, where: dict[str, Any]) -> None:
    net = Net()
    graph = net.graph(resized(net, net.input("x", *X.shape), how, **where))
    optimized(graph)
    assert ops(graph) == ["FusedResize"]
    assert_same(net, graph, {"x": X}, 1e-6)


@pytest.mark.parametrize("how", COORDINATES)
@pytest.mark.parametrize(
    "where", [{"scales": (1, 1, 2)}, {"scales": (1, 1, 1.7)}, {"sizes": (2, 5, 3)},
              {"sizes": (2, 5, 1)}, {"sizes": (2, 5, 41)}],
)  # fmt: skip
def test_lines_are_images_of_one_row(how: str, where: dict[str, Any]) -> None:
    net = Net()
    graph = net.graph(resized(net, net.input("x", 2, 5, 7), how, **where))
    optimized(graph)
    assert ops(graph) == ["FusedResize"]
    assert_same(net, graph, {"x": X[:, :, 0]}, 1e-6)
    (made,) = run(lower(graph, only(graph, "FusedResize")), [X[:, :, 0]])
    (want,) = net.run({"x": X[:, :, 0]})
    assert np.abs(np.asarray(made) - want).max() < 1e-5


def test_lines_between_convolutions_stay_in_their_program() -> None:
    net = Net()
    x = net.input("x", "n", 16, "w")
    y = net("Conv", x, net.weight(16, 16, 3), pads=[1, 1])
    y = resized(net, y, "half_pixel", (1, 1, 2))
    graph = net.graph(net("Relu", net("Conv", y, net.weight(16, 16, 1))))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    assert_same(net, graph, {"x": normal(2, 16, 9)}, 3e-5)


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_older_spellings(opset: int) -> None:
    net = Net(opset)
    x = net.input("x", *X.shape)
    if opset == 7:
        y = net("Upsample", x, mode="linear", scales=[1.0, 1.0, 2.0, 3.0])
    else:
        scales = net.const(np.asarray((1, 1, 2, 3), np.float32))
        y = net("Upsample" if opset < 10 else "Resize", x, scales, mode="linear")
    graph = net.graph(y)
    optimized(graph)
    assert ops(graph) == ["FusedResize"]
    assert_same(net, graph, {"x": X}, 1e-6)


def test_between_convolutions_it_is_a_step_of_their_program() -> None:
    net = Net()
    x = net.input("x", "n", 16, "h", "w")
    y = net("Conv", x, net.weight(16, 16, 3, 3), pads=[1] * 4)
    y = resized(net, y, "half_pixel", (1, 1, 2, 2))
    graph = net.graph(net("Relu", net("Conv", y, net.weight(16, 16, 1, 1))))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    assert_same(net, graph, {"x": normal(2, 16, 9, 7)}, 3e-5)


CORNER = {"mode": "nearest", "nearest_mode": "floor"}


@pytest.mark.parametrize("sizes", [(2, 5, 13, 7), (2, 5, 4, 20), (2, 5, 1, 1)])
def test_to_the_nearest_of_any_size(sizes: tuple[int, ...]) -> None:
    net = Net()
    graph = net.graph(resized(net, net.input("x", *X.shape), "asymmetric", sizes=sizes, **CORNER))
    optimized(graph)
    assert ops(graph) == ["FusedResize"]
    assert_same(net, graph, {"x": X}, 1e-12)


def imported(folder: Path, net: Net, *outputs: str) -> TileGraph:
    """The graph as the importer reads it: it knows more sizes than ONNX's own inference."""
    net.save(folder / "net.onnx", *outputs)
    return load(folder / "net.onnx")


def as_large_as(net: Net, x: str, other: str, **more: Any) -> str:
    """Resized to the height and width of another value, as PyTorch exports it."""
    ends = [
        net("Slice", net("Shape", v), net.ints(a), net.ints(b))
        for v, a, b in ((x, 0, 2), (other, 2, 4))
    ]
    more = {"mode": "linear", "coordinate_transformation_mode": "half_pixel", **more}
    return net("Resize", x, "", "", net("Concat", *ends, axis=0), **more)


@pytest.mark.parametrize(
    "more",
    [{}, {"coordinate_transformation_mode": "asymmetric", **CORNER}],
    ids=["linear", "nearest"],
)
@pytest.mark.parametrize("size", [(12, 14), (9, 7), (33, 21)])
def test_to_fit_what_it_is_put_together_with(
    tmp_path: Path, more: dict[str, Any], size: tuple[int, int]
) -> None:
    net = Net()
    x = net.input("x", "n", 16, "h", "w")
    skip = net("Conv", x, net.weight(16, 16, 3, 3), pads=[1] * 4)
    y = net("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2])
    y = net("Conv", y, net.weight(16, 16, 3, 3), pads=[1] * 4)
    y = net("Concat", as_large_as(net, y, skip, **more), skip, axis=1)
    graph = imported(tmp_path, net, net("Relu", net("Conv", y, net.weight(16, 32, 1, 1))))
    optimized(graph)
    graph.prune()  # what computed the sizes
    assert ops(graph) == ["FusedRegion"]
    assert_same(net, graph, {"x": normal(2, 16, *size)}, 3e-5)


def test_to_the_size_of_an_input(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", "n", 16, "h", "w")
    y = net("Conv", x, net.weight(16, 16, 3, 3), strides=[2, 2], pads=[1] * 4)
    graph = imported(tmp_path, net, as_large_as(net, y, x))
    optimized(graph)
    graph.prune()  # what computed the sizes
    assert ops(graph) == ["FusedRegion"]
    assert_same(net, graph, {"x": normal(1, 16, 11, 14)}, 3e-5)


def test_what_is_computed_from_it_tells_no_size(tmp_path: Path) -> None:
    net = Net()
    x, size = net.input("x", "n", 16, "h", "w"), net.ids("size", 4)
    y = net("Resize", x, "", "", size, mode="linear")
    graph = imported(tmp_path, net, net("Concat", y, net("Relu", y), axis=1))
    trace = optimized(graph)
    assert "Resize" in ops(graph)
    assert any("sizes" in reason for reason in reasons(trace, "resize"))


@pytest.mark.parametrize(
    ("shape", "settings", "why"),
    [
        ((2, 5, "h", 7), {"scales": (1, 1, 1.5, 2)}, "not a whole number of pixels"),
        ((2, 5, 3, 6, 7), {"scales": (1, 1, 2, 2, 2)}, "two spatial axes"),
        ((2, 5, 6, 7), {"scales": (1, 2, 2, 2)}, "resizes the batch or channel axis"),
        ((2, 5, 6, 7), {"scales": (1, 1, 2, 2), "antialias": 1}, "antialias"),
        ((2, 5, 6, 7), {"scales": (1, 1, 2, 2), "how": "tf_crop_and_resize"}, "tf_crop"),
        ((2, 5, 6, 7), {"sizes": (2, 5, 7, 9), "mode": "nearest"}, "round_prefer_floor rounding"),
    ],
)
def test_what_is_left(shape: Any, settings: dict[str, Any], why: str) -> None:
    net = Net(18)
    settings = {"how": "half_pixel", **settings}
    graph = net.graph(resized(net, net.input("x", *shape), **settings))
    trace = optimized(graph)
    assert ops(graph) == ["Resize"]
    assert any(why in reason for reason in reasons(trace, "resize"))


def test_the_reference_rounds_positions_as_onnx_runtime_does() -> None:
    """Far to the right of a large image float32 places decide between neighbours."""
    net = Net()
    wide = np.arange(3001, dtype=np.float32).reshape(1, 1, 1, -1) % 7
    net.graph(resized(net, net.input("x", *wide.shape), "half_pixel", (1, 1, 1, 1.1)))
    (wanted,) = net.run({"x": wide})
    (found,) = ResizeParams("half_pixel", scales=(1.0, float(np.float32(1.1)))).reference([wide])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
