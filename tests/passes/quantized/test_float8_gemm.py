"""Products between conversions to e4m3 run in 8-bit floats where a target multiplies these."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.graphs import (
    Net,
    assert_same,
    every_phase,
    normal,
    ops,
    optimized,
    reasons,
    run_body,
    schedule_only,
)
from tracea_graph.ir import DType
from tracea_graph.ops.chain import FLOAT8, FULL, WIDE_FLOAT8, Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.weight_layouts import KN, NK
from tracea_graph.passes.quantized.gemm import QuantizedGemm

E4M3, E5M2 = (np.dtype(t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
X = {"x": normal(5, 20) * 40}


def codes(*shape: int, kind: Any = E4M3) -> np.ndarray:
    return (normal(*shape, seed=3) * 64).astype(kind)


def rounded(net: Net, x: str, scale: float = 0.03, zero: Any = 0.0, kind: Any = E4M3) -> str:
    both = net.const(np.float32(scale)), net.const(np.array(zero, kind), kind)
    return net("DequantizeLinear", net("QuantizeLinear", x, *both), *both)


def matrix(net: Net, *shape: int, count: int = 0, axis: int = 1, kind: Any = E4M3) -> str:
    scales = np.random.default_rng(2).uniform(0.01, 0.02, (count,) if count else ())
    held = net.const(codes(*shape, kind=kind), kind)
    return net("DequantizeLinear", held, net.const(scales), axis=axis)


def product(net: Net, count: int = 12, zero: float = 0.0, kinds: Any = (E4M3, E4M3)) -> str:
    x = rounded(net, net.input("x", "n", 20), zero=zero, kind=kinds[0])
    return net("MatMul", x, matrix(net, 20, 12, count=count, kind=kinds[1]))


@pytest.mark.parametrize("kinds", [(E4M3, E4M3), (E5M2, E4M3), (E5M2, E5M2)])
@pytest.mark.parametrize("count", [0, 12])
def test_a_product_rescales_its_sums(count: int, kinds: Any) -> None:
    net = Net(19)
    graph = net.graph(product(net, count, kinds=kinds))
    assert schedule_only(graph, QuantizedGemm(True)).applied() == {"quantized-gemm": 1}
    assert ops(graph) == ["QuantizeLinear", "FusedGemm"]
    assert_same(net, graph, X)


def test_two_products_exchange_codes() -> None:
    """The epilogue of the first one rounds; only the input is rounded on its own."""
    net = Net(19)
    y = net("Relu", net("Add", product(net, kinds=(E5M2, E4M3)), net.weight(12)))
    y = net("Gemm", rounded(net, y, 0.5), matrix(net, 8, 12, axis=0), net.weight(8), transB=1)
    graph = net.graph(y)
    optimized(graph, every_phase(float8=True))
    assert "QuantizeLinear" not in ops(graph) and "DequantizeLinear" not in ops(graph)
    assert_same(net, graph, X)


@pytest.mark.parametrize(
    ("float8", "zero", "reason"),
    [
        (False, 0.0, "only GPUs from sm_89 on have instructions for products of 8-bit floats"),
        (True, 1.0, "a zero point of 8-bit floats is not 0"),
    ],
)
def test_reasons(float8: bool, zero: float, reason: str) -> None:
    net = Net(19)
    graph = net.graph(product(net, zero=zero))
    trace = schedule_only(graph, QuantizedGemm(float8))
    assert reasons(trace, "quantized-gemm") == {reason}


def test_targets_without_such_products_keep_the_conversions() -> None:
    net = Net(19)
    graph = net.graph(net("Relu", product(net)))
    optimized(graph)
    assert ops(graph).count("QuantizeLinear") == 1


@pytest.mark.parametrize(("layout", "x_type"), [(KN, FLOAT8), (NK, FLOAT8), (NK, WIDE_FLOAT8)])
def test_bodies(layout: Any, x_type: DType) -> None:
    """What nodes compute where their kernels cannot run."""
    rounding = Chain((FULL,), (Step("div", (0, 0.25)),), (1,), (), (x_type,))
    params = RegionParams(2, (
        RegionStep(ElementwiseParams(rounding), (0,)),
        RegionStep(GemmParams(20, 12, layout, integers=IntegerOperand(x_type)), (2, 1)),
    ), (3,))  # fmt: skip
    stored = codes(*((20, 12) if layout is KN else (12, 20)))
    arrays = [X["x"], stored]
    (wanted,) = params.reference([X["x"].astype(np.float64), stored.astype(np.float64)])
    (found,) = run_body(params.body(19), arrays, 19)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-3)


def test_8_bit_floats_have_no_zero_points() -> None:
    with pytest.raises(ValueError, match="no zero points"):
        IntegerOperand(FLOAT8, 1)
    assert IntegerOperand(DType.I8, 1).zero == 1


def rows(net: Net, x: str, form: str, width: int) -> tuple[str, str]:
    """Rows by their largest magnitudes, as exporters write them; and their scales, if left."""
    high = net("ReduceMax", net("Abs", x), net.const(np.array([-1]), np.int64), keepdims=1)
    scale = net("Max", net("Div", high, net.const(np.float32(448))), net.const(np.float32(1e-12)))
    if form == "blocks":
        more = {"axis": -1, "block_size": width}
        q = net("QuantizeLinear", x, scale, output_dtype=DType.F8E4M3FN.onnx, **more)
        return net("DequantizeLinear", q, scale, **more), ""
    q = net("Cast", net("Div", x, scale), to=DType.F8E4M3FN.onnx)
    made = net("Cast", q, to=DType.F32.onnx)
    return (net("Mul", made, scale), "") if form == "before" else (made, scale)


@pytest.mark.parametrize("form", ["blocks", "before", "behind"])
@pytest.mark.parametrize("shape", [("n", 20), (2, "n", 20)])
def test_rows_have_scales_of_their_own(form: str, shape: Any) -> None:
    net = Net(21)
    x, scale = rows(net, net.input("x", *shape), form, 20)
    y = net("MatMul", x, matrix(net, 20, 12, count=12))
    graph = net.graph(net("Relu", net("Mul", y, scale) if scale else y))
    optimized(graph, every_phase(float8=True))
    left = {"Cast", "QuantizeLinear", "DequantizeLinear", "MatMul", "Mul", "Div"}
    assert not left.intersection(ops(graph)), ops(graph)
    sizes = [5 if isinstance(n, str) else n for n in shape]
    scales = 2.0 ** np.arange(-3, 2).reshape(5, 1)
    assert_same(net, graph, {"x": normal(*sizes) * scales.astype(np.float32)})


def test_scales_of_blocks_are_left_to_onnx_runtime() -> None:
    net = Net(21)
    x = net.input("x", "n", 20)
    high = net("ReduceMax", net("Abs", x), net.const(np.array([-1]), np.int64), keepdims=1)
    scales, more = net("Concat", high, high, axis=-1), {"axis": -1, "block_size": 10}
    q = net("QuantizeLinear", x, scales, output_dtype=DType.F8E4M3FN.onnx, **more)
    x = net("DequantizeLinear", q, scales, **more)
    graph = net.graph(net("MatMul", x, matrix(net, 20, 12)))
    assert "quantized-gemm" not in optimized(graph, every_phase(float8=True)).applied()
