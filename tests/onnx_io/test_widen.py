"""Half-precision models on import: what is computed in float32, and what keeps its type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from models.decoder import build as decoder
from tests.graphs import normal, relative_error, session
from tests.halves import BF16, EPSILON, F16, NUMPY, answers, in_double
from tests.onnx_io.samples import BOOL, F32, I64, model, node, read, value, verbatim
from tracea_graph.ir import DType
from tracea_graph.onnx_io.half_to_float32 import widen_to_float32
from tracea_graph.onnx_io.node_conversion import captures_of, topological_node_order


def half(name: str, array: Any, kind: int = F16) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array).astype(NUMPY[kind]), name)


def build(
    nodes: list[NodeProto], *tensors: TensorProto, kind: int = F16, opset: int = 17, **outputs: int
) -> ModelProto:
    """A model of ``x`` [n, 8], in the half type, and outputs of the types given, ``y`` alone."""
    results = [value(n, ["rows", "columns"], t) for n, t in (outputs or {"y": kind}).items()]
    return model(nodes, [value("x", ["n", 8], kind)], results, tensors, opset)


def mlp(kind: int = F16) -> ModelProto:
    nodes = [
        node("MatMul", "x w", "a"), node("Add", "a b", "c"), node("Relu", "c", "d"),
        node("Softmax", "d", "y", axis=-1),
    ]  # fmt: skip
    return build(nodes, half("w", normal(8, 96), kind), half("b", normal(96), kind), kind=kind)


def types(proto: ModelProto) -> dict[str, int]:
    """Element types of all values that onnx infers, strictly."""
    inferred = onnx.shape_inference.infer_shapes(proto, True, True)
    graph = inferred.graph
    infos = (*graph.input, *graph.output, *graph.value_info)
    return {v.name: v.type.tensor_type.elem_type for v in infos}


def widened(proto: ModelProto) -> ModelProto:
    """The widened copy, which is a valid model of the same interface."""
    made = ModelProto.FromString(proto.SerializeToString())
    assert widen_to_float32(made)
    _sort(made.graph)
    onnx.checker.check_model(made, full_check=True)
    for before, after in zip(
        (*proto.graph.input, *proto.graph.output), (*made.graph.input, *made.graph.output),
        strict=True,
    ):  # fmt: skip
        assert before == after
    return made


def _sort(graph: GraphProto) -> None:
    """Casts come last; import sorts them, and the checker insists."""
    nodes = [*graph.node]
    order = topological_node_order(
        [[*n.input, *captures_of(n)[0]] for n in nodes], [n.output for n in nodes]
    )
    copies = [NodeProto.FromString(nodes[i].SerializeToString()) for i in order]
    graph.ClearField("node")
    graph.node.extend(copies)


def check(proto: ModelProto, tmp_path: Path, **more: Any) -> ModelProto:
    """Widen; the answers are those of float64, within one number of the half type."""
    made = widened(proto)
    kind = proto.graph.input[0].type.tensor_type.elem_type
    x = normal(3, 8, seed=5).astype(NUMPY[kind])
    feeds = {"x": x, **more}
    for one in (made, onnx.load(verbatim(read(proto, tmp_path), tmp_path / "out.onnx").model)):
        for array, wanted in zip(
            answers(session(one), feeds), in_double(proto, feeds), strict=True
        ):
            if array.dtype == wanted.dtype:
                assert np.array_equal(array, wanted)
            else:
                assert relative_error(array.astype(np.float64), wanted) <= EPSILON[kind]
    return made


@pytest.mark.parametrize("kind", [F16, BF16], ids=["fp16", "bf16"])
def test_a_network_computes_in_float32_between_casts(kind: int, tmp_path: Path) -> None:
    made = check(mlp(kind), tmp_path)
    found = types(made)
    assert {found[v] for v in "acd"} == {F32} and found["x"] == found["y"] == kind
    casts = [n for n in made.graph.node if n.op_type == "Cast"]
    # the input, the large weight, the output; the small constant is stored in float32
    assert len(casts) == 3
    assert {t.name: t.data_type for t in made.graph.initializer} == {"w": kind, "b": F32}


def test_the_model_says_what_was_widened(tmp_path: Path) -> None:
    assert read(mlp(), tmp_path).widened == {DType.F16}
    assert read(mlp(BF16), tmp_path).widened == {DType.BF16}


def test_moving_halves_alone_is_no_reason(tmp_path: Path) -> None:
    nodes = [node("Transpose", "x", "a"), node("Cast", "a", "b", to=F32), node("Exp", "b", "y")]
    proto = build(nodes, y=F32)
    before = proto.SerializeToString()
    assert not widen_to_float32(proto)
    assert proto.SerializeToString() == before


def test_stored_halves_that_are_cast_stay(tmp_path: Path) -> None:
    nodes = [node("Cast", "w", "v", to=F32), node("MatMul", "x v", "y")]
    proto = model(nodes, [value("x", ["n", 8])], [value("y", ["n", 4])], [half("w", normal(8, 4))])
    assert not widen_to_float32(proto)


def test_a_value_that_is_an_output_too_is_rounded_for_it_alone(tmp_path: Path) -> None:
    nodes = [node("Exp", "x", "a"), node("Mul", "a x", "y")]
    made = check(build(nodes, y=F16, a=F16), tmp_path)
    mul = next(n for n in made.graph.node if n.op_type == "Mul")
    assert {types(made)[v] for v in mul.input} == {F32}


def test_explicit_casts_to_half_round_nothing_between_float32_nodes(tmp_path: Path) -> None:
    nodes = [
        node("Exp", "x", "a"), node("Cast", "a", "b", to=F32), node("Mul", "b b", "c"),
        node("Cast", "c", "d", to=F16), node("Tanh", "d", "y"),
    ]  # fmt: skip
    check(build(nodes), tmp_path)
    loaded = read(build(nodes), tmp_path)
    assert [r.op for r in loaded.graph.regions()] == ["Cast", "Exp", "Mul", "Tanh", "Cast"]


def test_integers_and_truth_values_are_left_alone(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"), node("ConstantOfShape", "s", "o", value=half("", [1.5])),
        node("Add", "x o", "a"), node("Greater", "a o", "g"), node("Cast", "a", "i", to=I64),
        node("Where", "g a o", "y"),
    ]  # fmt: skip
    check(build(nodes, y=F16, g=BOOL), tmp_path)
    assert types(widened(build(nodes, y=F16, i=I64)))["i"] == I64


def test_names_that_are_taken_get_another(tmp_path: Path) -> None:
    nodes = [node("Exp", "x", "x:f32"), node("Tanh", "x:f32", "y:f32"), node("Neg", "y:f32", "y")]
    check(build(nodes), tmp_path)


def test_types_that_nobody_knows_are_not_touched(tmp_path: Path) -> None:
    nodes = [
        node("Exp", "x", "a"), helper.make_node("Secret", ["a"], ["b"], domain="my.domain"),
        node("Mul", "b x", "c"), node("Tanh", "c", "y"),
    ]  # fmt: skip
    proto = build(nodes)
    proto.opset_import.append(helper.make_opsetid("my.domain", 1))
    assert widen_to_float32(proto)
    by_op = {n.op_type: n for n in proto.graph.node if n.op_type != "Cast"}
    casts = {n.output[0]: n for n in proto.graph.node if n.op_type == "Cast"}
    assert by_op["Secret"].input[0] == "a"  # in half, from a cast of what Exp makes
    assert casts["a"].attribute[0].i == F16
    assert list(by_op["Mul"].input) == ["b", "x"]  # b may be anything


def test_sequences_and_random_numbers_keep_their_type(tmp_path: Path) -> None:
    nodes = [
        node("Exp", "x", "a"), node("SequenceConstruct", "a x", "s"),
        node("ConcatFromSequence", "s", "b", axis=0), node("RandomNormalLike", "x", "r"),
        node("Mul", "r x", "y"), node("Neg", "b", "z"),
    ]  # fmt: skip
    made = widened(build(nodes, y=F16, z=F16))
    found = types(made)
    assert found["r"] == F16 and found["b"] == F16
    session(made).run(None, {"x": normal(3, 8).astype(np.float16)})


def body(nodes: list[NodeProto], inputs: list[Any], outputs: list[Any], *tensors: Any) -> Any:
    return helper.make_graph(nodes, "body", inputs, outputs, tensors)


@pytest.mark.parametrize("flag", [True, False])
def test_branches_compute_in_float32_too(flag: bool, tmp_path: Path) -> None:
    """They read an outer value, hide another behind their own, and read an outer weight."""
    out = value("r", ["n", 8], F16)
    then = body(
        [node("Mul", "a w", "inner"), node("Sigmoid", "inner", "r")], [],
        [out], half("t", 2.0),
    )  # fmt: skip
    other = body([node("Exp", "a", "b"), node("Add", "b t", "r")], [], [out], half("t", 2.0))
    nodes = [
        node("Tanh", "x", "a"), node("If", "k", "c", then_branch=then, else_branch=other),
        node("Mul", "c a", "y"),
    ]  # fmt: skip
    proto = build(nodes, half("w", normal(8)))
    proto.graph.input.append(value("k", [], BOOL))
    made = check(proto, tmp_path, k=np.array(flag))
    choice = next(n for n in made.graph.node if n.op_type == "If")
    for branch in (a.g for a in choice.attribute):
        assert "Cast" in [n.op_type for n in branch.node]
        assert branch.output[0].type.tensor_type.elem_type == F16


def test_loops_keep_the_type_of_their_state(tmp_path: Path) -> None:
    inner = body(
        [node("Identity", "c", "again"), node("Mul", "h w", "m"), node("Tanh", "m", "after")],
        [value("i", [], I64), value("c", [], BOOL), value("h", ["n", 8], F16)],
        [value("again", [], BOOL), value("after", ["n", 8], F16)],
    )
    nodes = [node("Loop", "count go x", "h1", body=inner), node("Exp", "h1", "y")]
    proto = build(nodes, half("w", normal(8)))
    constants = (np.array(3), "count"), (np.array(True), "go")
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for a, n in constants)
    made = check(proto, tmp_path)
    loop = next(n for n in made.graph.node if n.op_type == "Loop")
    assert loop.attribute[0].g.input[2].type.tensor_type.elem_type == F16


def test_contributed_operators_share_a_table(tmp_path: Path) -> None:
    skip = helper.make_node(
        "SkipLayerNormalization", ["x", "x", "g"], ["n", "", "", "t"], domain="com.microsoft"
    )
    proto = build([skip, node("Add", "n t", "y")], half("g", normal(8)))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    before = session(proto).run(None, {"x": normal(3, 8).astype(np.float16)})[0]
    assert widen_to_float32(proto)
    (add,) = [n for n in proto.graph.node if n.op_type == "Add"]
    casts = {v for n in proto.graph.node if n.op_type == "Cast" for v in n.output}
    assert not {*add.input} & casts
    after = session(proto).run(None, {"x": normal(3, 8).astype(np.float16)})[0]
    assert after.dtype == np.float16
    assert relative_error(after.astype(np.float64), before.astype(np.float64)) < 2.0**-9


def test_models_for_training_are_left_alone() -> None:
    proto = mlp()
    proto.training_info.add()
    assert not widen_to_float32(proto)


def test_double_precision_is_left_alone() -> None:
    proto = model(
        [node("Exp", "x", "y")], [value("x", ["n"], TensorProto.DOUBLE)],
        [value("y", ["n"], TensorProto.DOUBLE)],
    )  # fmt: skip
    assert not widen_to_float32(proto)


@pytest.mark.parametrize("bits", [4, 16])
def test_attention_over_half_caches_keeps_its_type(bits: int, tmp_path: Path) -> None:
    """Products behind it know the type that they are given."""
    graph = read(decoder("small-llama", 32, 0, bits, half=True), tmp_path).graph
    attentions = [r for r in graph.regions() if r.op.endswith("GroupQueryAttention")]
    assert len(attentions) == 2
    for region in attentions:
        values = (region.operands[0], region.operands[3], *region.results)
        assert {graph.spec(v).dtype for v in values} == {DType.F16}
    assert graph.spec("logits").dtype is DType.F16
