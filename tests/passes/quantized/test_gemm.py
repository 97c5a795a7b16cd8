"""Products between conversions run in integers, and nothing that integers do not compute does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, ops, reasons, schedule_only
from tracea_graph.passes.decompose.decompose import Decompose
from tracea_graph.passes.pointwise.gemm_epilogue import GemmEpilogue
from tracea_graph.passes.quantized.gemm import QuantizedGemm

X = {"x": normal(5, 20)}


def integers(dtype: Any, *shape: int, seed: int = 5) -> np.ndarray:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.random.default_rng(seed).integers(low, high, shape, dtype, endpoint=True)


def const(net: Net, array: np.ndarray) -> str:
    return net.const(array, array.dtype.type)


def dequantized(net: Net, x: str, dtype: Any, scale: float = 0.03) -> str:
    """x, rounded to integers, as numbers again."""
    s, z = net.const(np.float32(scale)), const(net, np.array(7, dtype))
    return net("DequantizeLinear", net("QuantizeLinear", x, s, z), s, z)


def matrix(
    net: Net, w: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None, axis: int = 1
) -> str:
    own = [] if zeros is None else [const(net, zeros)]
    return net("DequantizeLinear", const(net, w), const(net, scales), *own, axis=axis)


def scales(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).uniform(0.01, 0.02, shape).astype(np.float32)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("w", [np.uint8, np.int8])
@pytest.mark.parametrize("count", [(), (12,)])
def test_a_product_rescales_its_sums(kind: Any, w: Any, count: tuple[int, ...]) -> None:
    net = Net()
    weight = matrix(net, integers(w, 20, 12), scales(*count), integers(w, *count, seed=1))
    graph = net.graph(net("MatMul", dequantized(net, net.input("x", "n", 20), kind), weight))
    assert schedule_only(graph, QuantizedGemm()).applied() == {"quantized-gemm": 1}
    assert ops(graph) == ["QuantizeLinear", "FusedGemm"]
    assert_same(net, graph, X)


def test_a_gemm_adds_a_dequantized_bias_and_is_requantized() -> None:
    net = Net()
    weight = matrix(net, integers(np.int8, 12, 20), scales(12), axis=0)
    bias = integers(np.int8, 12).astype(np.int32)
    c = net("DequantizeLinear", const(net, bias), const(net, 0.03 * scales(12)), axis=0)
    x = dequantized(net, net.input("x", "n", 20), np.int8)
    y = net("Gemm", x, weight, c, transB=1)
    graph = net.graph(
        net("QuantizeLinear", y, net.const(np.float32(0.2)), const(net, np.array(3, np.uint8)))
    )
    trace = schedule_only(graph, QuantizedGemm(), GemmEpilogue())
    assert trace.applied() == {"quantized-gemm": 1, "gemm-epilogue": 1}
    assert ops(graph) == ["QuantizeLinear", "FusedGemm"]
    assert_same(net, graph, X)


@pytest.mark.parametrize(
    ("count", "value", "axis", "reason"),
    [
        ((), 0.0, 1, "a scale is zero, negative or out of range"),
        ((), np.nan, 1, "a scale is zero, negative or out of range"),
        ((12,), 1e-40, 1, "a scale is zero, negative or out of range"),
        ((20,), 0.1, 0, "its matrix has a scale for each row"),
    ],
)  # fmt: skip
def test_odd_scales_are_the_reason(
    count: tuple[int, ...], value: float, axis: int, reason: str
) -> None:
    net = Net()
    weight = matrix(net, integers(np.int8, 20, 12), np.full(count, value, np.float32), axis=axis)
    graph = net.graph(net("MatMul", dequantized(net, net.input("x", "n", 20), np.uint8), weight))
    assert reasons(schedule_only(graph, QuantizedGemm()), "quantized-gemm") == {reason}


def test_another_reader_keeps_the_numbers() -> None:
    net = Net()
    x = dequantized(net, net.input("x", "n", 20), np.uint8)
    y = net("MatMul", x, matrix(net, integers(np.int8, 20, 20), scales(20)))
    graph = net.graph(net("Add", x, y))
    assert schedule_only(graph, QuantizedGemm()).applied() == {"quantized-gemm": 1}
    assert sorted(ops(graph)) == ["Add", "DequantizeLinear", "FusedGemm", "QuantizeLinear"]


def test_operators_with_scales_are_taken_apart() -> None:
    net = Net()
    s, z = net.const(np.float32(0.03)), const(net, np.array(7, np.uint8))
    q = net("QuantizeLinear", net.input("x", "n", 20), s, z)
    w, zeros = const(net, integers(np.int8, 20, 12)), const(net, np.zeros(12, np.int8))
    y = net("QLinearMatMul", q, s, z, w, const(net, scales(12)), zeros, s, z)
    graph = net.graph(net("DequantizeLinear", y, s, z))
    trace = schedule_only(graph, Decompose(), QuantizedGemm(), GemmEpilogue())
    assert trace.applied()["quantized-gemm"] == 1
    assert ops(graph) == ["QuantizeLinear", "FusedGemm"]
    assert_same(net, graph, X)
