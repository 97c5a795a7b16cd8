"""Products of two dequantized values run in integers, as attention has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import (
    Net,
    assert_same,
    evaluate,
    loaded,
    normal,
    ops,
    optimized,
    reasons,
    schedule_only,
)
from tracea_graph import passes
from tracea_graph.passes.matmul.matmul import MATMUL
from tracea_graph.passes.quantized.matmul import QuantizedMatmul
from tracea_graph.rewrite import RulePass

H, D = 2, 8
STEP = 0.02
"""Scale of the result of attention."""


def quantized(
    net: Net, x: str, dtype: Any = np.uint8, scale: float = 0.03, zero: int = 7
) -> tuple[str, str, str]:
    s, z = net.const(np.float32(scale)), net.const(zero, dtype)
    return net("QuantizeLinear", x, s, z), s, z


def converted(net: Net, x: str, *how: Any) -> str:
    """x, rounded to integers, as numbers again."""
    return net("DequantizeLinear", *quantized(net, x, *how))


@pytest.mark.parametrize("left", [np.uint8, np.int8])
@pytest.mark.parametrize("right", [np.uint8, np.int8])
@pytest.mark.parametrize("zeros", [(0, 0), (5, 100)])
def test_both_sides_are_integers(left: Any, right: Any, zeros: tuple[int, int]) -> None:
    net = Net()
    a = converted(net, net.input("a", "n", 5, 9), left, 0.03, zeros[0])
    b = converted(net, net.input("b", "n", 9, 7), right, 0.02, zeros[1])
    graph = net.graph(net("MatMul", a, b))
    trace = schedule_only(graph, QuantizedMatmul(), RulePass(MATMUL))
    assert trace.applied() == {"quantized-matmul": 1}
    assert ops(graph) == ["QuantizeLinear", "QuantizeLinear", "FusedMatMul"]
    assert_same(net, graph, {"a": normal(2, 5, 9), "b": normal(2, 9, 7, seed=1)})


def heads(net: Net, x: str, perm: list[int]) -> str:
    """What a quantizer writes of x split into heads: conversions behind every step."""
    for op, more in (("Reshape", [net.ints(0, 0, H, D)]), ("Transpose", [])):
        x = net(op, converted(net, x), *more, **({"perm": perm} if op == "Transpose" else {}))
    return converted(net, x)


def attention(net: Net) -> str:
    q, k, v = (net.input(x, "batch", "seq", H * D) for x in "qkv")
    keys = heads(net, k, [0, 2, 3, 1])
    scores = converted(net, net("MatMul", heads(net, q, [0, 2, 1, 3]), keys), np.uint8, 0.05, 128)
    scaled = converted(net, net("Div", scores, 2.5), np.uint8, 0.02, 128)
    weights = converted(net, net("Softmax", scaled, axis=-1), np.uint8, 1 / 255, 0)
    y = converted(net, net("MatMul", weights, heads(net, v, [0, 2, 1, 3])), np.uint8, STEP, 128)
    y = converted(net, net("Transpose", y, perm=[0, 2, 1, 3]), np.uint8, STEP, 128)
    return net("Reshape", y, net.ints(0, 0, H * D))


def test_attention_between_conversions() -> None:
    """No value is rounded twice, and integers stay integers from product to product."""
    net = Net()
    graph = loaded(net, attention(net))
    optimized(graph, passes.phases())
    made = ops(graph)
    assert made.count("FusedMatMul") == 2 and made.count("FusedSoftmax") == 1
    products = [r for r in graph.regions() if r.op == "FusedMatMul"]
    assert all(r.params.integers for r in products)
    assert products[0].params.heads == (H, H)
    assert len(made) <= 9, made
    given = {x: normal(2, 5, H * D, seed=i) for i, x in enumerate("qkv")}
    (found,), (want,) = evaluate(graph, given), net.run(given)
    apart = np.abs(np.asarray(found) - want) / STEP
    assert apart.max() < 1.5 and (apart > 0.5).mean() < 0.1  # where a number lies on an edge


def other_scales(net: Net, a: str, b: str) -> tuple[str, str]:
    s, z = net.const(normal(9) ** 2 + 0.1), net.const(np.zeros(9), np.uint8)
    q = net("QuantizeLinear", a, s, z, axis=-1)
    return net("DequantizeLinear", q, s, z, axis=-1), converted(net, b)


def computed_scale(net: Net, a: str, b: str) -> tuple[str, str]:
    q, _, z = quantized(net, a)
    return net("DequantizeLinear", q, net.input("scale"), z), converted(net, b)


def computed_zero(net: Net, a: str, b: str) -> tuple[str, str]:
    q, s, z = quantized(net, a)
    moved = net("Cast", net("Cast", z, to=1), to=2)
    return net("DequantizeLinear", q, s, moved), converted(net, b)


def bad(scale: float) -> Any:
    def build(net: Net, a: str, b: str) -> tuple[str, str]:
        q, _, z = quantized(net, a)
        return net("DequantizeLinear", q, net.const(np.float32(scale)), z), converted(net, b)

    return build


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (other_scales, "'v0' does not have one float32 scale"),
        (computed_scale, "'scale' is not constant"),
        (computed_zero, "'v2' is not constant"),
        (bad(0.0), "the scale of 'v0' is zero, negative or out of range"),
        (bad(-1.0), "the scale of 'v0' is zero, negative or out of range"),
        (bad(np.nan), "the scale of 'v0' is zero, negative or out of range"),
        (bad(np.inf), "the scale of 'v0' is zero, negative or out of range"),
        (bad(1e-40), "the scale of 'v0' is zero, negative or out of range"),
    ],
)
def test_others_stay_products_of_numbers_and_say_why(build: Any, reason: str) -> None:
    net = Net()
    a, b = net.input("a", "n", 5, 9), net.input("b", "n", 9, 7)
    graph = net.graph(net("MatMul", *build(net, a, b)))
    trace = schedule_only(graph, QuantizedMatmul())
    assert trace.applied() == {} and reasons(trace, "quantized-matmul") == {reason}


def test_sums_that_may_not_fit_stay() -> None:
    net = Net()
    a = converted(net, net.input("a", 2, 40000))
    graph = net.graph(net("MatMul", a, converted(net, net.input("b", 40000, 3))))
    trace = schedule_only(graph, QuantizedMatmul())
    assert reasons(trace, "quantized-matmul") == {
        "sums of 40000 products of integers may not fit 32 bits"
    }


def test_factors_join_the_scale() -> None:
    net = Net()
    a = net("Mul", converted(net, net.input("a", 5, 9)), 0.125)
    graph = net.graph(net("MatMul", a, converted(net, net.input("b", 9, 7))))
    trace = schedule_only(graph, QuantizedMatmul())
    assert trace.applied() == {"quantized-matmul": 1}
    assert_same(net, graph, {"a": normal(5, 9), "b": normal(9, 7, seed=1)})
