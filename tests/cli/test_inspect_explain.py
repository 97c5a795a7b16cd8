"""``tracea inspect`` shows the graph, ``tracea explain`` why it became what it became."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import networkx as nx
import numpy as np
import onnx
import pytest
from rich.console import Console

from tests.graphs import Net
from tests.tiny import transformer
from tracea_graph.cli import main
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.reason_codes import Code
from tracea_graph.views.explain import Explanation, NearMiss, RegionExplanation, render_explanation

APART = ("--skip", "cluster")
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
    assert f"<title>{model.name}: region graph</title>" in text
    assert text.startswith("<!doctype html>") and not re.search(r"(src|href)=.http", text)
    assert "before: " in text and "after: " in text
    assert "predicted" in text and '"microseconds":' in text and '"rectangles":' in text


def test_json_and_graphviz_go_to_stdout(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = nx.node_link_graph(json.loads(told(capsys, "inspect", model, "--json")), edges="links")
    assert nx.is_directed_acyclic_graph(graph)
    assert told(capsys, "inspect", model, "--dot").startswith("digraph ")


def test_both_ask_a_target(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("inspect", "explain"):
        assert told(capsys, command, model, "--target", "cpu:scalar")
        told_off = told(capsys, command, model, "--target", "toaster", code=2)
        assert "use host, cpu:scalar" in told_off


def test_every_operator_has_its_story(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(told(capsys, "explain", model, "--json", *APART))
    fused = [s for s in record["regions"] if s["rule"]]
    attention = next(s for s in fused if s["op"] == "FusedAttention")
    assert "Softmax" in attention["kinds"] and "attention" in attention["steps"]
    assert attention["before_us"] > attention["after_us"] > 0
    missed = [miss["reason"] for s in record["regions"] for miss in s["missed"]]
    assert all(miss["code"] for s in record["regions"] for miss in s["missed"])
    assert missed and all(why.count("'") >= 2 for why in missed), "each names a tensor"
    left = [s for s in record["regions"] if not s["rule"]]
    assert left and all(s["missed"] or s["superseded"] or s["untouched"] for s in left)
    words = told(capsys, "explain", model, *APART)
    assert "Softmax" in words and "unchanged" in words


def test_launches_on_a_gpu_are_listed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No kernel runs; on a CPU nothing is launched."""
    asked = ("--target", "cuda:sm_90", "--precision", "fp16")
    record = json.loads(told(capsys, "explain", model, "--json", *asked))
    launches = [row for region in record["regions"] for row in region["launches"]]
    attend = [row for row in launches if row["kernel"] == "attention_f16"]
    assert attend and all("reads all keys" in row["reason"] for row in attend)
    assert all(row["nodes"] for row in attend)
    words = told(capsys, "explain", model, *asked)
    assert f"the {len(launches)} launches of a run, in order" in words
    assert "one after another" not in told(capsys, "explain", model)


def test_what_no_rule_takes_has_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Net()
    ids = net.ids("ids", 8)
    y = net("Det", net("Unsqueeze", net.input("x", 8, 8), net.ints(0)))
    net.save(tmp_path / "m.onnx", net("Add", ids, ids), y)
    record = json.loads(told(capsys, "explain", tmp_path / "m.onnx", "--json"))
    said = {s["op"]: s["untouched"] for s in record["regions"]}
    assert "has type i64, but kernels read and write float32" in said["Add"]
    assert "computes nothing" in said["Unsqueeze"] and "no rule handles what Det" in said["Det"]
    assert "has type i64" in told(capsys, "explain", tmp_path / "m.onnx")


def test_a_program_says_how_it_runs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What its steps hand on, at which level, and the arena."""
    record = json.loads(told(capsys, "explain", model, "--json"))
    (program,) = [s for s in record["regions"] if s["op"] == "FusedRegion"]
    assert re.match(
        r"values passed between steps: \d+, \d+ in L2.*; arena [\d.]+ MB", program["inside"]
    )
    words = told(capsys, "explain", model, "--node", program["results"][0])
    assert program["inside"] in words


def test_reasons_that_differ_in_a_name_are_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    y = net.input("x", 1, 4, 6, 6)
    for i in range(3):
        y = net("Conv", y, net.input(f"w{i}", 4, 4, 1, 1))
    net.save(tmp_path / "m.onnx", y)
    monkeypatch.setenv("COLUMNS", "200")
    words = told(capsys, "explain", tmp_path / "m.onnx")
    assert words.count("conv: the filters 'w0' are not constant") == 1
    assert "and 2 more" in words


def test_one_operator_and_rules_left_out(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skipped = ("--skip", "attention", "--skip", "softmax")
    record = json.loads(told(capsys, "explain", model, "--json", *skipped))
    (softmax, *_) = [s for s in record["regions"] if s["op"] == "Softmax"]
    words = told(capsys, "explain", model, "--node", softmax["nodes"][0], *skipped)
    assert words.startswith("Softmax unchanged")
    words = told(capsys, "explain", model, "--node", softmax["nodes"][0], *APART)
    assert words.startswith("FusedAttention by")


def test_loops_are_explained_as_they_are_optimized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loop of a known number of iterations is unrolled before the passes run."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4, 16] x) => (float[4, 16] y) <int64 n = {2}, float[4, 16] w = {WEIGHT}> {
        y = Loop (n, "", x) <
            body = b (int64 i, bool c, float[4, 16] h) => (bool d, float[4, 16] r) {
                d = Identity(c)  s = Mul(h, w)  r = Tanh(s)
            }
        >
    }"""
    model = tmp_path / "m.onnx"
    weight = ", ".join(f"{n / 64}" for n in range(64))
    onnx.save(onnx.parser.parse_model(text.replace("WEIGHT", weight)), model)
    record = json.loads(told(capsys, "explain", model, "--json"))
    assert [s["op"] for s in record["regions"]] == ["FusedElementwise"]


def test_measured_gains_come_from_a_report(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads(told(capsys, "explain", model, "--json", *APART))
    node = next(s["nodes"][0] for s in record["regions"] if s["op"] == "FusedAttention")
    report = tmp_path / "report.json"
    group = {"originals": [node], "gains": [1.25, 1.5], "kept": True}
    report.write_text(json.dumps({"groups": [group]}))
    words = told(capsys, "explain", model, "--node", node, "--result", report, *APART)
    assert "measured 1.25× to 1.50×" in words


def test_gains_measured_for_another_target_are_not_quoted(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report beside the model is of one target; predictions may be asked for another."""
    model = Path(shutil.copy(model, tmp_path))
    record = json.loads(told(capsys, "explain", model, "--json", *APART))
    node = next(s["nodes"][0] for s in record["regions"] if s["op"] == "FusedAttention")
    group = {"originals": [node], "gains": [1.25, 1.5], "kept": True}
    document = {"levels": ["scalar"], "groups": [group]}
    model.with_suffix(".tracea.json").write_text(json.dumps(document))
    about = ("explain", model, "--node", node, *APART)
    assert "measured 1.25× to 1.50×" in told(capsys, *about)
    assert "measured" not in told(capsys, *about, "--target", "cuda:sm_90")


def test_what_does_not_exist_is_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, "explain", model, "--node", "nothing", code=2)
    assert "has no operator or value 'nothing'" in said
    said = told(capsys, "explain", model, "--result", tmp_path / "no.json", code=2)
    assert "there is no report" in said
    (tmp_path / "bad.json").write_text("[]")
    said = told(capsys, "explain", model, "--result", tmp_path / "bad.json", code=2)
    assert "is not a report of this tool" in said


def test_what_stays_beside_a_program_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Net()
    x = net.input("x", 64, 32)
    normed = net("LayerNormalization", x, net.weight(32), net.weight(32), axis=-1, name="normed")
    y = net("Relu", net("MatMul", normed, net.weight(32, 32)))
    z = net("CumSum", y, net.const(0, np.int64), name="sums")
    y = net("MatMul", net("Add", net("MatMul", y, net.weight(32, 32)), y), net.weight(32, 32))
    late = net("MatMul", net("Add", y, z), net.weight(32, 32), name="late")
    record = json.loads(told(capsys, "explain", net.save(tmp_path / "m.onnx", late), "--json"))
    reasons = [(m["rule"], m["reason"]) for s in record["regions"] for m in s["missed"]]
    first = "a program starts at its first product or convolution, and 'normed' comes before it"
    between = [w for rule, w in reasons if rule == "cluster" and "has no kernel" in w]
    assert ("cluster", first) in reasons
    assert len(between) == 1 and "'sums'" in between[0]


@pytest.mark.parametrize(
    ("rows", "dtype", "reason"),
    [
        ("n", DType.F16, "'sum' has type f16, but kernels read and write float32"),
        ("m", DType.F32, "the sizes of 'x' and 'y' cannot be proven compatible"),
    ],
)
def test_what_is_said_of_operators_no_rule_came_near(
    rows: str, dtype: DType, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Net()
    x, y = net.input("x", rows, 8, dtype=dtype), net.input("y", rows if rows != "m" else "n", 8,
                                                           dtype=dtype)  # fmt: skip
    model = net.save(tmp_path / "m.onnx", net("Add", x, y, name="sum"))
    words = told(capsys, "explain", model, "--node", "sum")
    assert words.count(reason) == 1, "said once"


def test_a_shape_that_is_an_operand_is_no_operand_of_the_arithmetic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Net()
    size = net("Shape", net("NonZero", net.input("x", "n", 8)))
    model = net.save(tmp_path / "m.onnx", net("Expand", net.input("y", 1, 1), size, name="wide"))
    words = told(capsys, "explain", model, "--node", "wide")
    assert "unchanged" in words and "fit together" not in words


def test_weights_that_may_be_fed_are_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Net()
    model = net.save(
        tmp_path / "m.onnx", net("MatMul", net.input("x", 64, 64), net.weight(64, 64))
    )
    proto = onnx.load(model)
    (weight,) = proto.graph.initializer
    proto.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, 1, weight.dims))
    onnx.save(proto, model)
    assert "--freeze-initializers makes them constants" in told(capsys, "explain", model)
    assert "--freeze" not in told(capsys, "explain", model, "--freeze-initializers")


def test_rules_stand_in_the_order_they_were_applied_and_share_a_reason(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "avx512bf16" not in host_levels("bf16"):
        pytest.skip("this processor has no bf16, so explain plans for float32")
    record = json.loads(told(capsys, "explain", model, "--json", "--precision", "bf16"))
    (program,) = [s for s in record["regions"] if s["op"] == "FusedRegion"]
    steps = program["steps"]
    assert steps[-1] in ("cluster", "tile-and-fuse")
    assert steps.index("gemm") < steps.index("gemm-bf16")
    said = "no gain is predicted for 'v'"
    why = tuple(
        NearMiss(rule, said, Code.NO_PREDICTED_GAIN) for rule in ("elementwise-op", "strided-copy")
    )
    story = RegionExplanation("Add", "", ("v",), ("n",), ("Add",), 1.0, 1.0, missed=why)
    told_of = Explanation("m.onnx", "", (story,), ())
    shown = Console(record=True, width=120, file=io.StringIO())
    shown.print(render_explanation(told_of))
    assert "elementwise-op, strided-copy: no gain is predicted for 'v'" in shown.export_text()
