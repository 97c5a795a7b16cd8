"""Dynamically quantized products, as ONNX Runtime's quantizer writes them, run in integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import Net, assert_same, normal, ops, reasons, schedule_only
from tracea_graph import Options, optimize
from tracea_graph.ir import DType
from tracea_graph.passes.quantized.dynamic_quantization import DYNAMIC_QUANTIZE, MATMUL_INTEGER
from tracea_graph.rewrite import RulePass

pytestmark = pytest.mark.usefixtures("highest_level")

RULES = (RulePass(DYNAMIC_QUANTIZE), RulePass(MATMUL_INTEGER))


def product(net: Net, x: str, weight: np.ndarray, zeros: np.ndarray | None) -> str:
    """x, quantized dynamically, times a matrix of integers."""
    q, scale, zero = net.many("DynamicQuantizeLinear", 3, x)
    own = [] if zeros is None else [net.const(zeros, zeros.dtype.type)]
    sums = net("MatMulInteger", q, net.const(weight, weight.dtype.type), zero, *own)
    return net("Mul", net("Cast", sums, to=DType.F32.onnx), scale)


def matrix(dtype: type, *shape: int) -> np.ndarray:
    bounds = np.iinfo(dtype)
    return np.random.default_rng(5).integers(bounds.min, bounds.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize(
    ("dtype", "zeros"),
    [(np.int8, None), (np.int8, ()), (np.int8, (12,)), (np.uint8, ()), (np.uint8, (12,)),
     (np.uint8, None)],
)  # fmt: skip
def test_sums_are_exact(dtype: type, zeros: tuple[int, ...] | None) -> None:
    net = Net()
    own = None if zeros is None else matrix(dtype, *zeros)
    graph = net.graph(product(net, net.input("x", "b", "s", 20), matrix(dtype, 20, 12), own))
    trace = schedule_only(graph, *RULES)
    assert trace.applied() == {"dynamic-quantize": 1, "matmul-integer": 1}
    assert ops(graph) == ["FusedDynamicQuantize", "FusedGemm", "Mul"]
    assert_same(net, graph, {"x": normal(2, 3, 20)})


def test_a_computed_matrix_is_the_reason() -> None:
    net = Net()
    q, scale, zero = net.many("DynamicQuantizeLinear", 3, net.input("x", "n", 8))
    sums = net("MatMulInteger", q, net.input("w", 8, 4, dtype=DType.I8), zero)
    graph = net.graph(net("Mul", net("Cast", sums, to=DType.F32.onnx), scale))
    assert reasons(schedule_only(graph, *RULES), "matmul-integer") == {"'w' is not constant"}


def test_sums_that_may_not_fit_stay() -> None:
    net = Net()
    x, w = net.input("x", 1, 70000, dtype=DType.U8), net.const(matrix(np.int8, 70000, 2), np.int8)
    graph = net.graph(net("Cast", net("MatMulInteger", x, w), to=DType.F32.onnx))
    why = {"sums of 70000 products may not fit 32 bits"}
    assert reasons(schedule_only(graph, *RULES), "matmul-integer") == why


MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 64] x, int8 unused) => (float[n, 48] y) {
        q, s, z = DynamicQuantizeLinear(x)
        sums = MatMulInteger(q, w, z)
        f = Cast <to = 1> (sums)
        scale = Mul(s, ws)
        scaled = Mul(f, scale)
        biased = Add(scaled, b)
        y = Relu(biased)
    }"""


@pytest.mark.compiler
def test_a_model_runs_in_integers(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL.replace(", int8 unused", ""))
    constants = {
        "w": matrix(np.int8, 64, 48), "ws": np.full(48, 0.01, np.float32), "b": normal(48),
    }  # fmt: skip
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    onnx.save(model, tmp_path / "m.onnx")
    report = optimize(tmp_path / "m.onnx", Options(keep="all"))
    assert (report.status, report.error) == ("passed", 0.0)
    kinds = [node.op_type.partition("_")[0] for node in onnx.load(report.output).graph.node]
    assert kinds[-1] in ("FusedRegion", "FusedGemm") and "MatMulInteger" not in kinds
