"""Sizes of inputs that a model rejects are replaced by others that it accepts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from tracea_graph import Options, api
from tracea_graph.check.symbol_bindings import fallback_bindings
from tracea_graph.onnx_io import load

WORDS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 3, h, w] x) => (float[n, m, k] y) <int64[3] rows = {0, 27, -1}>
{ r = Reshape(x, rows)  t = Tanh(r)  s = Sigmoid(t)  y = Mul(s, t) }"""
"""Only of the usual sizes 48 fits: 3·h·w has to be a multiple of 27."""


def saved(text: str, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(parser.parse_model(text), path)
    return path


LOOPED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3, size, 3] x, float[3, size, size, size] bias, float[size, size, 8] z, float[3, 16] m)
  => (float[3, size, 16] y, float[size, size, 8] u)
<int64[4] heads = {0, 0, 1, 16}, int64[3] rows = {0, 0, 16}, int64 often = {2},
 bool on = {1}>
{ a = MatMul(x, m)  b = Reshape(a, heads)  q = Transpose<perm = [0, 2, 1, 3]>(b)
  k = Transpose<perm = [0, 2, 3, 1]>(b)  c = MatMul(q, k)  s = Add(c, bias)
  p = Softmax<axis = -1>(s)  o = MatMul(p, q)  t = Transpose<perm = [0, 2, 1, 3]>(o)
  y = Reshape(t, rows)
  u = Loop(often, on, z) <body = b (int64 i, bool go, float[] v) => (bool goes, float[] w)
    { goes = Identity(go)  w = Sigmoid(v) }> }"""
"""Takes a bias of one head, and has fewer sizes if its loop is unrolled; ``m`` may be fed."""


@pytest.mark.compiler
def test_other_sizes_are_found_and_said(tmp_path: Path) -> None:
    report = api.optimize(saved(WORDS, tmp_path), Options(keep="all", use_cache=False))
    assert report.status == "passed", report.status_reason
    (note,) = [n for n in report.warnings if "rejects" in n]
    assert "h=48" in note and "--shape" in note


@pytest.mark.slow
@pytest.mark.compiler
def test_sizes_are_found_where_initializers_are_guarded(tmp_path: Path) -> None:
    model = parser.parse_model(LOOPED)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 16), np.float32), "m"))
    onnx.save(model, tmp_path / "model.onnx")
    report = api.optimize(tmp_path / "model.onnx", Options(keep="all", use_cache=False))
    assert report.status == "passed", report.status_reason
    assert any("rejects" in note and "is used instead" in note for note in report.warnings)


def test_sizes_given_by_the_caller_are_kept(tmp_path: Path) -> None:
    options = Options(keep="all", shapes=({"h": 224, "w": 224},), use_cache=False)
    report = api.optimize(saved(WORDS, tmp_path), options)
    assert report.status != "passed" and "rejects" in report.status_reason


def test_guesses_go_through_all_sizes(tmp_path: Path) -> None:
    state = helper.make_tensor_value_info("state", 1, [2, None, 128])
    sound = helper.make_tensor_value_info("sound", 1, [None, None])
    nodes = [helper.make_node("ReduceSum", ["sound"], ["s"], keepdims=0),
             helper.make_node("Mul", ["state", "s"], ["y"])]  # fmt: skip
    result = helper.make_tensor_value_info("y", 1, [2, None, 128])
    graph = helper.make_graph(nodes, "g", [sound, state], [result])
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "m.onnx")
    found = [dict(one.symbols) for one in fallback_bindings(load(tmp_path / "m.onnx").graph)]
    assert len(found) == len({tuple(f.items()) for f in found})
    assert any(set(f.values()) == {1, 256} for f in found)


@pytest.mark.slow
def test_guesses_that_no_memory_holds_are_left_out(tmp_path: Path) -> None:
    """No size fits; 1,024 would make the images one of 24 GiB."""
    cube = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[3, size, size, size] x, float[3, size, 3] z) => (float[3, 1, size, size] y)
        <int64[4] rows = {0, 0, 1, 16}>
        { r = Reshape(z, rows)  s = ReduceSum(r)  t = Add(x, s)  y = Mul(t, t) }"""
    report = api.optimize(saved(cube, tmp_path), Options(keep="all", use_cache=False))
    assert report.status == "inconclusive" and "rejects" in report.status_reason
