"""The scale of a result is folded into those of the sums; nothing else is moved."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, evaluate, normal, optimized
from tests.passes.quantized.test_conv import conv, filters, quantized
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ttg.region_graph import TileGraph

FEEDS = {"x": normal(2, 12, 9, 7)}


def rounded_conv(
    *after: str, bias: np.ndarray | None = None, scale: float = 0.7
) -> tuple[Net, TileGraph]:
    """A convolution of integers whose result is rounded, behind other operators."""
    net = Net()
    x = quantized(net, net.input("x", "n", 12, 9, 7), np.uint8, 0.03)
    y = conv(net, x, filters(net, 24, 12, 1, 1), *([] if bias is None else [net.const(bias)]))
    for op in after:
        y = net(op, y)
    return net, net.graph(quantized(net, y, np.uint8, scale))


def epilogue(graph: TileGraph) -> Chain:
    """The chain behind the only convolution, alone or a step of a program."""
    every = [p for r in graph.regions() for p in (r.params, *_steps(r.params))]
    (found,) = {p.epilogue for p in every if isinstance(p, ConvIntegerParams)}
    assert found is not None
    return found


def _steps(params: object) -> list[object]:
    return [step.params for step in params.steps] if isinstance(params, RegionParams) else []


@pytest.mark.parametrize("after", [(), ("Relu",)])
@pytest.mark.parametrize("bias", [None, normal(24)])
def test_nothing_is_divided_after_the_sums(
    after: tuple[str, ...], bias: np.ndarray | None
) -> None:
    net, graph = rounded_conv(*after, bias=bias)
    assert optimized(graph).applied()["fold-scales"] == 1
    assert "div" not in {step.op for step in epilogue(graph).steps}
    (wanted,), (found,) = net.run(FEEDS), evaluate(graph, FEEDS)
    # a quotient next to a half may go either way
    assert np.abs(np.asarray(found) - wanted).max() <= 0.7 * (1 + 1e-6)
    assert (np.asarray(found) != wanted).mean() < 1e-3


def test_what_is_computed_between_stays() -> None:
    _, graph = rounded_conv("Sigmoid", scale=0.01)
    trace = optimized(graph)
    assert "fold-scales" not in trace.applied()
    assert "div" in {step.op for step in epilogue(graph).steps}


def test_a_bias_out_of_range_stays() -> None:
    bias = np.full(24, 1e30, np.float32)
    _, graph = rounded_conv(bias=bias, scale=0.1)
    trace = optimized(graph)
    assert "fold-scales" not in trace.applied()
