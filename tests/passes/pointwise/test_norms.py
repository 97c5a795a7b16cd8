"""Layer and RMS normalisation in every spelling, and what keeps them from being recognised."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, only, ops, optimized, reasons, schedule_only
from tracea_graph.ir import DType
from tracea_graph.ops.norm import Norm
from tracea_graph.passes.pointwise import decomposed_activations
from tracea_graph.rewrite import RulePass

RULES = tuple(map(RulePass, decomposed_activations.RULES))
FEEDS = {"x": normal(2, 5, 16) + 3}
EPS = float(np.float32(1e-5))


def new(opset: int = 17) -> tuple[Net, str]:
    net = Net(opset)
    return net, net.input("x", "batch", "seq", 16)


SQUARES: dict[str, Callable[[Net, str], str]] = {
    "Pow": lambda n, d: n("Pow", d, 2.0),
    "Mul": lambda n, d: n("Mul", d, d),
}
ROOTS: dict[str, Callable[[Net, str, str], str]] = {
    "Sqrt, Div": lambda n, d, v: n("Div", d, n("Sqrt", v)),
    "Reciprocal": lambda n, d, v: n("Mul", d, n("Reciprocal", n("Sqrt", v))),
    "1/Sqrt": lambda n, d, v: n("Mul", d, n("Div", 1.0, n("Sqrt", v))),
    "Pow −½": lambda n, d, v: n("Mul", n("Pow", v, -0.5), d),
}
FORMS = list(product(SQUARES, ROOTS, (17, 18)))


def deviation(net: Net, d: str, square: str, root: str) -> str:
    variance = net("Add", net.mean(SQUARES[square](net, d)), EPS)
    return ROOTS[root](net, d, variance)


@pytest.mark.parametrize(("square", "root", "opset"), FORMS)
def test_layer_norm_spelled_out(square: str, root: str, opset: int) -> None:
    net, x = new(opset)
    d = net("Sub", x, net.mean(x))
    y = net("Add", net("Mul", deviation(net, d, square, root), net.weight(16)), net.weight(16))
    graph = net.graph(y)
    trace = schedule_only(graph, *RULES)
    assert ops(graph) == ["FusedNorm"] and trace.applied() == {"layer-norm": 1}
    assert only(graph, "FusedNorm").params.norm == Norm("layer", EPS)
    assert_same(net, graph, FEEDS)


def test_layer_norm_with_two_subtractions() -> None:
    net, x = new()
    mean = net.mean(x)
    variance = net("Add", net.mean(net("Pow", net("Sub", x, mean), 2.0)), EPS)
    y = net("Div", net("Sub", x, mean), net("Sqrt", variance))
    graph = net.graph(net("Add", net.weight(16), net("Mul", net.weight(16), y)))
    schedule_only(graph, *RULES)
    assert ops(graph) == ["FusedNorm"]
    assert_same(net, graph, FEEDS)


def test_layer_norm_without_beta_or_without_both() -> None:
    for affine in (False, True):
        net, x = new()
        y = deviation(net, net("Sub", x, net.mean(x)), "Mul", "Sqrt, Div")
        graph = net.graph(net("Mul", y, net.weight(16)) if affine else y)
        schedule_only(graph, *RULES)
        assert only(graph, "FusedNorm").params.norm == Norm("layer", EPS, affine, False)
        assert_same(net, graph, FEEDS)


@pytest.mark.parametrize("beta", [True, False])
@pytest.mark.parametrize("axis", [-1, 2])
def test_layer_norm_as_an_operator(axis: int, beta: bool) -> None:
    net, x = new()
    affine = [net.weight(16) for _ in range(1 + beta)]
    graph = net.graph(net("LayerNormalization", x, *affine, axis=axis, epsilon=1e-12))
    trace = schedule_only(graph, *RULES)
    assert trace.applied() == {"layer-norm-op": 1}
    norm = only(graph, "FusedNorm").params.norm
    assert (norm.kind, norm.beta) == ("layer", beta)
    assert norm.epsilon == pytest.approx(1e-12)
    assert_same(net, graph, FEEDS)


def test_the_operator_s_default_epsilon() -> None:
    net, x = new()
    graph = net.graph(net("LayerNormalization", x, net.weight(16), net.weight(16)))
    schedule_only(graph, *RULES)
    assert only(graph, "FusedNorm").params.norm.epsilon == pytest.approx(1e-5)
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize(("square", "root", "opset"), FORMS)
@pytest.mark.parametrize("weight_first", [True, False])
def test_rms_norm_spelled_out(square: str, root: str, opset: int, weight_first: bool) -> None:
    net, x = new(opset)
    y, gamma = deviation(net, x, square, root), net.weight(16)
    graph = net.graph(net("Mul", *((gamma, y) if weight_first else (y, gamma))))
    trace = schedule_only(graph, *RULES)
    assert ops(graph) == ["FusedNorm"] and trace.applied() == {"rms-norm": 1}
    assert only(graph, "FusedNorm").params.norm == Norm("rms", EPS, True, False)
    assert_same(net, graph, FEEDS)


def test_rms_norm_without_a_weight() -> None:
    net, x = new()
    graph = net.graph(deviation(net, x, "Pow", "Reciprocal"))
    schedule_only(graph, *RULES)
    assert only(graph, "FusedNorm").params.norm == Norm("rms", EPS, False, False)
    assert_same(net, graph, FEEDS)


# ---- misses ------------------------------------------------------------------------------


def spelled(
    net: Net,
    x: str,
    gamma: str | None = None,
    beta: str | None = None,
    eps: str | float = EPS,
    axis: int = -1,
    keepdims: int = 1,
) -> str:
    d = net("Sub", x, net.mean(x, axis, keepdims))
    variance = net("Add", net.mean(net("Mul", d, d), axis, keepdims), eps)
    y = net("Div", d, net("Sqrt", variance))
    return net("Add", net("Mul", y, gamma or net.weight(16)), beta or net.weight(16))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda n, x: spelled(n, x, axis=1), "a mean is not over the last axis alone"),
        (lambda n, x: spelled(n, x, eps=n.input("e")), "epsilon is not a constant"),
    ],
)
def test_layer_norms_we_do_not_compute(make: Callable[[Net, str], str], reason: str) -> None:
    net = Net()
    x = net.input("x", 2, 5, 16)
    graph = net.graph(make(net, x))
    assert reason in reasons(schedule_only(graph, *RULES), "layer-norm")
    feeds = {"x": normal(2, 5, 16), "e": np.asarray(1e-5, np.float32)}
    optimized(graph)
    assert_same(net, graph, {v: feeds[v] for v in graph.inputs})


@pytest.mark.parametrize("factor", [True, False])
def test_an_odd_gamma_or_beta_stays_outside(factor: bool) -> None:
    net = Net()
    x, odd = net.input("x", 2, 5, 16), net.weight(5, 16)
    graph = net.graph(spelled(net, x, odd) if factor else spelled(net, x, beta=odd))
    optimized(graph)
    assert only(graph, "FusedNorm").params.norm == Norm("layer", EPS, not factor, False)
    assert only(graph, "FusedElementwise").operands[-1] in graph.weights
    assert_same(net, graph, FEEDS)


def test_two_means_over_different_axes_are_no_layer_norm() -> None:
    net = Net()
    x = net.input("x", 2, 16, 16)
    variance = net("Add", net.mean(net("Pow", net("Sub", x, net.mean(x, 1)), 2.0)), EPS)
    y = net("Div", net("Sub", x, net.mean(x)), net("Sqrt", variance))
    graph = net.graph(net("Add", net("Mul", y, net.weight(16)), net.weight(16)))
    trace = schedule_only(graph, *RULES)
    assert reasons(trace, "layer-norm") == {"a mean is not over the last axis alone"}
    assert trace.applied() == {}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda n, x: n("LayerNormalization", x, n.weight(5, 16), n.weight(5, 16), axis=1),
            "it normalises more than the last axis",
        ),
        (
            lambda n, x: n("LayerNormalization", x, n.weight(16), n.weight(1)),
            "beta is not a vector over the last axis",
        ),
    ],
)
def test_operators_we_do_not_compute(make: Callable[[Net, str], str], reason: str) -> None:
    net = Net()
    x = net.input("x", 2, 5, 16)
    graph = net.graph(make(net, x))
    trace = schedule_only(graph, *RULES)
    assert reason in reasons(trace, "layer-norm-op")
    assert trace.applied() == {}


def test_a_beta_is_never_lost() -> None:
    net, x = new()
    graph = net.graph(net("LayerNormalization", x, net.weight(16), net.weight(1)))
    optimized(graph)
    assert_same(net, graph, FEEDS)


def test_the_mean_as_a_second_result_is_a_reason() -> None:
    net, x = new()
    y, mean = net.many("LayerNormalization", 2, x, net.weight(16), net.weight(16))
    trace = schedule_only(net.graph(y, mean), *RULES)
    assert reasons(trace, "layer-norm-op") == {"its mean or deviation output is used"}


def test_an_unread_second_result_is_none() -> None:
    net, x = new()
    y, _, _ = net.many("LayerNormalization", 3, x, net.weight(16), net.weight(16))
    assert schedule_only(net.graph(y), *RULES).applied() == {"layer-norm-op": 1}


def test_an_unknown_extent_is_a_reason() -> None:
    net = Net()
    x, gamma = net.input("x", "batch", "width"), net.input("g", "width")
    trace = schedule_only(net.graph(net("LayerNormalization", x, gamma)), *RULES)
    assert reasons(trace, "layer-norm-op") == {"the normalised extent is not known"}


def test_doubles_stay() -> None:
    net = Net()
    x = net.input("x", 4, 16, dtype=DType.F64)
    gamma = net.const(normal(16), np.float64)
    trace = schedule_only(net.graph(net("LayerNormalization", x, gamma)), *RULES)
    assert reasons(trace, "layer-norm-op") == {"not all operands are float32"}


# ---- the prologue ------------------------------------------------------------------------


def normed_sum(net: Net, *others: str) -> tuple[str, str]:
    total = net("Add", *others)
    return net("LayerNormalization", total, net.weight(16), net.weight(16)), total


def test_a_residual_sum_is_computed_inside_the_norm() -> None:
    net, x = new()
    y, _ = normed_sum(net, x, net.input("r", "batch", "seq", 16))
    graph = net.graph(y)
    optimized(graph)
    region = only(graph, "FusedNorm")
    assert ops(graph) == ["FusedNorm"] and region.operands[:2] == ("x", "r")
    assert region.params.prologue.text == "full,full|add(0,1)|2" and not region.params.keep_sum
    assert_same(net, graph, FEEDS | {"r": normal(2, 5, 16, seed=1)})


def test_a_sum_others_read_is_a_second_result() -> None:
    net, x = new()
    y, total = normed_sum(net, x, net.input("r", "batch", "seq", 16))
    graph = net.graph(y, total)
    optimized(graph)
    region = only(graph, "FusedNorm")
    assert region.params.keep_sum and region.results == (y, total)
    assert_same(net, graph, FEEDS | {"r": normal(2, 5, 16, seed=1)})


@pytest.mark.parametrize(
    ("dims", "kind"), [((16,), "row"), (("batch", "seq", 1), "col"), ((1,), "scalar")]
)
def test_the_prologue_takes_rows_columns_and_numbers(
    dims: tuple[int | str, ...], kind: str
) -> None:
    net, x = new()
    y, _ = normed_sum(net, x, net.input("r", *dims))
    graph = net.graph(y)
    optimized(graph)
    assert only(graph, "FusedNorm").params.prologue.operands == ("full", kind)
    sizes = {"batch": 2, "seq": 5}
    shape = [sizes.get(d, d) if isinstance(d, str) else d for d in dims]
    assert_same(net, graph, FEEDS | {"r": normal(*shape, seed=1)})  # type: ignore[arg-type]


def test_an_operand_repeated_along_the_batch_is_a_reason() -> None:
    net, x = new()
    y, _ = normed_sum(net, x, net.input("r", 1, "seq", 16))
    graph = net.graph(y)
    trace = optimized(graph)
    assert reasons(trace, "norm-prologue") == {
        "an operand of the prologue does not broadcast over rows and columns"
    }
    assert ops(graph) == ["FusedElementwise", "FusedNorm"]
    assert_same(net, graph, FEEDS | {"r": normal(1, 5, 16, seed=1)})
