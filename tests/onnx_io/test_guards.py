"""Models in two branches: one computes with initializers as constants, one is the original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from tests.onnx_io.samples import (
    BOOL,
    equal,
    interface,
    mlp,
    model,
    node,
    read,
    run,
    save,
    skeleton,
    tensor,
    value,
    verbatim,
)
from tracea_graph.ir import Node
from tracea_graph.onnx_io import load
from tracea_graph.onnx_io.initializer_guards import CONDITION, is_guarded, result_nodes

RNG = np.random.default_rng(5)


def fed_too(proto: ModelProto, *names: str) -> ModelProto:
    """These initializers (all by default) are inputs as well."""
    for held in proto.graph.initializer:
        if not names or held.name in names:
            proto.graph.input.append(value(held.name, list(held.dims), held.data_type))
    return proto


def captured() -> ModelProto:
    """A subgraph reads an initializer, a value that is an output too, and the input."""
    outer = helper.make_graph(
        [node("MatMul", "h w", "q"), node("Add", "q x", "s")], "outer", [], [value("s", None)]
    )
    other = helper.make_graph([node("Neg", "h", "n")], "other", [], [value("n", None)])
    return model(
        [
            node("MatMul", "x w", "h", name="first"),
            node("If", "c", "y", then_branch=outer, else_branch=other),
        ],
        [value("x", [3, 8]), value("c", [], BOOL)],
        [value("h", [3, 8]), value("y", [3, 8])],
        [tensor("w", RNG.standard_normal((8, 8)))],
    )


def with_constants() -> ModelProto:
    """A Constant too large for the proto, one that is small, and a weight nobody can feed."""
    large = helper.make_node("Constant", [], ["k"], value=tensor("", RNG.standard_normal((8, 64))))
    small = helper.make_node("Constant", [], ["two"], value=tensor("", [2.0]))
    return model(
        [
            large, small, node("MatMul", "x k", "h"), node("Mul", "h two", "d"),
            node("Add", "d b", "e"), node("MatMul", "e w", "y"),
        ],
        [value("x", ["batch", 8])],
        [value("y", ["batch", 4])],
        [tensor("b", RNG.standard_normal(64)), tensor("w", RNG.standard_normal((64, 4)))],
    )  # fmt: skip


MODELS: dict[str, Callable[[], ModelProto]] = {
    "two layers": lambda: fed_too(mlp()),
    "one of two weights": lambda: fed_too(mlp(), "w1"),
    "a subgraph": lambda: fed_too(captured()),
    "constants": lambda: fed_too(with_constants(), "w"),
}


def guarded(path: Path, out: Path, same: bool) -> Path:
    """The model behind a condition that is a constant."""
    known = load(path, guard=True)
    condition = Node("Constant", (), (CONDITION,), {"value": np.array([same])})
    return verbatim(known, out, guard=[condition]).model


def inputs_of(proto: ModelProto) -> dict[str, Any]:
    held = {t.name for t in proto.graph.initializer}
    given: dict[str, Any] = {}
    for item in proto.graph.input:
        dims = [d.dim_value or 3 for d in item.type.tensor_type.shape.dim]
        if item.name not in held:
            boolean = item.type.tensor_type.elem_type == BOOL
            given[item.name] = np.array(True) if boolean else RNG.random(dims, np.float32)
    return given


@pytest.mark.parametrize("name", MODELS)
def test_one_branch_has_the_defaults_and_one_what_is_fed(name: str, tmp_path: Path) -> None:
    proto = MODELS[name]()
    path, given = save(proto, tmp_path), inputs_of(proto)
    other = given | {"w" if "w" in load(path).overridable else "w1": None}
    (fed,) = other.keys() - given.keys()
    dims = next(t.dims for t in proto.graph.initializer if t.name == fed)
    other[fed] = np.full(dims, 3, np.float32)
    default, overridden = run(path, given), run(path, other)
    assert not equal(default, overridden)
    constant = guarded(path, tmp_path / "constant.onnx", True)
    for found, wanted in zip(run(constant, other), default, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    original = guarded(path, tmp_path / "original.onnx", False)
    assert equal(run(original, given), default)
    assert equal(run(original, other), overridden)
    for made in map(skeleton, (constant, original)):
        onnx.checker.check_model(made, full_check=True)
        assert interface(made) == interface(proto)
    assert is_guarded(load(original)) and not is_guarded(load(path))


@pytest.mark.parametrize("name", MODELS)
def test_inlined_the_original_is_left(name: str, tmp_path: Path) -> None:
    proto = MODELS[name]()
    path = save(proto, tmp_path)
    out = guarded(path, tmp_path / "out.onnx", True)
    assert len(result_nodes(skeleton(out))) > 1
    back = load(out, inline=True)
    assert not is_guarded(back) and back.overridable == load(path).overridable
    large = {n.output[0] for n in proto.graph.node if n.ByteSize() > 1024 and n.op_type != "If"}
    wanted = [n for n in load(path).skeleton.graph.node if n.output[0] not in large]
    assert [*back.skeleton.graph.node] == wanted
    verbatim(back, tmp_path / "back.onnx")
    given = inputs_of(proto)
    assert equal(run(tmp_path / "back.onnx", given), run(path, given))


def of_any_size(proto: ModelProto) -> None:
    fed_too(proto, "w0")
    proto.graph.input.append(value("w1", ["rows", 4]))


def unread(proto: ModelProto) -> None:
    proto.graph.initializer.append(tensor("spare", [1.0]))
    fed_too(proto, "w0", "spare")


def named_alike(proto: ModelProto) -> None:
    fed_too(proto)
    proto.graph.node.append(node("Neg", "r", "r:default"))


def passed_through(proto: ModelProto) -> None:
    fed_too(proto)
    proto.graph.output.append(value("w0", [8, 64]))


def drawing(proto: ModelProto) -> None:
    fed_too(proto)
    proto.graph.node.append(node("RandomNormalLike", "r", "noise"))
    proto.graph.output.append(value("noise", None))


@pytest.mark.parametrize(
    ("edit", "known"),
    [
        (fed_too, {"w0", "w1"}),
        (of_any_size, {"w0"}),
        (unread, {"w0"}),
        (named_alike, set()),
        (passed_through, set()),
        (drawing, set()),
        (lambda proto: None, set()),
    ],
)
def test_what_is_guarded(
    edit: Callable[[ModelProto], None], known: set[str], tmp_path: Path
) -> None:
    proto = mlp()
    edit(proto)
    loaded = load(save(proto, tmp_path), guard=True)
    assert loaded.guarded.keys() == known
    assert known <= loaded.graph.weights.keys() and known.isdisjoint(loaded.graph.inputs)
    assert loaded.unknown == {v for v in loaded.overridable - known if v != "spare"}
    assert read(proto, tmp_path).guarded == {}
