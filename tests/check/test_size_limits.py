"""Default sizes stay within what a model's constants allow, and say why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from tests.onnx_io.samples import I64, model, node, read, run, tensor, value
from tracea_graph.check.input_feeds import synthesize_inputs
from tracea_graph.check.symbol_bindings import choose_bindings
from tracea_graph.errors import UsageError
from tracea_graph.ir import Expr, symbols_of
from tracea_graph.onnx_io.imported_model import Model

NUMBERS = [
    tensor("zero", 0, np.int64), tensor("one", 1, np.int64), tensor("z1", [0], np.int64),
    tensor("i1", [1], np.int64), tensor("pad", 1, np.int64),
    tensor("words", np.ones((50, 8))), tensor("rows", np.ones((40, 8))),
    tensor("ids", np.arange(40)[None], np.int64),
]  # fmt: skip
WORDS = [node("Gather", "words x", "w"), node("Shape", "x", "q"), node("Gather", "q one", "s"),
         node("Unsqueeze", "s z1", "s1")]  # fmt: skip

MODELS = {
    "a slice of position ids": [
        *WORDS, node("Slice", "ids z1 s1 i1", "p"), node("Gather", "rows p", "e"),
        node("Add", "w e", "y"),
    ],
    "a slice of the table": [*WORDS, node("Slice", "rows z1 s1 z1", "e"), node("Add", "w e", "y")],
    "a range": [
        *WORDS, node("Range", "zero s one", "p"), node("Gather", "rows p", "e"),
        node("Add", "w e", "y"),
    ],
    "a range, displaced": [
        *WORDS, node("Range", "zero s one", "r"), node("Add", "r pad", "p"),
        node("Gather", "rows p", "e"), node("Add", "w e", "y"),
    ],
    "a running count of words that are no padding": [
        *WORDS, node("Equal", "x zero", "a"), node("Not", "a", "n"), node("Cast", "n", "m", to=7),
        node("CumSum", "m one", "c"), node("Mul", "c m", "t"), node("Add", "t pad", "p"),
        node("Gather", "rows p", "e"), node("Add", "w e", "y"),
    ],
    "the whole table": [*WORDS, node("Add", "w rows", "y")],
}  # fmt: skip
MOST = {"a range, displaced": 39, "a running count of words that are no padding": 38}


def small(name: str, folder: Path) -> Model:
    proto = model(MODELS[name], [value("x", ["batch", "sequence"], I64)],
                  [value("y", None)], NUMBERS)  # fmt: skip
    return read(proto, folder)


@pytest.mark.parametrize("name", MODELS)
def test_the_default_is_the_longest_the_model_runs_at(name: str, tmp_path: Path) -> None:
    loaded, most = small(name, tmp_path), MOST.get(name, 40)
    (timed,), verified = choose_bindings(loaded.graph, (), loaded.inputs)
    assert timed.symbols["sequence"] == most and timed.label == f"batch=1 sequence={most}"
    (note,) = timed.notes
    assert note.startswith(f"sequence = {most}: ")
    assert ("'rows'" in note or "'ids'" in note) and "40" in note
    for binding in (timed, *verified):
        run(tmp_path / "m.onnx", synthesize_inputs(loaded.graph, binding))


@pytest.mark.parametrize("name", MODELS)
def test_a_given_size_stays_or_is_refused_at_once(name: str, tmp_path: Path) -> None:
    loaded, most = small(name, tmp_path), MOST.get(name, 40)
    (given,), _ = choose_bindings(loaded.graph, [{"sequence": most}], loaded.inputs)
    assert given.symbols["sequence"] == most and not given.notes
    run(tmp_path / "m.onnx", synthesize_inputs(loaded.graph, given))
    with pytest.raises(UsageError, match=rf"^sequence={most + 1} does not fit the model: .*40"):
        choose_bindings(loaded.graph, [{"sequence": most + 1}], loaded.inputs)


def test_two_symbols_share_a_bound(tmp_path: Path) -> None:
    nodes = [
        node("Concat", "past new", "all", axis=1), node("Shape", "all", "q"),
        node("Gather", "q one", "s"), node("Unsqueeze", "s z1", "s1"),
        node("Slice", "rows z1 s1 z1", "e"), node("Add", "all e", "y"),
    ]  # fmt: skip
    inputs = [value("past", ["batch", "past", 8]), value("new", ["batch", "sequence", 8])]
    loaded = read(model(nodes, inputs, [value("y", None)], NUMBERS), tmp_path)
    (timed,), _ = choose_bindings(loaded.graph, (), loaded.inputs)
    assert (timed.symbols["past"], timed.symbols["sequence"]) == (20, 20)
    assert timed.notes[0].startswith("past = 20 and sequence = 20: ")
    run(tmp_path / "m.onnx", synthesize_inputs(loaded.graph, timed))


@pytest.mark.parametrize("own", [False, True])
def test_positions_that_an_embedding_counts_are_rows_of_its_table(
    own: bool, tmp_path: Path
) -> None:
    ids = f"x _ words rows _ ones ones _ {'x' if own else ''}"
    nodes = [node("EmbedLayerNormalization", ids, "y mask", domain="com.microsoft")]
    constants = [*NUMBERS, tensor("ones", np.ones(8))]
    inputs = [value("x", ["batch", "sequence"], TensorProto.INT32)]
    proto = model(nodes, inputs, [value("y", None)], constants)
    proto.opset_import.add(domain="com.microsoft", version=1)
    loaded = read(proto, tmp_path)
    (timed,), _ = choose_bindings(loaded.graph, (), loaded.inputs)
    assert timed.symbols["sequence"] == (128 if own else 40)
    run(tmp_path / "m.onnx", synthesize_inputs(loaded.graph, timed))


def test_clip_text_runs_at_its_77_positions(tmp_path: Path) -> None:
    from models.make import make
    from tracea_graph.onnx_io import load

    loaded = load(make("clip-text", tmp_path))
    (timed,), _ = choose_bindings(loaded.graph, (), loaded.inputs)
    assert timed.label == "batch=1 sequence=77"
    assert "position_embedding.weight" in timed.notes[0]


def test_spelt_sums_need_no_size_of_their_own(tmp_path: Path) -> None:
    inputs = [value("past", ["batch", "p", 8]), value("x", ["batch", "s", 8]),
              value("m", ["batch", "p + s"])]  # fmt: skip
    nodes = [node("Concat", "past x", "c", axis=1), node("Unsqueeze", "m i2", "n"),
             node("Mul", "c n", "y")]  # fmt: skip
    tensors = [tensor("i2", [2], np.int64)]
    loaded = read(model(nodes, inputs, [value("y", None)], tensors), tmp_path)
    (timed,), _ = choose_bindings(loaded.graph, (), loaded.inputs)
    assert set(timed.symbols) == {"batch", "p", "s"}
    size = (loaded.graph.spec("m").shape or ())[1]
    assert isinstance(size, Expr) and set(symbols_of(size)) == {"p", "s"}
    fed = synthesize_inputs(loaded.graph, timed)
    assert fed["m"].shape[1] == timed.symbols["p"] + timed.symbols["s"]
    run(tmp_path / "m.onnx", fed)
