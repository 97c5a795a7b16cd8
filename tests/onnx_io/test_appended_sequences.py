"""Loops that append to a sequence, as TorchScript writes them, write scan outputs instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import normal, session
from tracea_graph import Options, api
from tracea_graph.onnx_io.appended_sequences import replace_appended_sequences
from tracea_graph.onnx_io.node_conversion import all_nodes

APPEND, JOIN = "all2 = SequenceInsert (all1, row2)", "ConcatFromSequence <axis = 0> (all)"
LOOP = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[T, B, 6] x, float[B, 6] first, int64 at) => (float[N, M, K] y, float[B, 6] last)
    <float[6, 6] w> {{
        shape = Shape (x)
        zero = Constant <value = int64 {{0}}> ()
        trips = Gather (shape, zero)
        yes = Constant <value = bool {{1}}> ()
        none = SequenceEmpty <dtype = 1> ()
        last, all = Loop (trips, yes, first, none) <body = b
            (int64 i, bool c, float[B, 6] row1, seq(float) all1)
            => (bool c2, float[B, 6] row2, seq(float) all2) {{
                read = Gather (x, i)
                product = MatMul (row1, w)
                row2 = Add (product, read)
                {append}
                c2 = Identity (c)
            }}>
        y = {join}
    }}"""
FEEDS = {"x": normal(4, 3, 6), "first": normal(3, 6, seed=1), "at": np.array(2)}


def looping(join: str = JOIN, append: str = APPEND) -> onnx.ModelProto:
    model = onnx.parser.parse_model(LOOP.format(join=join, append=append))
    weight = onnx.numpy_helper.from_array(normal(6, 6, seed=2) / 3, "w")
    del model.graph.initializer[:]
    model.graph.initializer.append(weight)
    if "new_axis" not in join:
        del model.graph.output[0].type.tensor_type.shape.dim[0]
    return model


@pytest.mark.parametrize(
    "join",
    [
        *(f"ConcatFromSequence <axis = {i}, new_axis = 1> (all)" for i in (0, 1, 2, -1)),
        *(f"ConcatFromSequence <axis = {i}> (all)" for i in (0, 1, -1, -2)),
        "SequenceAt (all, at)",
    ],
)
def test_the_results_are_equal(join: str) -> None:
    model = looping(join)
    wanted = session(model).run(None, FEEDS)
    assert replace_appended_sequences(model) == 1
    assert not any("Insert" in n.op_type or "Concat" in n.op_type for n in all_nodes(model.graph))
    onnx.checker.check_model(model, full_check=True)
    for one, other in zip(session(model).run(None, FEEDS), wanted, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("join", "append"),
    [
        (JOIN, "all2 = SequenceInsert (all1, row2, i)"),
        (JOIN, "grown = SequenceInsert (all1, row2) all2 = SequenceInsert (grown, row2)"),
        (JOIN, "n = SequenceLength (all1) all2 = SequenceInsert (all1, row2)"),
        (JOIN, "k = Flatten (x) m = Cast <to = 9> (k) t = Compress (row2, m) "
         "all2 = SequenceInsert (all1, t)"),
        ("SequenceLength (all)", APPEND),
    ],
    ids=["at a place", "two a time", "its length", "of any size", "length behind"],
)  # fmt: skip
def test_other_sequences_stay(join: str, append: str) -> None:
    model = looping(join, append)
    before = model.SerializeToString(deterministic=True)
    assert replace_appended_sequences(model) == 0
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.compiler
@pytest.mark.usefixtures("highest_level")
def test_bodies_get_kernels(tmp_path: Path) -> None:
    onnx.save(looping(), tmp_path / "m.onnx")
    report = api.optimize(tmp_path / "m.onnx", Options(tmp_path / "out.onnx", keep="all"))
    assert report.status == "passed" and report.kernels
    made = onnx.load(tmp_path / "out.onnx")
    (loop,) = (n for n in made.graph.node if n.op_type == "Loop")
    assert any(n.domain.startswith("tracea.") for n in loop.attribute[0].g.node)
