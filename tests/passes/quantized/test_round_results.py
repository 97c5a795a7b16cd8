"""Without custom ops, what lies between convolutions is rounded for ONNX Runtime."""

from __future__ import annotations

import pytest

from tests.graphs import Net, evaluate, normal, ops, relative_error, schedule_only
from tracea_graph.passes.quantized.calibrated_rounding import CalibratedRounding
from tracea_graph.passes.quantized.conv_int8 import ConvInt8
from tracea_graph.passes.quantized.round_results import RoundResults, values_between

FEEDS = {"x": normal(2, 12, 9, 7)}


def net_of(net: Net) -> str:
    """Two sums between three convolutions, and a sum behind them."""
    w = [net.const(normal(12, 12, 1, 1, seed=seed) / 4) for seed in range(3)]
    one = net("Relu", net("Conv", net.input("x", "n", 12, 9, 7), w[0], name="a"), name="one")
    two = net("Add", one, net("Conv", one, w[1], name="b"), name="two")
    last = net("Conv", net("Mul", two, net("Sigmoid", two, name="s"), name="m"), w[2], name="c")
    return net("Add", last, two, name="last")


def test_what_reaches_a_convolution() -> None:
    net = Net(opset=21)
    assert list(values_between(net.graph(net_of(net)))) == ["one", "b", "two", "s", "m"]


@pytest.mark.parametrize("some", [True, False])
def test_only_what_integers_compute_is_rounded(some: bool) -> None:
    net = Net(opset=21)
    graph = net.graph(net_of(net))
    step = CalibratedRounding(0.0, scale=0.06, zero=128)
    calibrated = dict.fromkeys((*values_between(graph), "x"), step)
    (exact,) = evaluate(graph, FEEDS)
    if some:
        schedule_only(graph, ConvInt8(calibrated))
    found = schedule_only(graph, RoundResults(calibrated)).applied()
    assert (found.get("round-results", 0) > 0) == some
    for region in graph.regions() if some else ():
        if region.op in ("Add", "Mul", "Sigmoid"):
            known = {"c"}  # nothing behind the last convolution
            sources = {graph.producer(v).op for v in region.operands if v not in known}  # type: ignore[union-attr]
            assert sources == {"DequantizeLinear"}, region.results
    assert ops(graph).count("QuantizeLinear") == 6 * some
    (result,) = evaluate(graph, FEEDS)
    assert relative_error(result, exact) < (0.05 if some else 1e-6)
