"""Models that are odd but no error: what is said of them, and that nothing gives up on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.support import refused
from tracea_graph.cli import main, optimize_main

Dims = Sequence[int | str] | None


def write(nodes: Sequence[onnx.NodeProto], result: str = "y", **inputs: Dims) -> None:
    """``m.onnx``: float32 inputs of these shapes, None for unknown, and one result of unknown."""
    ends = [
        [helper.make_tensor_value_info(v, TensorProto.FLOAT, dims) for v, dims in side.items()]
        for side in (inputs, {result: None})
    ]
    graph = helper.make_graph(nodes, "g", *ends)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, "m.onnx")


def node(op: str, reads: str, writes: str = "y", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, reads.split(), writes.split(), **attrs)


def said(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main([*args]) == 0
    return " ".join(capsys.readouterr().out.split())


def kept(capsys: pytest.CaptureFixture[str]) -> str:
    """What ``tracea-optimize`` says of a model it can read."""
    assert optimize_main(["m.onnx", "--keep", "all"]) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("home")
def test_an_operator_nobody_knows_is_opaque(capsys: pytest.CaptureFixture[str]) -> None:
    write([node("Strange", "x", "h"), node("Relu", "h")], x=[4, 8])
    story = said(capsys, "explain", "m.onnx", "--node", "h")
    assert "Strange unchanged" in story and "the type of 'h' is not known" in story
    assert "wrote" in said(capsys, "inspect", "m.onnx", "--html", "m.html")
    assert "Strange" in Path("m.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("home")
def test_a_shape_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    write([node("Softmax", "x", "h"), node("Relu", "h")], x=None)
    assert "the rank of 'h' is not known" in said(capsys, "explain", "m.onnx", "--node", "y")
    assert "kept original" in kept(capsys)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("op", "attrs", "reason"),
    [
        ("Add", {}, "'h' is f32[2,3] and 'b' is f32[2,4]"),
        ("MatMul", {}, "'h' is f32[2,3] and 'b' is f32[2,4]"),
        ("Concat", {"axis": 0}, "'h' is f32[2,3] and 'b' is f32[2,4]"),
    ],
)
def test_shapes_that_contradict_each_other_are_named_with_both_tensors(
    op: str, attrs: dict[str, Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write([node("Relu", "x", "h"), node(op, "h b", **attrs)], x=[2, 3], b=[2, 4])
    assert reason in refused(capsys, "m.onnx")
    assert main(["explain", "m.onnx"]) == 2 and reason in capsys.readouterr().err


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("op", ["Add", "MatMul", "Softmax"])
def test_extents_of_zero(op: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        [node(op, "x" if op == "Softmax" else "x b")],
        x=[3, 0],
        b=[3, 0] if op == "Add" else [0, 4],
    )
    assert "predicted" in said(capsys, "explain", "m.onnx")
    assert "wrote" in said(capsys, "inspect", "m.onnx", "--html", "m.html")
    kept(capsys)


@pytest.mark.usefixtures("home")
def test_symbols_nobody_binds_get_sizes_that_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write([node("Relu", "x", "h"), node("Exp", "h")], x=["batch", "seq_len", 64])
    assert "predicted for batch=1, seq_len=128" in said(capsys, "explain", "m.onnx")
    said(capsys, "inspect", "m.onnx", "--html", "m.html")
    assert "tiles and times at batch=1, seq_len=128" in Path("m.html").read_text(encoding="utf-8")
    bound = said(capsys, "explain", "m.onnx", "--shape", "seq_len=7")
    assert "predicted for batch=1, seq_len=7" in bound


@pytest.mark.usefixtures("home")
def test_a_long_chain_needs_no_recursion(capsys: pytest.CaptureFixture[str]) -> None:
    count = 1500
    nodes = [node("Sigmoid" if i % 3 else "CumSum", f"v{i}" + ("" if i % 3 else " axis"),
                  f"v{i + 1}") for i in range(count)]  # fmt: skip
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [0])
    write(nodes, f"v{count}", v0=[64, 64])
    proto = onnx.load("m.onnx")
    proto.graph.initializer.append(axis)
    onnx.save(proto, "m.onnx")
    assert "CumSum" in said(capsys, "explain", "m.onnx")
    assert "wrote" in said(capsys, "inspect", "m.onnx", "--fused", "--html", "m.html")
