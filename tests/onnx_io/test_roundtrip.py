"""Import then export: same answers bit for bit, same interface, untouched nodes untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from models.make import available, make
from tests.onnx_io.samples import (
    BOOL,
    F32,
    I64,
    equal,
    feeds,
    interface,
    mlp,
    model,
    node,
    ops,
    read,
    run,
    save,
    skeleton,
    tensor,
    value,
    verbatim,
)  # fmt: skip
from tracea_graph.check.output_errors import relative_distance
from tracea_graph.config import TOLERANCE
from tracea_graph.errors import ModelError
from tracea_graph.onnx_io import load
from tracea_graph.onnx_io.model_validation import newest_opset
from tracea_graph.onnx_io.node_conversion import all_nodes, captures_of
from tracea_graph.onnx_io.subgraph_flattening import is_subgraph_entry

ROOT = Path(__file__).parents[2]
CORPUS = ROOT.parent / "shared" / "corpus"
REAL = sorted(CORPUS.glob("real/*.onnx"))
SMALL = sorted(CORPUS.glob("small/*.onnx"))
SIZES = {"batch": 2, "sequence": 7}

RUNTIME_NEWEST = 26
"""The newest opset ONNX Runtime's release builds accept may lie behind onnx's."""


def check(path: Path, out: Path) -> None:
    """The written model answers as the original does, through the same interface."""
    loaded = load(path)
    written = verbatim(loaded, out / "out.onnx")
    before, after = loaded.skeleton, skeleton(written.model)
    assert interface(before) == interface(after)
    assert after.ir_version == max(before.ir_version, 8)
    originals = {n.SerializeToString() for n in before.graph.node}
    for region in loaded.graph.regions():
        if region.node.source is not None:
            assert before.graph.node[region.node.source].SerializeToString() in originals
    kept = sum(n.SerializeToString() in originals for n in after.graph.node)
    regions = loaded.graph.regions()
    flat = any(is_subgraph_entry(r.node.name) for r in regions) or branches(path) > branches(
        written.model
    )
    if not flat:  # the nodes of branches read their values by other names for a while
        assert kept >= sum(r.node.source is not None for r in regions)
    try:
        given = feeds(path, SIZES)
        expected = run(path, given)
    except Exception as error:  # the original itself refuses these feeds
        pytest.skip(f"the original does not run: {str(error)[:60]}")
    results = run(written.model, given)
    if loaded.widened or flat:
        limit = TOLERANCE.half if loaded.widened else TOLERANCE.kernel_f32
        for result, wanted in zip(results, expected, strict=True):
            assert result.dtype == wanted.dtype and relative_distance(result, wanted) <= limit
    elif kept == len(before.graph.node):
        assert equal(results, expected)
    else:
        for result, wanted in zip(results, expected, strict=True):
            assert same(result, wanted)
    if not skeleton(path).functions:  # their nodes stand where they are called
        assert written.bytes <= 1.02 * loaded.size + 512


def branches(path: Path) -> int:
    """How many If a model has, at any depth."""
    return sum(n.op_type == "If" for n in all_nodes(skeleton(path).graph))


def same(result: Any, wanted: Any) -> bool:
    """Bit for bit, but in float16.

    ONNX Runtime computes most float16 nodes in float32 and rounds between them; where a node
    that does nothing is left out, such as a Dropout, it may leave out a rounding as well.
    """
    halves = [isinstance(x, np.ndarray) and x.dtype == np.float16 for x in (result, wanted)]
    if not all(halves):
        return equal(result, wanted)
    return bool(np.allclose(result, wanted, rtol=2 * np.finfo(np.float16).eps, atol=1e-6))


@pytest.mark.parametrize("opset", range(7, RUNTIME_NEWEST + 1))
def test_every_opset(opset: int, tmp_path: Path) -> None:
    check(save(mlp(opset), tmp_path), tmp_path)


def test_newest_opset_loads(tmp_path: Path) -> None:
    assert read(mlp(newest_opset()), tmp_path).graph.opset == newest_opset()


@pytest.mark.parametrize("ir", range(3, 11))
def test_every_ir_version(ir: int, tmp_path: Path) -> None:
    check(save(mlp(ir=ir), tmp_path), tmp_path)
    assert load(tmp_path / "m.onnx").inputs == ("x",)


@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus of public models is not here")
def test_corpus_is_complete() -> None:
    assert len(REAL) > 10 and len(SMALL) > 60


@pytest.mark.parametrize("path", [*REAL, *SMALL], ids=[p.stem for p in (*REAL, *SMALL)])
def test_corpus(path: Path, tmp_path: Path) -> None:
    try:
        load(path)
    except ModelError:
        with pytest.raises(Exception, match=r"."):
            run(path, {})
        return
    check(path, tmp_path)


SLOW = [n for n in available() if n != "minilm"]


@pytest.mark.parametrize(
    "name", ["minilm", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]
)
def test_zoo(name: str, tmp_path: Path) -> None:
    path = make(name, tmp_path)
    check(path, tmp_path)
    graph = load(path).graph
    for region in graph.regions():
        for value_name in region.writes:
            extents = graph.spec(value_name).shape
            assert extents is not None, value_name
            assert not any("?" in str(extent) for extent in extents), value_name


def branchy() -> ModelProto:
    """An If whose branches read outer values, one of them behind a shadowing name."""
    inner = helper.make_graph(
        [node("Add", "a w", "t"), node("Mul", "t x", "then")], "then", [], [value("then", None)]
    )
    shadow = helper.make_graph(
        [node("Sub", "x big", "s"), node("Neg", "s", "else")], "else", [],
        [value("else", None)], [tensor("big", np.ones(400))],
    )  # fmt: skip
    nodes = [
        node("Identity", "x", "a"),
        node("Identity", "x", "unused"),
        node("If", "c", "y", then_branch=inner, else_branch=shadow),
    ]
    inputs = [value("x", [400]), value("c", [], BOOL)]
    weights = [tensor("w", np.arange(400)), tensor("big", np.zeros(400))]
    return model(nodes, inputs, [value("y", [400])], weights)


@pytest.mark.parametrize("condition", [True, False])
def test_if_with_captures(condition: bool, tmp_path: Path) -> None:
    path = save(branchy(), tmp_path)
    loaded = load(path)
    assert {*ops(loaded)} == {"Identity", "Add", "If", "Mul", "Neg", "Sub"}
    written = verbatim(loaded, tmp_path / "out.onnx")
    assert len(skeleton(written.model).graph.initializer) == 2
    assert [n.op_type for n in skeleton(written.model).graph.node] == ["If"]
    given = {"x": np.ones(400, np.float32), "c": np.array(condition)}
    assert equal(run(written.model, given), run(path, given))


def loop(body_reads: str) -> ModelProto:
    body = helper.make_graph(
        [node("Add", f"v {body_reads}", "v2"), node("Identity", "k", "k2")], "body",
        [value("i", [], I64), value("k", [], BOOL), value("v", [2])],
        [value("k2", [], BOOL), value("v2", [2])],
    )  # fmt: skip
    nodes = [node("Loop", "n _ x", "y", body=body)]
    return model(nodes, [value("x", [2])], [value("y", [2])],
                 [tensor("n", 3, np.int64), tensor("w", [1.0, 2.0])])  # fmt: skip


@pytest.mark.parametrize(("reads", "captures"), [("w", ("w",)), ("v", ()), ("x", ("x",))])
def test_loop_captures_what_its_body_reads(
    reads: str, captures: tuple[str, ...], tmp_path: Path
) -> None:
    path = save(loop(reads), tmp_path)
    assert load(path).graph.regions()[0].captures == captures
    check(path, tmp_path)


def test_nested_captures(tmp_path: Path) -> None:
    proto = branchy()
    outer = helper.make_graph([proto.graph.node[2]], "outer", [], [value("y", None)])
    other = helper.make_graph([node("Abs", "x", "q")], "other", [], [value("q", None)])
    del proto.graph.node[2]
    proto.graph.node.append(node("If", "c", "z", then_branch=outer, else_branch=other))
    proto.graph.output[0].name = "z"
    path = save(proto, tmp_path)
    assert ops(load(path)).count("If") == 2
    check(path, tmp_path)
    (after,) = [n for n in skeleton(tmp_path / "out.onnx").graph.node if n.op_type == "If"]
    assert captures_of(after)[0] >= {"c", "w", "x"}


def test_overridable_initializer_is_an_input(tmp_path: Path) -> None:
    proto = mlp()
    proto.graph.input.append(value("w1", [64, 4]))
    path = save(proto, tmp_path)
    loaded = load(path)
    assert loaded.inputs == ("x",) and loaded.overridable == {"w1"}
    assert "w1" in loaded.graph.inputs and "w1" not in loaded.graph.weights
    written = verbatim(loaded, tmp_path / "out.onnx")
    given: dict[str, Any] = {"x": np.ones((1, 8), np.float32)}
    for extra in ({}, {"w1": np.full((64, 4), 3, np.float32)}):
        assert equal(run(written.model, given | extra), run(path, given | extra))


def test_overridable_initializers_can_be_made_constants(tmp_path: Path) -> None:
    proto = mlp()
    proto.graph.input.append(value("w1", [64, 4]))
    path = save(proto, tmp_path)
    loaded = load(path, freeze=True)
    assert not loaded.overridable and "w1" in loaded.graph.weights
    written = verbatim(loaded, tmp_path / "out.onnx")
    assert [i.name for i in skeleton(written.model).graph.input] == ["x"]
    given: dict[str, Any] = {"x": np.ones((1, 8), np.float32)}
    for found, wanted in zip(run(written.model, given), run(path, given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_sparse_initializer_passes_through(tmp_path: Path) -> None:
    values, indices = tensor("w", [2.0, 3.0]), tensor("i", [0, 5], np.int64)
    sparse = helper.make_sparse_tensor(values, indices, [2, 4])
    proto = model([node("MatMul", "x w", "y")], [value("x", [1, 2])], [value("y", [1, 4])])
    proto.graph.sparse_initializer.append(sparse)
    check(save(proto, tmp_path), tmp_path)
    written = skeleton(tmp_path / "out.onnx")
    assert written.graph.sparse_initializer[0] == sparse


def test_everything_a_model_says_is_kept(tmp_path: Path) -> None:
    proto = mlp()
    proto.producer_name, proto.domain, proto.model_version = "p", "d", 7
    proto.doc_string = proto.graph.doc_string = "doc"
    proto.metadata_props.add(key="k", value="v")
    proto.graph.node[0].metadata_props.add(key="nk", value="nv")
    proto.graph.value_info.extend([value("h", ["batch", 64]), value("i", ["batch", 64])])
    proto.graph.initializer[0].doc_string = "weight doc"
    note = proto.graph.quantization_annotation.add(tensor_name="h")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    proto.graph.initializer.append(tensor("scale", 0.5))
    proto.opset_import.append(helper.make_opsetid("some.domain", 3))
    loaded = read(proto, tmp_path)
    after = skeleton(verbatim(loaded, tmp_path / "out.onnx").model)
    for field in ("producer_name", "domain", "model_version", "doc_string", "metadata_props",
                  "opset_import"):  # fmt: skip
        assert getattr(after, field) == getattr(proto, field)
    graph = after.graph
    assert graph.quantization_annotation == proto.graph.quantization_annotation
    assert [v.name for v in graph.value_info] == ["h"]
    assert graph.initializer[0].doc_string == "weight doc"
    assert [t.name for t in graph.initializer] == ["w0", "w1", "scale"]
    assert graph.node[0] == proto.graph.node[0]
    rewired = graph.node[2]
    assert (rewired.doc_string, list(rewired.input)) == ("kept", ["r", "w1"])


def test_functions_of_another_opset_pass_through(tmp_path: Path) -> None:
    imports = [helper.make_opsetid("", 16)]
    function = helper.make_function(
        "my", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], imports
    )
    proto = model([node("Twice", "x", "y", domain="my")], [value("x", [2])], [value("y", [2])])
    proto.opset_import.append(helper.make_opsetid("my", 1))
    proto.functions.append(function)
    path = save(proto, tmp_path)
    check(path, tmp_path)
    assert skeleton(tmp_path / "out.onnx").functions[0] == function
    assert str(load(path).graph.spec("y")) == "f32[2]"


def test_training_info_turns_canonicalization_off(tmp_path: Path) -> None:
    proto = mlp()
    proto.training_info.add().algorithm.name = "step"
    loaded = read(proto, tmp_path)
    assert "Identity" in ops(loaded)
    assert skeleton(verbatim(loaded, tmp_path / "o.onnx").model).training_info


def test_duplicate_and_empty_node_names(tmp_path: Path) -> None:
    proto = model(
        [node("Relu", "x", "a", name="n"), node("Abs", "a", "b", name="n"), node("Neg", "b", "y")],
        [value("x", [2])], [value("y", [2])],
    )  # fmt: skip
    loaded = read(proto, tmp_path)
    assert [r.id for r in loaded.graph.regions()] == ["n0", "n1", "n2"]
    after = skeleton(verbatim(loaded, tmp_path / "out.onnx").model)
    assert [n.name for n in after.graph.node] == ["n", "n_2", ""]


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4, TensorProto.BFLOAT16,
                                  TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FN])  # fmt: skip
def test_narrow_types_keep_their_bytes(kind: int, tmp_path: Path) -> None:
    count = 4001
    size = count * 2 if kind in (TensorProto.BFLOAT16, TensorProto.FLOAT16) else count
    size = -(-count // 2) if kind in (TensorProto.INT4, TensorProto.UINT4) else size
    raw = np.random.default_rng(0).integers(0, 8, size, np.uint8).tobytes()
    held = TensorProto(name="w", data_type=kind, dims=[count], raw_data=raw)
    nodes = [node("Cast", "w", "c", to=F32), node("Add", "c x", "y")]
    proto = model(nodes, [value("x", [count])], [value("y", [count])], [held], 21, 10)
    loaded = read(proto, tmp_path)
    assert loaded.graph.weights["w"].array().shape == (count,)
    after = skeleton(verbatim(loaded, tmp_path / "out.onnx").model)
    assert after.graph.initializer[0].raw_data == raw


def test_old_typed_data_fields(tmp_path: Path) -> None:
    held = TensorProto(name="w", data_type=F32, dims=[1000], float_data=np.arange(1000.0))
    ints = TensorProto(name="i", data_type=I64, dims=[1000], int64_data=range(1000))
    nodes = [node("Gather", "w i", "g"), node("Add", "g x", "y")]
    proto = model(nodes, [value("x", [1000])], [value("y", [1000])], [held, ints])
    loaded = read(proto, tmp_path)
    assert np.array_equal(loaded.graph.weights["w"].array(), np.arange(1000, dtype=np.float32))
    check(tmp_path / "m.onnx", tmp_path)


def test_large_constant_nodes_become_weights_without_being_read(tmp_path: Path) -> None:
    big = numpy_helper.from_array(np.ones((300, 300), np.float32))
    nodes = [node("Constant", "", "w", value=big), node("MatMul", "x w", "y")]
    path = save(model(nodes, [value("x", [1, 300])], [value("y", [1, 300])]), tmp_path)
    loaded = load(path)
    assert ops(loaded) == ["MatMul"] and loaded.graph.weights["w"].nbytes == 360_000
    assert loaded.skeleton.ByteSize() < 1000
    check(path, tmp_path)


def test_constants_and_inputs_as_outputs(tmp_path: Path) -> None:
    proto = model(
        [node("Constant", "", "c", value_float=2.0), node("Identity", "x", "y")],
        [value("x", [2])], [value("c", []), value("y", [2]), value("x", [2])],
    )  # fmt: skip
    check(save(proto, tmp_path), tmp_path)


def test_external_tensors_of_a_subgraph_are_taken_along(tmp_path: Path) -> None:
    proto = branchy()
    held = proto.graph.node[2].attribute[0].g.initializer[0]
    source = tmp_path / "in"
    source.mkdir()
    (source / "big.bin").write_bytes(held.raw_data)
    onnx.external_data_helper.set_external_data(held, "big.bin")
    held.ClearField("raw_data")
    written = verbatim(load(save(proto, source)), tmp_path / "out.onnx")
    given = {"x": np.ones(400, np.float32), "c": np.array(False)}
    assert equal(run(written.model, given), [np.zeros(400, np.float32) * -1])
