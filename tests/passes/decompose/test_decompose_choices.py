"""Pools of volumes, choices of elements and rarer functions become operators that rules match."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import (
    Net,
    assert_same,
    evaluate,
    loaded,
    normal,
    ops,
    reasons,
    schedule_only,
)
from tracea_graph.ir import DType
from tracea_graph.passes.decompose.decompose import Decompose

Write = Callable[[Net, str], str]
VOLUME = ("n", 4, 6, 7, 8)
MATRIX = ("n", 6, 20)


def pool(op: str, kernel: tuple[int, ...], **attrs: object) -> Write:
    return lambda net, x: net(op, x, kernel_shape=kernel, **attrs)


def one(op: str, **attrs: object) -> Write:
    return lambda net, x: net(op, x, **attrs)


def chosen(result: int, axis: int) -> Write:
    """One of the results of a TopK of three, as float32."""

    def write(net: Net, x: str) -> str:
        found = net.many("TopK", 2, x, net.ints(3), axis=axis)
        return net("Cast", found[result], to=DType.F32.onnx)

    return write


def gathered(net: Net, x: str) -> str:
    return net("GatherElements", x, net("ArgMin", x, axis=1), axis=1)


POOLS: dict[str, Write] = {
    "MaxPool": pool("MaxPool", (2, 3, 2), strides=[2, 1, 2]),
    "MaxPool, padded and dilated": pool("MaxPool", (3, 2, 2), pads=[1, 0, 1] * 2,
                                        dilations=[2, 1, 2]),
    "AveragePool": pool("AveragePool", (3, 2, 2), pads=[1, 0, 1] * 2, strides=[2, 2, 2]),
    "AveragePool that counts padding": pool("AveragePool", (3, 3, 3), pads=[1] * 6,
                                            count_include_pad=1),
    "MaxPool, the same size": pool("MaxPool", (3, 3, 3), auto_pad="SAME_UPPER"),
    "LpPool": pool("LpPool", (2, 2, 2), strides=[2, 2, 2]),
    "LpPool, the 1-norm, padded": pool("LpPool", (2, 2, 2), p=1, pads=[1, 0, 0, 0, 1, 0]),
    "LpPool, the 3-norm": pool("LpPool", (2, 2, 2), p=3),
    "GlobalLpPool": one("GlobalLpPool"),
    "GlobalLpPool, the 1-norm": one("GlobalLpPool", p=1),
}  # fmt: skip


@pytest.mark.parametrize("form", POOLS)
def test_pools_of_volumes(form: str) -> None:
    net = Net()
    graph = loaded(net, POOLS[form](net, net.input("x", *VOLUME)))
    trace = schedule_only(graph, Decompose())
    assert trace.applied()["decompose"] >= 1, trace.misses()
    assert not {"LpPool", "GlobalLpPool"} & {*ops(graph)}
    pools = [r for r in graph.regions() if r.op in ("MaxPool", "AveragePool")]
    assert all(graph.spec(r.operands[0]).rank == 4 for r in pools)
    assert_same(net, graph, {"x": normal(2, *VOLUME[1:])})


@pytest.mark.parametrize(
    "attrs",
    [{"size": 3}, {"size": 5, "alpha": 0.3, "beta": 0.6, "bias": 2.0},
     {"size": 1, "alpha": 0.3, "beta": 0.5}],
)  # fmt: skip
def test_a_sum_over_neighbouring_channels_is_a_convolution(attrs: dict[str, float]) -> None:
    net = Net()
    graph = loaded(net, net("LRN", net.input("x", "n", 9, 5, "w"), **attrs))
    assert schedule_only(graph, Decompose()).applied() == {"decompose": 1}
    assert "Conv" in ops(graph)
    assert_same(net, graph, {"x": normal(2, 9, 5, 6)})


CHOICES: dict[str, Write] = {
    "Hardmax": one("Hardmax"),
    "Hardmax of a middle axis": one("Hardmax", axis=1),
    "values of TopK": chosen(0, 1),
    "places of TopK": chosen(1, 1),
    "TopK of items": chosen(0, -2),
    "GatherElements": gathered,
    "Trilu": one("Trilu"),
    "a lower Trilu": lambda net, x: net("Trilu", x, net.const(-1, np.int64), upper=0),
}


@pytest.mark.parametrize("form", CHOICES)
def test_choices_of_elements(form: str) -> None:
    net = Net()
    graph = loaded(net, CHOICES[form](net, net.input("x", *MATRIX)))
    trace = schedule_only(graph, Decompose())
    assert trace.applied() == {"decompose": 1}, trace.misses()
    assert_same(net, graph, {"x": normal(4, *MATRIX[1:])})


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_one_hot(axis: int, kind: type) -> None:
    """Negative indices count from the end; others outside of the depth name no position."""
    net = Net()
    values = net.const([-2, 3], kind)
    y = net("OneHot", net.ids("ids", "n", 5), net.ints(7), values, axis=axis)
    graph = loaded(net, y)
    assert schedule_only(graph, Decompose()).applied() == {"decompose": 1}
    assert_same(net, graph, {"ids": np.arange(-10, 10).reshape(4, 5)})


FUNCTIONS = {
    "Tan": (-1.5, 1.5), "Sinh": (-4, 4), "Cosh": (-4, 4), "Asinh": (-9, 9), "Acosh": (1, 90),
    "Atanh": (-0.999, 0.999), "Atan": (-90, 90), "Asin": (-1, 1), "Acos": (-1, 1),
    "Shrink": (-2, 2),
}  # fmt: skip


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions(op: str) -> None:
    net = Net()
    more = {"bias": 0.25, "lambd": 0.75} if op == "Shrink" else {}
    graph = loaded(net, net(op, net.input("x", "n"), **more))
    assert schedule_only(graph, Decompose()).applied() == {"decompose": 1}
    assert op not in ops(graph)
    low, high = FUNCTIONS[op]
    assert_same(net, graph, {"x": np.linspace(low, high, 4001, dtype=np.float32)}, 1e-6)


@pytest.mark.parametrize("op", ["Atan", "Asinh", "Sinh", "Cosh", "Asin", "Tan"])
def test_functions_of_special_numbers(op: str) -> None:
    """Infinities, NaN, zeros and the largest numbers give what ONNX Runtime gives."""
    net = Net()
    graph = loaded(net, net(op, net.input("x", "n")))
    schedule_only(graph, Decompose())
    x = np.array([0, -np.inf, np.inf, np.nan, 1, -1, 2, 88.9, -88.9, 3e38], np.float32)
    if op == "Tan":
        x = x[:7]
    with np.errstate(all="ignore"):
        (made,) = evaluate(graph, {"x": x})
    np.testing.assert_allclose(made, net.run({"x": x})[0], 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (one("LpPool", kernel_shape=[2, 2, 2], ceil_mode=1), "may end behind the padding"),
        (one("GlobalLpPool", p=3), "neither the 1-norm nor the 2-norm"),
        (one("Trilu"), "its sizes or its diagonal are not known"),
        (one("Hardmax"), "the length of its axis is not known"),
    ],
)
def test_what_stays_says_why(form: Write, why: str) -> None:
    net = Net(opset=18)
    graph = loaded(net, form(net, net.input("x", 2, 4, "d", "h", "w")))
    trace = schedule_only(graph, Decompose())
    assert len(ops(graph)) == 1 and any(why in said for said in reasons(trace, "decompose"))
