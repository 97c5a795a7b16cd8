"""The demo's arithmetic: what it counts, how it times, which error it reports."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console

from models import demo
from models.demo import compare, error_between, kernel_nodes, open_session, summary, table
from tracea_graph.check.timing_statistics import series_ratio


def identity_model(path: Path, domain: str = "") -> Path:
    node = helper.make_node("Identity", ["x"], ["y"], domain=domain)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


def test_the_demo_counts_kernel_nodes_only_with_their_library(tmp_path: Path) -> None:
    path = identity_model(tmp_path / "m.onnx", "tracea.0123456789")
    assert kernel_nodes(path) == (0, 1)
    path.with_suffix(".so").touch()
    assert kernel_nodes(path) == (1, 1)
    assert kernel_nodes(identity_model(path)) == (0, 1)


def test_the_demo_times_in_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "LONGEST_S", 1e4)
    session = open_session(identity_model(tmp_path / "m.onnx"))
    times = compare(session, session, {"x": np.ones(3, np.float32)})
    assert len(times.a_ms) == len(times.b_ms) == 60
    assert min(*times.a_ms, *times.b_ms) > 0


def test_the_demo_reports_the_worst_output() -> None:
    a, b = np.array([2.0, -4.0]), np.array([2.5, -4.0])
    words = np.array(["s"])
    assert error_between([a, a, words], [a, b, words]) == 0.125


def test_the_demo_shows_one_row_that_fits_a_terminal() -> None:
    rate = series_ratio([20.0] * 8, [16.0] * 8)
    console = Console(width=80, record=True)
    console.print(table("minilm.onnx", rate, 2e-6, (18, 111)))
    text = console.export_text()
    for cell in ("20.00 ms", "16.00 ms", "1.250×", "2.0e-06 of max|y|", "18 of 111"):
        assert cell in text


def test_the_demo_says_why(tmp_path: Path) -> None:
    report = tmp_path / "m.json"
    said = {"outcome": "kept original", "reason": "nothing was faster", "warnings": ["busy"]}
    report.write_text(json.dumps(said))
    first, second, third = summary(report).splitlines()
    assert (first, second) == ("kept original: nothing was faster", "warning: busy")
    assert third.endswith("m.json")
