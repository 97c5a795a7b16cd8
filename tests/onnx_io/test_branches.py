"""Branches of If on import and export: flattened, canonical, and sunk again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from tests.graphs import normal, session
from tests.onnx_io.samples import BOOL, F32, I64, equal, model, node, read, tensor, value, verbatim
from tracea_graph.errors import ModelError
from tracea_graph.onnx_io import Model, model_validation
from tracea_graph.onnx_io.node_conversion import all_nodes, subgraphs_of
from tracea_graph.onnx_io.subgraph_flattening import is_subgraph_entry

X, K = value("x", ["n", 4]), value("k", [], BOOL)
R = value("r", None)


def branch(nodes: list[NodeProto], *tensors: Any, outputs: Any = (R,)) -> Any:
    return helper.make_graph(nodes, "branch", [], outputs, tensors)


def choose(then: Any, other: Any, outputs: str = "c", condition: str = "k") -> NodeProto:
    return node("If", condition, outputs, then_branch=then, else_branch=other)


def build(nodes: list[NodeProto], *tensors: TensorProto, outputs: str = "y") -> ModelProto:
    results = [value(name, ["rows", "columns"]) for name in outputs.split()]
    return model(nodes, [X, K], results, tensors)


TWO = tensor("two", normal(4))
MODELS: dict[str, ModelProto] = {
    "outer values": build(
        [
            node("Tanh", "x", "a"),
            choose(branch([node("Exp", "a", "r")]), branch([node("Neg", "a", "r")])),
            node("Mul", "c a", "y"),
        ]
    ),
    "constants": build(
        [
            choose(
                branch([node("Mul", "x two", "m"), node("Add", "m b", "r")], tensor("b", 1.5)),
                branch([node("Constant", "", "b", value=tensor("", normal(4, seed=3))),
                        node("Sub", "x b", "r")]),
            ),
            node("Mul", "c two", "y"),
        ],
        TWO,
    ),
    "values that pass through": build(
        [
            node("Tanh", "x", "a"),
            choose(branch([node("Identity", "a", "r")]), branch([node("Identity", "two", "r")])),
            node("Mul", "c x", "y"),
        ],
        TWO,
    ),
    "several results": build(
        [
            choose(
                branch([node("Exp", "x", "p"), node("Neg", "p", "q")],
                       outputs=(value("q", None), value("p", None))),
                branch([node("Abs", "x", "p"), node("Sin", "p", "q")],
                       outputs=(value("p", None), value("q", None))),
                "c d",
            ),
            node("Mul", "c d", "y"),
        ]
    ),
    "an output": build(
        [choose(branch([node("Exp", "x", "r")]), branch([node("Neg", "x", "r")]), "y")]
    ),
    "one in another": build(
        [
            node("Tanh", "x", "a"),
            choose(
                branch([
                    node("Exp", "a", "e"), node("ReduceSum", "e", "s", keepdims=0),
                    node("Less", "s lots", "l"),
                    choose(branch([node("Mul", "e a", "r")]),
                           branch([node("Sub", "e x", "r")]), "i", "l"),
                    node("Sqrt", "e", "q"), node("Add", "i q", "r"),
                ]),
                branch([node("Neg", "a", "r")]),
            ),
            node("Mul", "c a", "y"),
        ],
        tensor("lots", 9.0),
    ),
    "a loop": build(
        [
            choose(
                branch([
                    node("Exp", "x", "step"),
                    node("Loop", "three yes x", "r", body=helper.make_graph(
                        [node("Identity", "go", "on"), node("Add", "h step", "after")], "body",
                        [value("i", [], I64), value("go", [], BOOL), value("h", None)],
                        [value("on", [], BOOL), value("after", None)],
                    )),
                ]),
                branch([node("Neg", "x", "r")]),
            ),
            node("Mul", "c x", "y"),
        ],
        tensor("three", 3, np.int64), tensor("yes", True, np.bool_),
    ),
    "sizes": build(
        [
            choose(
                branch([node("Shape", "x", "s"), node("Reshape", "x flat", "f"),
                        node("Exp", "f", "e"), node("Reshape", "e s", "r")]),
                branch([node("Neg", "x", "r")]),
            ),
            node("Mul", "c x", "y"),
        ],
        tensor("flat", [-1], np.int64),
    ),
}  # fmt: skip


def inner_ops(proto: ModelProto) -> list[str]:
    """Operators in branches, except what costs nothing wherever it is."""
    found = [
        n.op_type for top in proto.graph.node for b in subgraphs_of(top) for n in all_nodes(b)
    ]
    return sorted(op for op in found if op not in ("Identity", "Constant", "If", "Shape"))


def answers(proto: ModelProto, flag: bool) -> list[Any]:
    feeds = {"x": normal(3, 4, seed=9), "k": np.array(flag)}
    return [
        list(session(proto, optimized=on).run(None, {k: feeds[k] for k in _fed(proto)}))
        for on in (False, True)
    ]


def _fed(proto: ModelProto) -> list[str]:
    return [v.name for v in proto.graph.input]


def written(loaded: Model, tmp_path: Path) -> ModelProto:
    return onnx.load(verbatim(loaded, tmp_path / "out.onnx").model)


@pytest.mark.parametrize("name", MODELS)
def test_branches_are_flattened_and_sunk_again(name: str, tmp_path: Path) -> None:
    proto = MODELS[name]
    loaded = read(proto, tmp_path)
    graph = loaded.graph
    (chosen, *_) = [r for r in graph.regions() if r.op == "If"]
    assert not bool(chosen.node.inputs) or chosen.node.inputs[0] in ("k", "l")
    result = written(loaded, tmp_path)
    onnx.checker.check_model(result, full_check=True)
    assert inner_ops(result) == inner_ops(proto)
    assert not any(is_subgraph_entry(n.name) for n in all_nodes(result.graph))
    for flag in (True, False):
        assert equal(answers(result, flag), answers(proto, flag))


def test_a_branch_of_a_known_condition_is_inlined(tmp_path: Path) -> None:
    nodes = [
        choose(branch([node("Exp", "x", "p"), node("Neg", "p", "q")],
                      outputs=(value("q", None), value("p", None))),
               branch([node("Abs", "x", "p"), node("Sin", "p", "q")],
                       outputs=(value("p", None), value("q", None))),
               "c d", "sure"),
        node("Mul", "c d", "y"),
    ]  # fmt: skip
    for sure, expected in ((True, ["Exp", "Mul", "Neg"]), (False, ["Abs", "Mul", "Sin"])):
        proto = model(nodes, [X], [value("y", ["n", 4])], [tensor("sure", sure, np.bool_)])
        loaded = read(proto, tmp_path)
        assert sorted(r.op for r in loaded.graph.regions()) == expected
        assert equal(answers(written(loaded, tmp_path), sure), answers(proto, sure))


@pytest.mark.parametrize("sure", [True, False])
def test_a_known_branch_writes_the_outputs_of_the_model(sure: bool, tmp_path: Path) -> None:
    nodes = [
        choose(branch([node("Exp", "x", "p"), node("Neg", "p", "q")],
                      outputs=(value("q", None), value("p", None))),
               branch([node("Abs", "x", "p"), node("Identity", "p", "q")],
                      outputs=(value("p", None), value("q", None))),
               "y z", "sure"),
        node("Tanh", "y", "t"),
    ]  # fmt: skip
    results = [value(v, ["n", 4]) for v in "yzt"]
    proto = model(nodes, [X], results, [tensor("sure", sure, np.bool_)])
    loaded = read(proto, tmp_path)
    found = sorted(r.op for r in loaded.graph.regions())
    # two outputs that are one value need a node that copies it
    assert found == (["Exp", "Neg", "Tanh"] if sure else ["Abs", "Identity", "Tanh"])
    assert equal(answers(written(loaded, tmp_path), sure), answers(proto, sure))


def test_what_a_condition_on_sizes_selects_is_inlined(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s one", "d"), node("Equal", "d four", "e"),
        choose(branch([node("Exp", "x", "r")]), branch([node("Neg", "x", "r")]), "c", "e"),
        node("Tanh", "c", "y"),
    ]  # fmt: skip
    constants = (tensor("one", 1, np.int64), tensor("four", 4, np.int64))
    loaded = read(model(nodes, [X], [value("y", ["n", 4])], constants), tmp_path)
    assert [r.op for r in loaded.graph.regions()] == ["Exp", "Tanh"]


@pytest.mark.parametrize("op", ["RandomNormalLike", "SequenceConstruct"])
def test_branches_that_cannot_be_moved_stay(op: str, tmp_path: Path) -> None:
    inner = [node(op, "x", "s"), node("Identity", "x", "r")]
    nodes = [choose(branch(inner), branch([node("Neg", "x", "r")])), node("Mul", "c x", "y")]
    loaded = read(build(nodes), tmp_path)
    assert [r.op for r in loaded.graph.regions()] == ["If", "Mul"]


@pytest.mark.parametrize(("op", "moved"), [("Exp", True), ("Identity", False)])
def test_branches_of_functions_declare_no_types(op: str, moved: bool, tmp_path: Path) -> None:
    """What an outer value passes on may be a sequence; what operators compute is none."""
    untyped = [
        branch([node(one, "a", "r")], outputs=(ValueInfoProto(name="r"),)) for one in (op, "Neg")
    ]
    imports = [helper.make_opsetid("", 17)]
    made = helper.make_function("own", "F", ["a", "k"], ["c"], [choose(*untyped)], imports)
    proto = build([node("F", "x k", "c", domain="own"), node("Mul", "c x", "y")])
    proto.functions.append(made)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    loaded = read(proto, tmp_path)
    assert ({"Exp", "Neg"} <= {r.op for r in loaded.graph.regions()}) == moved
    for flag in (True, False):
        assert equal(answers(written(loaded, tmp_path), flag), answers(proto, flag))


def test_a_model_that_is_valid_only_with_its_branches_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infer_all = model_validation.infer_all_types

    def strict(shell: ModelProto, order: Sequence[str]) -> dict[str, TypeProto]:
        if any(is_subgraph_entry(n.name) for n in shell.graph.node):
            raise ModelError("a branch does not fit")
        return infer_all(shell, order)

    monkeypatch.setattr(model_validation, "infer_all_types", strict)
    proto = MODELS["outer values"]
    loaded = read(proto, tmp_path)
    assert [r.op for r in loaded.graph.regions()] == ["Tanh", "If", "Mul"]
    assert equal(answers(written(loaded, tmp_path), True), answers(proto, True))


def test_equal_work_in_two_branches_is_not_shared(tmp_path: Path) -> None:
    nodes = [
        choose(branch([node("Exp", "x", "e"), node("Neg", "e", "r")]),
               branch([node("Exp", "x", "e"), node("Abs", "e", "r")])),
        node("Exp", "x", "z"), node("Mul", "c z", "y"),
    ]  # fmt: skip
    result = written(read(build(nodes), tmp_path), tmp_path)
    assert inner_ops(result) == ["Abs", "Exp", "Exp", "Neg"]


def test_types_of_float_are_kept(tmp_path: Path) -> None:
    result = written(read(MODELS["outer values"], tmp_path), tmp_path)
    inferred = onnx.shape_inference.infer_shapes(result, True, True)
    kinds = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.value_info}
    assert kinds["c"] == F32
