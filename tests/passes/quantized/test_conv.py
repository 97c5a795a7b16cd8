"""Convolutions between conversions run in integers with channels last, from layer to layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, ops, optimized, reasons, schedule_only
from tests.passes.quantized.test_gemm import const, dequantized, integers, scales
from tracea_graph.ir import DType
from tracea_graph.passes.quantized.conv import QUANTIZED_PAD, QuantizedConv
from tracea_graph.passes.quantized.dequantize_past_views import CancelQuantize
from tracea_graph.rewrite import RulePass

FEEDS = {"x": normal(2, 12, 9, 7)}


def filters(
    net: Net, *shape: int, own: Any = None, kind: Any = np.int8, seed: int = 5, axis: int = 0
) -> str:
    zeros = [] if own is None else [const(net, own)]
    w = const(net, integers(kind, *shape, seed=seed))
    return net("DequantizeLinear", w, const(net, scales(shape[axis])), *zeros, axis=axis)


def quantized(net: Net, value: str, kind: Any = np.uint8, scale: float = 0.4) -> str:
    return dequantized(net, value, kind, scale)


WINDOWS: dict[str, dict[str, Any]] = {
    "1x1": {},
    "3x3": {"kernel": 3, "pads": [1, 1, 1, 1]},
    "uneven pads": {"kernel": 3, "pads": [0, 2, 1, 0]},
    "strides": {"kernel": 3, "pads": [1, 1, 1, 1], "strides": [2, 2]},
    "strided 1x1": {"strides": [2, 2]},
    "dilated": {"kernel": 3, "pads": [2, 2, 2, 2], "dilations": [2, 2]},
    "same": {"kernel": 3, "auto_pad": "SAME_UPPER", "strides": [2, 2]},
    "groups": {"kernel": 3, "pads": [1, 1, 1, 1], "group": 3},
    "depthwise": {"kernel": 3, "pads": [1, 1, 1, 1], "group": 12},
}


def conv(net: Net, x: str, w: str, *rest: str, kernel: int = 1, **attrs: Any) -> str:
    return net("Conv", x, w, *rest, kernel_shape=[kernel, kernel], **attrs)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_windows(name: str, kind: Any) -> None:
    net, attrs = Net(), WINDOWS[name]
    side, depth = attrs.get("kernel", 1), 12 // attrs.get("group", 1)
    x = quantized(net, net.input("x", "n", 12, 9, 7), kind, 0.03)
    y = conv(net, x, filters(net, 24, depth, side, side), **attrs)
    graph = net.graph(y)
    assert schedule_only(graph, QuantizedConv()).applied() == {"quantized-conv": 1}
    assert ops(graph) == ["QuantizeLinear", "Transpose", "FusedConvInteger", "Transpose"]
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize("own", [np.int8, np.uint8])
def test_zero_points_of_filters(own: Any) -> None:
    net = Net()
    w = filters(net, 24, 12, 3, 3, own=integers(own, 24, seed=3), kind=own)
    x = quantized(net, net.input("x", "n", 12, 9, 7), np.uint8, 0.03)
    graph = net.graph(conv(net, x, w, kernel=3, pads=[1, 1, 1, 1]))
    assert schedule_only(graph, QuantizedConv()).applied() == {"quantized-conv": 1}
    assert_same(net, graph, FEEDS)


def test_lines() -> None:
    net = Net()
    x = quantized(net, net.input("x", "n", 12, 30), np.uint8, 0.03)
    graph = net.graph(net("Conv", x, filters(net, 8, 12, 3), pads=[1, 1]))
    assert schedule_only(graph, QuantizedConv()).applied() == {"quantized-conv": 1}
    assert_same(net, graph, {"x": normal(2, 12, 30)})


@pytest.mark.parametrize(("filters_", "groups"), [(24, 12), (24, 6), (36, 3), (12, 12), (48, 3)])
def test_groups_are_packed(filters_: int, groups: int) -> None:
    net = Net()
    x = quantized(net, net.input("x", "n", 12, 9, 7), np.uint8, 0.03)
    y = conv(net, x, filters(net, filters_, 12 // groups, 3, 3), kernel=3, group=groups)
    graph = net.graph(y)
    assert optimized(graph).applied()["pack-integers"] == 1
    assert_same(net, graph, FEEDS)


def block(net: Net, x: str, width: int, kind: Any) -> str:
    """A residual block between quantized values, as quantizers write it."""
    bias = const(net, integers(np.int8, width, seed=8).astype(np.int32))
    b = net("DequantizeLinear", bias, const(net, np.float32(0.01) * scales(width)), axis=0)
    h = conv(net, x, filters(net, width, 12, 1, 1, seed=1), b)
    h = quantized(net, net("Relu", h), kind)
    h = conv(net, h, filters(net, width, width, 3, 3, seed=2), kernel=3, pads=[1, 1, 1, 1])
    h = quantized(net, net("Relu", h), kind, 3.0)
    h = quantized(net, conv(net, h, filters(net, 12, width, 1, 1, seed=3)), kind, 30.0)
    return quantized(net, net("Relu", net("Add", h, x)), kind, 30.0)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_residual_block_stays_in_integers(kind: Any) -> None:
    net = Net()
    x = quantized(net, net.input("x", "n", 3, 17, 15), kind, 0.03)
    stem = conv(net, x, filters(net, 12, 3, 7, 7), kernel=7, strides=[2, 2], pads=[3] * 4)
    x = quantized(net, net("Relu", stem), kind, 0.3)
    pool = net("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = block(net, block(net, quantized(net, pool, kind, 0.3), 24, kind), 24, kind)
    y = quantized(net, net("GlobalAveragePool", y), kind, 10.0)
    graph = net.graph(net("Flatten", y, axis=1))
    optimized(graph)
    assert ops(graph)[-2:] == ["FusedRegion", "Flatten"]
    (program,) = (r for r in graph.regions() if r.op == "FusedRegion")
    steps = [step.params for step in program.params.steps]
    assert [type(p).__name__ for p in steps] == [
        "ConvIntegerParams", "PoolParams", *["ConvIntegerParams"] * 6, "ReduceParams"
    ]  # fmt: skip
    stored = DType.U8 if kind is np.uint8 else DType.I8
    specs = program.params.infer_all([graph.spec(v) for v in program.operands])
    inside = specs[program.params.inputs : -2]  # the last convolution feeds a mean of numbers
    assert {spec.dtype for spec in inside} == {stored}
    assert_same(net, graph, {"x": normal(2, 3, 17, 15)})


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("auto", [{}, {"auto_pad": "VALID"}, {"auto_pad": "SAME_UPPER"}])
def test_zeros_before_they_are_quantized(value: float, auto: dict[str, str]) -> None:
    net = Net()
    x = quantized(net, net.input("x", "n", 12, 9, 7), np.uint8, 0.03)
    pad = net("Pad", x, net.ints(0, 0, 0, 1, 0, 0, 2, 3), value)
    h = quantized(net, pad, np.uint8, 0.03)
    graph = net.graph(conv(net, h, filters(net, 24, 12, 3, 3), kernel=3, **auto))
    found = schedule_only(graph, RulePass(QUANTIZED_PAD), CancelQuantize()).applied()
    if value or auto.get("auto_pad", "VALID") != "VALID":
        assert found == {}
        return
    assert found == {"quantized-pad": 1, "cancel-quantize": 1} and "Pad" not in ops(graph)
    assert schedule_only(graph, QuantizedConv()).applied() == {"quantized-conv": 1}
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize(
    ("value", "axis", "reason"),
    [
        (0.0, 0, "a scale is zero, negative or out of range"),
        (np.nan, 0, "a scale is zero, negative or out of range"),
        (0.1, 1, "its matrix has a scale for each row"),
    ],
)
def test_odd_scales_are_the_reason(value: float, axis: int, reason: str) -> None:
    net = Net()
    w = const(net, integers(np.int8, 12, 12, 1, 1))
    w = net("DequantizeLinear", w, const(net, np.full(12, value, np.float32)), axis=axis)
    graph = net.graph(conv(net, quantized(net, net.input("x", "n", 12, 9, 7)), w))
    assert reasons(schedule_only(graph, QuantizedConv()), "quantized-conv") == {reason}


def test_operators_with_scales_are_taken_apart() -> None:
    net = Net()
    s, z = net.const(np.float32(0.03)), const(net, np.array(7, np.uint8))
    q = net("QuantizeLinear", net.input("x", "n", 12, 9, 7), s, z)
    w, zeros = const(net, integers(np.int8, 24, 12, 3, 3)), const(net, np.zeros(24, np.int8))
    bias = const(net, integers(np.int8, 24, seed=9).astype(np.int32))
    wide = net.const(np.float32(0.3))
    y = net("QLinearConv", q, s, z, w, const(net, scales(24)), zeros, wide, z, bias, pads=[1] * 4)
    graph = net.graph(net("DequantizeLinear", y, wide, z))
    trace = optimized(graph)
    assert trace.applied()["quantized-conv"] == 1
    assert trace.applied()["pack-integers"] == 1
    assert not {"QLinearConv", "QuantizeLinear", "DequantizeLinear"} & set(ops(graph))
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize("zeros", [False, True])
def test_dynamic_quantization(zeros: bool) -> None:
    net = Net()
    h = net.input("x", "n", 12, 9, 7)
    for seed in (1, 2):
        q, scale, zero = net.many("DynamicQuantizeLinear", 3, h)
        w = const(net, integers(np.int8, 12, 12, 3, 3, seed=seed))
        own = [const(net, np.array(3, np.int8))] if zeros else []
        sums = net("ConvInteger", q, w, zero, *own, pads=[1] * 4)
        y = net("Mul", net("Cast", sums, to=1), net("Mul", scale, net.const(np.float32(0.01))))
        h = net("Relu", net("Add", y, normal(1, 12, 1, 1)))
    graph = net.graph(h)
    applied = optimized(graph).applied()
    assert (applied["conv-integer"], applied["dynamic-quantize"]) == (2, 2)
    assert applied["pack-integers"] == 2 and "Transpose" not in ops(graph)
    assert_same(net, graph, FEEDS)
