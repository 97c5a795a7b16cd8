"""What ONNX Runtime fused when it saved a model becomes a kernel as what it was fused of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tracea_graph import Options, api

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
RNG = np.random.default_rng(3)
WEIGHTS = {
    "f": RNG.standard_normal((8, 3, 3, 3)), "w": RNG.standard_normal((8, 8)),
    "b": RNG.standard_normal(8),
}  # fmt: skip
MS = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>\n'

SPELLED = {
    "convolution": """y = com.microsoft.FusedConv <pads = [1, 1, 1, 1], activation = "LeakyRelu",
        activation_params = [0.2]> (x, f, b)""",
    "convolution and sum": """k = Sigmoid(x)  c = Conv <pads = [1, 1, 1, 1]> (k, f)
        y = com.microsoft.FusedConv <pads = [1, 1, 1, 1], activation = "Relu"> (x, f, b, c)""",
    "clipped": """y = com.microsoft.FusedConv <pads = [1, 1, 1, 1], activation = "Clip",
        activation_params = [-0.5, 0.7]> (x, f)""",
    "gemm": """p = GlobalAveragePool(x)  q = Flatten(p)  r = Concat <axis = 1> (q, q, q)
        z = Slice(r, i0, i8, i1)
        y = com.microsoft.FusedGemm <activation = "LeakyRelu", activation_alpha = 0.3, transB = 1>
        (z, w, b)""",
    "product": """z = Slice(x, i0, i8, i3)
        y = com.microsoft.FusedMatMul <alpha = 0.25, transB = 1> (z, w)""",
}
INTS = {"i0": [0], "i1": [1], "i3": [3], "i8": [8]}


def model(path: Path, text: str) -> Path:
    """A picture of three channels in; ``f``, ``w``, ``b`` are weights."""
    rest = "=> (float[d0, d1, d2, d3] y)" if "gemm" not in path.stem else "=> (float[d0, d1] y)"
    made = onnx.parser.parse_model(MS + f"g (float[n, 3, 9, 9] x) {rest} {{ {text} }}")
    arrays = {n: a.astype(np.float32) for n, a in WEIGHTS.items()}
    arrays |= {n: np.array(v) for n, v in INTS.items()}
    for name, array in arrays.items():
        if f" {name}" in text or f"({name}" in text:
            made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(made, path)
    return path


@pytest.mark.parametrize("name", SPELLED)
def test_it_is_spelled_and_right(name: str, tmp_path: Path) -> None:
    path = model(tmp_path / f"{name.split()[0]}.onnx", SPELLED[name])
    report = api.optimize(path, Options(keep="all"))
    assert (report.status, all(row.kept for row in report.groups)) == ("passed", True)
    left = {node.op_type for node in onnx.load(report.output).graph.node}
    assert not left & {"FusedGemm", "FusedMatMul"} and "com.microsoft" not in {
        node.domain for node in onnx.load(report.output).graph.node
    }


@pytest.mark.parametrize("level", ["ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_a_model_that_onnx_runtime_saved(level: str, tmp_path: Path) -> None:
    """What it fused becomes kernels; its own layout of pictures stays as it is."""
    text = """c = Conv <pads = [1, 1, 1, 1]> (x, f, b)  a = Relu(c)
        t = Transpose <perm = [0, 2, 3, 1]> (a)  h = MatMul(t, w)  s = Add(h, b)  y = Tanh(s)"""
    path, saved = model(tmp_path / "m.onnx", text), tmp_path / "saved.onnx"
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath, options.log_severity_level = str(saved), 4
    ort.InferenceSession(path, options)
    report = api.optimize(saved, Options(keep="all"))
    assert report.status in ("passed", "skipped") and all(row.kept for row in report.groups)
    if level == "ORT_ENABLE_EXTENDED":
        assert report.kernels == report.nodes_after
