"""Every shape contradiction of a model, by two policies, in one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import tracea_graph as tg
from models.make import make
from tracea_graph.cli.main import main
from tracea_graph.errors import ModelError, UsageError

F32 = TensorProto.FLOAT
node = helper.make_node


def written(
    folder: Path,
    nodes: list[NodeProto],
    inputs: dict[str, tuple[Any, ...]],
    outputs: dict[str, tuple[Any, ...] | None],
    weights: dict[str, tuple[int, ...]] | None = None,
    inside: dict[str, tuple[Any, ...]] | None = None,
    dtype: int = F32,
) -> Path:
    def infos(shapes: dict[str, Any], kind: int = F32) -> list[Any]:
        return [helper.make_tensor_value_info(n, kind, s) for n, s in shapes.items()]

    held = [
        numpy_helper.from_array(np.ones(shape, np.float32), name)
        for name, shape in (weights or {}).items()
    ]
    graph = helper.make_graph(
        nodes, "g", infos(inputs), infos(outputs, dtype), held, value_info=infos(inside or {})
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


ADD = [node("Add", ["x", "w"], ["y"], "sum")]
CASES = {
    "addends": (
        {"nodes": ADD, "inputs": {"x": (2, 4)}, "outputs": {"y": None}, "weights": {"w": (3,)}},
        [("operands", "sum", "'x' is f32[2,4] and 'w' is f32[3]")],
    ),
    "an inner dimension": (
        {
            "nodes": [node("MatMul", ["x", "w"], ["y"], "product")],
            "inputs": {"x": ("n", 4)}, "outputs": {"y": None}, "weights": {"w": (5, 6)},
        },
        [("operands", "product", "'w' is f32[5,6]")],
    ),
    "channels": (
        {
            "nodes": [node("Conv", ["x", "w"], ["y"], "conv")],
            "inputs": {"x": (1, 3, 8, 8)}, "outputs": {"y": None}, "weights": {"w": (8, 4, 3, 3)},
        },
        [("operands", "conv", "3 input channels, but filters take 4")],
    ),
    "statistics": (
        {
            "nodes": [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], "bn")],
            "inputs": {"x": (1, 3, 8, 8)}, "outputs": {"y": None},
            "weights": {"s": (3,), "b": (4,), "m": (3,), "v": (3,)},
        },
        [("operands", "bn", "and 'b' is f32[4]")],
    ),
    "a declared output": (
        {"nodes": ADD, "inputs": {"x": (2, 4)}, "outputs": {"y": (2, 5)}, "weights": {"w": (4,)}},
        [("declared", "sum", "declared as f32[2,5], computed as f32[2,4]: axis 1 is 4, not 5")],
    ),
    "a declared rank": (
        {"nodes": ADD, "inputs": {"x": (2, 4)}, "outputs": {"y": (2,)}, "weights": {"w": (4,)}},
        [("declared", "sum", "the ranks differ")],
    ),
    "a declared type": (
        {
            "nodes": ADD, "inputs": {"x": (2, 4)}, "outputs": {"y": (2, 4)},
            "weights": {"w": (4,)}, "dtype": TensorProto.INT64,
        },
        [("type", "sum", "declared as i64, computed as f32")],
    ),
    "two at once, also behind the first": (
        {
            "nodes": [
                node("Add", ["x", "w"], ["h"], "first"), node("Relu", ["h"], ["r"], "second"),
                node("Add", ["r", "v"], ["y"], "third"),
            ],
            "inputs": {"x": (2, 4)}, "outputs": {"y": None}, "inside": {"h": (2, 4)},
            "weights": {"w": (3,), "v": (5,)},
        },
        [("operands", "first", "f32[3]"), ("operands", "third", "f32[5]")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_contradictions_are_listed(name: str, tmp_path: Path) -> None:
    given, expected = CASES[name]
    report = tg.validate_shapes(written(tmp_path, **given))  # type: ignore[arg-type]
    assert not report.ok and report.policy == "lenient"
    rows = report.contradictions
    assert [(r.kind, r.node) for r in rows] == [(kind, label) for kind, label, _ in expected]
    for row, (_, _, words) in zip(rows, expected, strict=True):
        assert words in row.reason


def test_strict_adds_what_holds_for_some_sizes_only(tmp_path: Path) -> None:
    path = written(
        tmp_path, ADD, {"x": ("n", 4)}, {"y": ("m", 4)}, {"w": (4,)}
    )  # fmt: skip
    assert tg.validate_shapes(path).ok
    (row,) = tg.validate_shapes(path, "strict").contradictions
    assert row.kind == "sizes" and "n, which is m only for some sizes" in row.reason


def test_strict_adds_unknown_ranks(tmp_path: Path) -> None:
    path = written(
        tmp_path, [node("Reshape", ["x", "s"], ["y"], "free")], {"x": (2, 4), "s": ("k",)},
        {"y": None},
    )  # fmt: skip
    model = onnx.load(path)
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(model, path)
    assert tg.validate_shapes(path).ok
    (row,) = tg.validate_shapes(path, "strict").contradictions
    assert (row.kind, row.node, row.value) == ("unknown", "free", "y")


@pytest.mark.parametrize("name", ["tiny-bert", "tagger", "mobilenetv2", "llama-attention"])
def test_real_models_have_none(name: str, tmp_path: Path) -> None:
    path = make(name, tmp_path, hollow=True)
    report = tg.validate_shapes(path, "strict")
    assert report.ok and report.values > 50
    assert tg.validate_shapes(tg.load(path)).contradictions == ()


def test_what_cannot_be_checked_says_why(tmp_path: Path) -> None:
    path = written(tmp_path, ADD, {"x": (2, 4)}, {"y": None}, {"w": (4,)})
    with pytest.raises(UsageError, match="no policy 'stric'; did you mean strict"):
        tg.validate_shapes(path, "stric")
    (tmp_path / "no.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError):
        tg.validate_shapes(tmp_path / "no.onnx")


def test_the_command_prints_a_table_and_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, _ = CASES["two at once, also behind the first"]
    path = written(tmp_path, **given)  # type: ignore[arg-type]
    assert main(["inspect", str(path), "--check", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [row["node"] for row in data["contradictions"]] == ["first", "third"]
    assert main(["inspect", str(path), "--check"]) == 1
    shown = capsys.readouterr().out
    assert "shape contradictions" in shown and "2 contradictions among" in shown
    assert main(["inspect", str(path), "--check", "--dot"]) == 2
