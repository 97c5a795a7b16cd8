"""Sizes of inputs that a model rejects are replaced by others that it accepts."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper, parser

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


@pytest.mark.compiler
def test_other_sizes_are_found_and_said(tmp_path: Path) -> None:
    report = api.optimize(saved(WORDS, tmp_path), Options(keep="all", use_cache=False))
    assert report.status == "passed", report.status_reason
    (note,) = [n for n in report.warnings if "rejects" in n]
    assert "h=48" in note and "--shape" in note


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
