"""QuantizeLinear and DequantizeLinear of ONNX Runtime are read as those of ONNX."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tracea_graph import Options, api
from tracea_graph.ir import DType
from tracea_graph.onnx_io import load

MODEL = """<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>
    g (float[2, 8, 16] x) => (float[2, 8, 4] y)
    <float s = {{0.02}}, {kind} z = {{100}}, int8[16, 4] w, float[4] ws = {{0.1, 0.2, 0.3, 0.4}},
     int8[4] wz = {{0, 0, 0, 0}}> {{
        q = com.microsoft.QuantizeLinear <axis = 0> (x, s, z)
        d = com.microsoft.DequantizeLinear <axis = 0> (q, s, z)
        f = {weight}
        y = MatMul (d, f)
    }}"""
COLUMNS = "com.microsoft.DequantizeLinear <axis = 1> (w, ws, wz)"
WHOLE = "com.microsoft.DequantizeLinear (w, s)"


def written(path: Path, opset: int, kind: str, weight: str = COLUMNS) -> Path:
    text = MODEL.format(opset=opset, kind=kind, weight=weight)
    numbers = ", ".join(str((37 * i) % 200 - 100) for i in range(64))
    model = onnx.parser.parse_model(text.replace("[16, 4] w", f"[16, 4] w = {{{numbers}}}"))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("opset", "kind", "weight", "own"),
    [
        (13, "uint8", COLUMNS, {"QuantizeLinear", "DequantizeLinear"}),
        (10, "uint8", WHOLE, {"QuantizeLinear", "DequantizeLinear"}),
        (21, "uint16", COLUMNS, {"QuantizeLinear", "DequantizeLinear"}),
        (13, "uint16", WHOLE, set()),
        (9, "uint8", WHOLE, set()),
    ],
)
def test_those_that_onnx_has_become_its_own(
    tmp_path: Path, opset: int, kind: str, weight: str, own: set[str]
) -> None:
    graph = load(written(tmp_path / "m.onnx", opset, kind, weight)).graph
    steps = {r.results[0]: r for r in graph.regions()}
    assert {steps[v].op for v in ("q", "d") if "::" not in steps[v].op} == own
    assert graph.spec("q").dtype is (DType.U8 if kind == "uint8" else DType.U16)
    assert graph.spec("q").shape == graph.spec("d").shape == (2, 8, 16)
    assert graph.spec("d").dtype is DType.F32


def test_an_axis_stays_where_the_opset_has_none(tmp_path: Path) -> None:
    graph = load(written(tmp_path / "m.onnx", 10, "uint8", COLUMNS)).graph
    (kept,) = (r for r in graph.regions() if "f" in r.results)
    assert kept.op == "com.microsoft::DequantizeLinear" and kept.node.attrs["axis"] == 1


@pytest.mark.compiler
def test_kernels_compute_in_their_integers(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", 13, "uint8")
    report = api.optimize(path, Options(tmp_path / "out.onnx", keep="all"))
    assert report.status == "passed" and report.kernels
    made = onnx.load(tmp_path / "out.onnx")
    assert not any(n.op_type.endswith("QuantizeLinear") for n in made.graph.node)
