"""Activations are recognised in every spelling, and only in those."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np
import pytest

from tests.graphs import (
    APART,
    Net,
    assert_same,
    normal,
    only,
    ops,
    optimized,
    reasons,
    schedule_only,
)
from tracea_graph.ir import DType
from tracea_graph.passes.pointwise import decomposed_activations
from tracea_graph.rewrite import RulePass

FEEDS = {"x": 3 * normal(2, 5, 8)}
RULES = tuple(map(RulePass, decomposed_activations.RULES))
Spelling = Callable[[Net, str], str]


def new(opset: int = 17) -> tuple[Net, str]:
    net = Net(opset)
    return net, net.input("x", "batch", "seq", 8)


def phi(net: Net, inner: str) -> str:
    return net("Add", net("Erf", inner), 1.0)


def root(net: Net, x: str) -> str:
    return net("Div", x, sqrt(2))


GELU: dict[str, Spelling] = {
    "x·(1+erf)·½": lambda n, x: n("Mul", n("Mul", x, phi(n, root(n, x))), 0.5),
    "½·((1+erf)·x)": lambda n, x: n("Mul", 0.5, n("Mul", phi(n, root(n, x)), x)),
    "(x·½)·(1+erf)": lambda n, x: n("Mul", n("Mul", x, 0.5), phi(n, root(n, x))),
    "(x/2)·(1+erf)": lambda n, x: n("Mul", n("Div", x, 2.0), phi(n, root(n, x))),
    "x·((1+erf)·½)": lambda n, x: n("Mul", x, n("Mul", phi(n, root(n, x)), 0.5)),
    "x·(1+erf)/2": lambda n, x: n("Div", n("Mul", x, phi(n, root(n, x))), 2.0),
    "erf(x·√½)": lambda n, x: n("Mul", n("Mul", x, phi(n, n("Mul", x, sqrt(0.5)))), 0.5),
    "√2 with five digits": lambda n, x: n("Mul", n("Mul", x, phi(n, n("Div", x, 1.4142))), 0.5),
    "1+erf the other way": lambda n, x: n(
        "Mul", n("Mul", x, n("Add", 1.0, n("Erf", root(n, x)))), 0.5
    ),
}


def cubed(net: Net, x: str) -> str:
    return net("Pow", x, 3.0)


def tanh_phi(net: Net, inner: str) -> str:
    return net("Add", net("Tanh", inner), 1.0)


C, S = 0.044715, sqrt(2 / pi)


def hf_inner(n: Net, x: str) -> str:
    return n("Mul", n("Add", x, n("Mul", cubed(n, x), C)), S)


def prescaled_inner(n: Net, x: str) -> str:
    return n("Mul", n("Mul", x, S), n("Add", n("Mul", n("Mul", x, C), x), 1.0))


def factored_inner(n: Net, x: str) -> str:
    return n("Mul", n("Mul", x, n("Add", n("Mul", n("Mul", x, x), C), 1.0)), S)


GELU_TANH: dict[str, Spelling] = {
    "gelu_new: Pow 3": lambda n, x: n("Mul", n("Mul", x, 0.5), tanh_phi(n, hf_inner(n, x))),
    "x·x·x": lambda n, x: n(
        "Mul",
        n("Mul", x, 0.5),
        tanh_phi(n, n("Mul", n("Add", x, n("Mul", n("Mul", n("Mul", x, x), x), C)), S)),
    ),
    "(0.044715·x)·x²": lambda n, x: n(
        "Mul",
        n("Mul", x, 0.5),
        tanh_phi(n, n("Mul", n("Add", x, n("Mul", n("Mul", x, C), n("Mul", x, x))), S)),
    ),
    "x·(1+0.044715·x²)": lambda n, x: n(
        "Mul", n("Mul", x, 0.5), tanh_phi(n, factored_inner(n, x))
    ),
    "gelu_fast: prescaled": lambda n, x: n(
        "Mul", n("Mul", x, 0.5), tanh_phi(n, prescaled_inner(n, x))
    ),
    "½ last": lambda n, x: n("Mul", n("Mul", x, tanh_phi(n, hf_inner(n, x))), 0.5),
    "½ inside": lambda n, x: n("Mul", x, n("Mul", tanh_phi(n, hf_inner(n, x)), 0.5)),
}

SILU: dict[str, Spelling] = {
    "x·σ(x)": lambda n, x: n("Mul", x, n("Sigmoid", x)),
    "σ(x)·x": lambda n, x: n("Mul", n("Sigmoid", x), x),
}


def relu6_gate(net: Net, x: str) -> str:
    return net("Clip", net("Add", x, 3.0), 0.0, 6.0)


HARD_SWISH: dict[str, Spelling] = {
    "x·relu6(x+3)/6": lambda n, x: n("Div", n("Mul", x, relu6_gate(n, x)), 6.0),
    "x·relu6(x+3)·⅙": lambda n, x: n("Mul", n("Mul", relu6_gate(n, x), x), 1 / 6),
    "x·(relu6(3+x)/6)": lambda n, x: n("Mul", x, n("Div", relu6_gate(n, x), 6.0)),
    "(x/6)·relu6(x+3)": lambda n, x: n("Mul", n("Div", x, 6.0), relu6_gate(n, x)),
    "x·HardSigmoid": lambda n, x: n("Mul", x, n("HardSigmoid", x, alpha=1 / 6, beta=0.5)),
}

MISH: dict[str, Spelling] = {
    "x·tanh(softplus)": lambda n, x: n("Mul", x, n("Tanh", n("Softplus", x))),
    "tanh(softplus)·x": lambda n, x: n("Mul", n("Tanh", n("Softplus", x)), x),
}

ALL = [
    *((s, "gelu", "gelu", 17) for s in GELU.values()),
    *((s, "gelu-tanh", "gelu_tanh", 17) for s in GELU_TANH.values()),
    *((s, "silu", "silu", 17) for s in SILU.values()),
    *((s, "hard-swish", "hard_swish", 17) for s in HARD_SWISH.values()),
    *((s, "mish", "mish", 17) for s in MISH.values()),
    (lambda n, x: n("Gelu", x), "gelu-op", "gelu", 20),
    (lambda n, x: n("Gelu", x, approximate="none"), "gelu-op", "gelu", 20),
    (lambda n, x: n("Gelu", x, approximate="tanh"), "gelu-op", "gelu_tanh", 20),
]
NAMES = [*GELU, *GELU_TANH, *SILU, *HARD_SWISH, *MISH, "Gelu", "Gelu(none)", "Gelu(tanh)"]


@pytest.mark.parametrize(("spelling", "rule", "step", "opset"), ALL, ids=NAMES)
def test_a_spelling_becomes_one_step(spelling: Spelling, rule: str, step: str, opset: int) -> None:
    net, x = new(opset)
    graph = net.graph(spelling(net, x))
    trace = schedule_only(graph, *RULES)
    region = only(graph, "FusedElementwise")
    assert ops(graph) == ["FusedElementwise"]
    assert trace.applied() == {rule: 1} and not trace.misses()
    assert region.params.chain.text == f"full|{step}(0)|1"
    assert region.operands == ("x",)
    assert_same(net, graph, FEEDS, 3e-5)


NEAR: dict[str, Spelling] = {
    "another scale in Erf": lambda n, x: n("Mul", n("Mul", x, phi(n, n("Div", x, 1.5))), 0.5),
    "not divided by 2": lambda n, x: n("Mul", n("Mul", x, phi(n, root(n, x))), 0.4),
    "1 is 1.001": lambda n, x: n("Mul", n("Mul", x, n("Add", n("Erf", root(n, x)), 1.001)), 0.5),
    "another factor": lambda n, x: n("Mul", n("Mul", n("Exp", x), phi(n, root(n, x))), 0.5),
    "Pow 2 for the cube": lambda n, x: n(
        "Mul",
        n("Mul", x, 0.5),
        tanh_phi(n, n("Mul", n("Add", x, n("Mul", n("Pow", x, 2.0), C)), S)),
    ),
    "relu5 for relu6": lambda n, x: n(
        "Div", n("Mul", x, n("Clip", n("Add", x, 3.0), 0.0, 5.0)), 6.0
    ),
    "another slope in HardSigmoid": lambda n, x: n("Mul", x, n("HardSigmoid", x)),
    "1.702·x in the sigmoid": lambda n, x: n("Mul", x, n("Sigmoid", n("Mul", x, 1.702))),
}


@pytest.mark.parametrize("name", NEAR)
def test_something_similar_is_left_alone(name: str) -> None:
    net, x = new()
    graph = net.graph(NEAR[name](net, x))
    assert schedule_only(graph, *RULES).applied() == {}
    assert "FusedElementwise" not in ops(graph)


def test_everything_similar_still_computes_the_same() -> None:
    for spelling in NEAR.values():
        net, x = new()
        graph = net.graph(spelling(net, x))
        optimized(graph)
        assert_same(net, graph, FEEDS)


def test_an_intermediate_that_is_read_elsewhere_is_the_reason() -> None:
    net, x = new()
    erf = net("Erf", root(net, x), name="erf")
    y = net("Mul", net("Mul", x, net("Add", erf, 1.0)), 0.5)
    graph = net.graph(y, net("Neg", erf))
    assert reasons(schedule_only(graph, *RULES), "gelu") == {
        "the result 'erf' of Erf has other readers"
    }


def test_a_graph_output_inside_is_the_reason() -> None:
    net, x = new()
    gate = net("Sigmoid", x, name="gate")
    graph = net.graph(net("Mul", x, gate), gate)
    assert reasons(schedule_only(graph, *RULES), "silu") == {
        "the result 'gate' of Sigmoid is a graph output"
    }


@pytest.mark.parametrize("dtype", [DType.F64, DType.F16])
def test_other_types_stay(dtype: DType) -> None:
    net = Net()
    x = net.input("x", 4, dtype=dtype)
    graph = net.graph(net("Mul", x, net("Sigmoid", x)))
    assert reasons(schedule_only(graph, *RULES), "silu") == {"x is not float32"}


def test_constants_with_more_axes_than_x_stay() -> None:
    """A scalar times an array of one number is an array."""
    net = Net()
    x = net.input("x")
    half, one = net.const([0.5]), net.const([1.0])
    y = net("Mul", net("Mul", x, half), net("Add", net("Erf", root(net, x)), one), name="y")
    graph = net.graph(y)
    trace = schedule_only(graph, *RULES)
    assert reasons(trace, "gelu") == {"its constants have more axes than x"}
    assert_same(net, graph, {"x": np.array(0.7, np.float32)})


def test_the_gate_of_a_swiglu_is_recognised() -> None:
    net, x = new()
    gate, up = (net("MatMul", x, net.weight(8, 16)) for _ in range(2))
    graph = net.graph(net("Mul", net("Mul", gate, net("Sigmoid", gate)), up))
    trace = optimized(graph, limits=APART)
    assert trace.applied()["silu"] == 1
    assert ops(graph) == ["FusedGemm", "FusedGemm"]
    assert_same(net, graph, {"x": normal(2, 5, 8)})


def test_nan_and_infinity_pass_through() -> None:
    net, x = new()
    graph = net.graph(GELU["x·(1+erf)·½"](net, x))
    schedule_only(graph, *RULES)
    feeds = {"x": np.array([np.nan, np.inf, 1, 2, 3, 4, 5, 6], np.float32).reshape(1, 1, 8)}
    from tests.graphs import evaluate

    actual, expected = evaluate(graph, feeds)[0], net.run(feeds)[0]
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    assert actual[0, 0, 1] == expected[0, 0, 1] == np.inf
