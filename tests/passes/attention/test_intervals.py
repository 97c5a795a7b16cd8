"""Bounds of values: sound, and tight where a guard against −∞ depends on them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graphs import Net, evaluate
from tracea_graph.ir import DType
from tracea_graph.passes.attention.interval_arithmetic import UNBOUNDED, interval

LOWEST = float(np.finfo(np.float32).min)
Make = Callable[[Net], str]


def kept(net: Net) -> str:
    return net.input("m", 2, 4, dtype=DType.BOOL)


def as_float(net: Net) -> str:
    return net("Cast", kept(net), to=DType.F32.onnx)


def through_integers(net: Net) -> str:
    return net("Cast", net("Cast", kept(net), to=DType.I64.onnx), to=DType.F32.onnx)


CASES: dict[str, tuple[Make, tuple[float, float]]] = {
    "a constant": (lambda n: n.const([[1, -2, 3, 0]]), (-2, 3)),
    "a boolean": (kept, (0, 1)),
    "a cast boolean": (as_float, (0, 1)),
    "a boolean cast twice": (through_integers, (0, 1)),
    "a distance": (lambda n: n("Neg", n("Abs", n("Sub", as_float(n), 3.0))), (-3, -2)),
    "a choice": (lambda n: n("Where", kept(n), 0.0, LOWEST), (LOWEST, 0)),
    "a choice of −∞": (lambda n: n("Where", kept(n), 0.0, -inf), (-inf, 0)),
    "a computed mask": (
        lambda n: n("Mul", n("Sub", 1.0, as_float(n)), LOWEST),
        (LOWEST, 0),
    ),
    "reshaped": (
        lambda n: n("Unsqueeze", n("Transpose", as_float(n), perm=[1, 0]), n.ints(0)),
        (0, 1),
    ),
    "clamped": (lambda n: n("Max", n.input("x", 2, 4), -1e4), (-1e4, inf)),
    "overflow": (lambda n: n("Mul", n("Add", as_float(n), 1.0), LOWEST), (-inf, LOWEST)),
    "an input": (lambda n: n("Neg", n.input("x", 2, 4)), UNBOUNDED),
    "an input times zero": (lambda n: n("Mul", n.input("x", 2, 4), 0.0), UNBOUNDED),
    "an integer input": (
        lambda n: n("Cast", n.ids("i", 2, 4), to=DType.F32.onnx),
        (-(2.0**63), 2.0**63),
    ),
    "NaN": (lambda n: n.const([1.0, np.nan]), UNBOUNDED),
}


@pytest.mark.parametrize("name", CASES)
def test_bounds(name: str) -> None:
    make, expected = CASES[name]
    net = Net()
    value = make(net)
    graph = net.graph(net("Identity", value))
    assert interval(graph, value) == pytest.approx(expected)


@given(
    st.lists(st.sampled_from(["Add", "Sub", "Mul", "Max", "Min"]), min_size=1, max_size=5),
    st.lists(st.floats(-3, 3, width=32), min_size=5, max_size=5),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_no_value_leaves_its_bounds(
    steps: list[str], numbers: list[float], bits: list[bool]
) -> None:
    net = Net()
    value = as_float(net)
    for op, number in zip(steps, numbers, strict=False):
        value = net(op, value, number)
    graph = net.graph(value)
    low, high = interval(graph, value)
    (actual,) = evaluate(graph, {"m": np.array(bits).reshape(2, 4)})
    slack = 1e-5 * max(1.0, abs(low), abs(high))
    assert low - slack <= actual.min() and actual.max() <= high + slack
