"""QLinear operators and what ONNX Runtime fuses around integers compute what they did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tracea_graph import Options, api

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
RNG = np.random.default_rng(11)
HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>\n'
WEIGHTS = {
    "wu": RNG.integers(0, 255, (8, 8), np.uint8, endpoint=True),
    "ws": RNG.integers(-128, 127, (8, 8), np.int8, endpoint=True),
    "bias": RNG.integers(-500, 500, 8, np.int32), "b": RNG.standard_normal(8).astype(np.float32),
    "s": np.float32(0.02), "t": np.float32(0.05), "half": np.float16(0.02),
    "scales": RNG.uniform(0.01, 0.03, 8).astype(np.float32),
    "fine": np.float32(1 / 256), "zero": np.uint8(0), "half_one": np.float32(0.5),
    "two": np.array([2]), "ten": np.array([10]), "one": np.array([1]),
    "zeros": np.zeros(8, np.int8), "u": np.uint8(120), "z": np.int8(3), "zu": np.uint8(9),
}  # fmt: skip
QUANTIZED = "q = QuantizeLinear(x, s, u)"
FINE = "y = DequantizeLinear(r, fine, zero)"
BACK = "y = DequantizeLinear(r, t, u)"

SPELLED = {
    "QLinearMatMul": f"{QUANTIZED} r = QLinearMatMul(q, s, u, ws, scales, zeros, t, u) {BACK}",
    "QLinearMatMul, one scale": f"{QUANTIZED} r = QLinearMatMul(q, s, u, wu, t, zu, t, u) {BACK}",
    "QGemm": f"{QUANTIZED} r = com.microsoft.QGemm (q, s, u, ws, t, z, bias, t, u) {BACK}",
    "QGemm, transposed, float": f"""{QUANTIZED}
        y = com.microsoft.QGemm <transB = 1> (q, s, u, ws, t, z, bias)""",
    "QLinearAdd": f"{QUANTIZED} r = com.microsoft.QLinearAdd(q, s, u, q, t, zu, t, u) {BACK}",
    "QLinearMul": f"{QUANTIZED} r = com.microsoft.QLinearMul(q, s, u, q, t, zu, t, u) {BACK}",
    "QLinearSigmoid": f"{QUANTIZED} r = com.microsoft.QLinearSigmoid(q, s, u, t, u) {BACK}",
    "QLinearLeakyRelu": f"""{QUANTIZED}
        r = com.microsoft.QLinearLeakyRelu <alpha = 0.3> (q, s, u, t, u) {BACK}""",
    "QLinearConcat": f"""{QUANTIZED} c = com.microsoft.QLinearConcat <axis = 1> (t, u, q, s, u, q,
        t, zu) r = Slice(c, two, ten, one) {BACK}""",
    "QLinearSoftmax": f"""{QUANTIZED}
        r = com.microsoft.QLinearSoftmax <axis = -1, opset = 17> (q, s, u, fine, zero) {FINE}""",
    "QLinearWhere": f"""p = Greater(x, half_one) {QUANTIZED}
        r = com.microsoft.QLinearWhere(p, q, s, u, q, t, zu, t, u) {BACK}""",
    "DynamicQuantizeMatMul": "y = com.microsoft.DynamicQuantizeMatMul(x, ws, t, z, b)",
    "MatMulIntegerToFloat": f"""{QUANTIZED}
        y = com.microsoft.MatMulIntegerToFloat(q, ws, s, t, u, z, b)""",
}  # fmt: skip


def saved(folder: Path, text: str) -> Path:
    made = onnx.parser.parse_model(f"{HEAD} g (float[n, 8] x) => (float[n, 8] y) {{ {text} }}")
    read = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name)
        for name, array in WEIGHTS.items()
        if name in read
    )
    onnx.save(made, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("name", SPELLED)
def test_it_becomes_plain_onnx_and_kernels(name: str, tmp_path: Path) -> None:
    report = api.optimize(saved(tmp_path, SPELLED[name]), Options(keep="all"))
    assert (report.status, all(row.kept for row in report.groups)) == ("passed", True)
    left = onnx.load(report.output).graph.node
    assert report.kernels and not any(name.startswith(node.op_type) for node in left)
    assert "com.microsoft" not in {node.domain for node in left}


def test_half_scales_are_converted(tmp_path: Path) -> None:
    text = """h = Cast <to = 10> (x)  q = QuantizeLinear(h, half, u)
        r = QLinearMatMul(q, half, u, wu, half, zu, half, u)
        d = DequantizeLinear(r, half, u)  y = Cast <to = 1> (d)"""
    path = saved(tmp_path, text)
    made = onnx.load(path)
    made.opset_import[0].version = 21
    made.ir_version = 10
    onnx.save(made, path)
    report = api.optimize(path, Options(keep="all"))
    assert (report.status, all(row.kept for row in report.groups)) == ("passed", True)
    assert "QLinearMatMul" not in {node.op_type for node in onnx.load(report.output).graph.node}


ATTENTION = """
    <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[2, n, 32] x, int32[2, n] mask) => (float[2, n, 32] y) {
        q, s, z = DynamicQuantizeLinear(x)
        y = com.microsoft.QAttention <num_heads = 4> (q, w, b, s, ws, MASK, z, wz)
    }"""


@pytest.mark.parametrize("mask", ["mask", ""])
@pytest.mark.parametrize("columns", [True, False])
def test_attention_projects_integers(mask: str, columns: bool, tmp_path: Path) -> None:
    text = ATTENTION.replace("MASK", mask)
    made = onnx.parser.parse_model(text if mask else text.replace(", int32[2, n] mask", ""))
    count = 96 if columns else ()
    arrays = {
        "w": RNG.integers(-128, 127, (32, 96), np.int8), "b": RNG.standard_normal(96),
        "ws": RNG.uniform(1e-3, 4e-3, count), "wz": np.full(count, 3, np.int8),
    }  # fmt: skip
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(
            np.asarray(a, np.float32 if a.dtype == np.float64 else a.dtype), n
        )
        for n, a in ((n, np.asarray(a)) for n, a in arrays.items())
    )
    onnx.save(made, tmp_path / "m.onnx")
    report = api.optimize(tmp_path / "m.onnx", Options(keep="all"))
    assert (report.status, all(row.kept for row in report.groups)) == ("passed", True)
    left = {node.op_type for node in onnx.load(report.output).graph.node}
    assert report.kernels and not left & {"QAttention", "MatMulInteger", "MultiHeadAttention"}
