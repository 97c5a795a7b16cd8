"""``tracea inspect`` shows the graph, ``tracea explain`` why it became what it became."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import onnx
import pytest
from graphs import Net
from onnx import parser
from tiny import transformer

from tracea_graph.cli import main

APART = ("--skip", "blocks")
"""What could be steps of one program stays apart."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return transformer(tmp_path_factory.mktemp("explain"))


def told(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> str:
    assert main([str(a) for a in args]) == code
    out, err = capsys.readouterr()
    return out or err


def test_the_page_holds_the_graph_and_what_changed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "graph.html"
    assert "wrote" in told(capsys, "inspect", model, "--fused", "--html", page)
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "https://" not in text
    assert "before: " in text and "after: " in text
    assert "predicted" in text and '"microseconds":' in text and '"rectangles":' in text


def test_json_and_graphviz_go_to_stdout(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = nx.node_link_graph(json.loads(told(capsys, "inspect", model, "--json")), edges="links")
    assert nx.is_directed_acyclic_graph(graph)
    assert told(capsys, "inspect", model, "--dot").startswith("digraph ")


def test_every_operator_has_its_story(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(told(capsys, "explain", model, "--json", *APART))
    fused = [s for s in record["stories"] if s["rule"]]
    attention = next(s for s in fused if s["op"] == "FusedAttention")
    assert "Softmax" in attention["kinds"] and "attention" in attention["steps"]
    assert attention["before_us"] > attention["after_us"] > 0
    missed = [why for s in record["stories"] for _, why in s["missed"]]
    assert missed and all(why.count("'") >= 2 for why in missed), "each names a tensor"
    words = told(capsys, "explain", model, *APART)
    assert "FusedAttention" in words and "left as they are" in words


def test_reasons_that_differ_in_a_name_are_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Net()
    y = net.input("x", 1, 4, 6, 6)
    for i in range(3):
        y = net("Conv", y, net.input(f"w{i}", 4, 4, 1, 1))
    net.graph(y)
    onnx.save(net.model, tmp_path / "m.onnx")
    words = told(capsys, "explain", tmp_path / "m.onnx")
    assert words.count("conv: the filters are not constant") == 1
    assert "and 2 more" in words


def test_an_operator_that_no_rule_speaks_of_is_told_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (int64[4] i, float[2,2] x)'
        " => (int64[4] j, float y) { j = BitwiseNot(i)  y = Det(x) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    words = told(capsys, "explain", tmp_path / "m.onnx")
    assert "rules are about float32, and it has i64 only" in words
    assert "no rule matches it" in words


def test_one_operator_and_rules_left_out(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(told(capsys, "explain", model, "--json", "--skip", "attention"))
    (softmax, *_) = [s for s in record["stories"] if s["op"] == "Softmax"]
    words = told(capsys, "explain", model, "--node", softmax["nodes"][0], "--skip", "attention")
    assert words.startswith("Softmax left as it is")
    words = told(capsys, "explain", model, "--node", softmax["nodes"][0], *APART)
    assert words.startswith("FusedAttention by")


def test_measured_gains_come_from_a_report(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads(told(capsys, "explain", model, "--json", *APART))
    node = next(s["nodes"][0] for s in record["stories"] if s["op"] == "FusedAttention")
    report = tmp_path / "report.json"
    group = {"originals": [node], "gains": [1.25, 1.5], "kept": True}
    report.write_text(json.dumps({"groups": [group]}))
    words = told(capsys, "explain", model, "--node", node, "--result", report, *APART)
    assert "measured 1.25× to 1.50×" in words


def test_what_does_not_exist_is_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, "explain", model, "--node", "nothing", code=2)
    assert "has no operator or value 'nothing'" in said
    said = told(capsys, "explain", model, "--result", tmp_path / "no.json", code=2)
    assert "there is no report" in said
    (tmp_path / "bad.json").write_text("[]")
    said = told(capsys, "explain", model, "--result", tmp_path / "bad.json", code=2)
    assert "is no report of this tool" in said
