"""Canonical form: what is folded, bypassed or dropped, and what is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper

from tests.onnx_io.samples import (
    F32,
    equal,
    feeds,
    model,
    node,
    ops,
    read,
    run,
    tensor,
    value,
    verbatim,
)  # fmt: skip
from tracea_graph.onnx_io import constant_folding

X, Y = value("x", ["n", 4]), value("y", None)


def build(nodes: list[NodeProto], *tensors: Any, opset: int = 17) -> ModelProto:
    return model([*nodes, node("Relu", "a", "y")], [X], [Y], tensors, opset)


def same(proto: ModelProto, tmp_path: Path) -> list[str]:
    """The operators left; the answers are checked."""
    loaded = read(proto, tmp_path)
    written = verbatim(loaded, tmp_path / "out.onnx")
    given = feeds(loaded.path, {"n": 3})
    assert equal(run(written.model, given), run(loaded.path, given))
    return ops(loaded)


def ints(name: str, *numbers: int) -> Any:
    return tensor(name, list(numbers), np.int64)


NOTHING: dict[str, ModelProto] = {
    "identity": build([node("Identity", "x", "a")]),
    "dropout": build([node("Dropout", "x", "a mask")]),
    "dropout 7": build([node("Dropout", "x", "a", ratio=0.9)], opset=7),
    "dropout off": build([node("Dropout", "x r t", "a")], tensor("r", 0.5), tensor("t", 0, bool)),
    "cast": build([node("Cast", "x", "a", to=F32)]),
    "reshape": build([node("Shape", "x", "s"), node("Reshape", "x s", "a")]),
    "reshape copy": build([node("Reshape", "x s", "a")], ints("s", 0, -1)),
    "transpose": build([node("Transpose", "x", "a", perm=[0, 1])]),
    "slice": build(
        [node("Slice", "x b e c", "a")], ints("b", 0, 0), ints("e", 1 << 62, 4), ints("c", 0, 1)
    ),
    "slice counted from the end": build(
        [node("Slice", "x b e c", "a")], ints("b", -4), ints("e", 1 << 62), ints("c", 1)
    ),
    "slice 9": build([node("Slice", "x", "a", starts=[0], ends=[9], axes=[1])], opset=9),
    "concat": build([node("Concat", "x", "a", axis=0)]),
    "pad": build([node("Pad", "x p", "a")], ints("p", 0, 0, 0, 0)),
    "expand": build([node("Expand", "x s", "a")], ints("s", 1, 4)),
    "flatten": build([node("Flatten", "x", "a")]),
    "tile": build([node("Tile", "x r", "a")], ints("r", 1, 1)),
    "dead": build([node("Identity", "x", "a"), node("Exp", "x", "d"), node("Neg", "d", "e")]),
    "chain": build([node("Identity", "x", "i"), node("Cast", "i", "j", to=F32),
                    node("Identity", "j", "a")]),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING)
def test_node_that_does_nothing_goes(name: str, tmp_path: Path) -> None:
    assert same(NOTHING[name], tmp_path) == ["Relu"]


SOMETHING: dict[str, tuple[ModelProto, str]] = {
    "cast": (build([node("Cast", "x", "b", to=11), node("Cast", "b", "a", to=F32)]), "Cast"),
    "reshape": (build([node("Reshape", "x s", "a")], ints("s", -1, 2)), "Reshape"),
    "transpose": (build([node("Transpose", "x", "a")]), "Transpose"),
    "reversed": (
        build([node("Slice", "x b e c s", "a")], ints("b", -1), ints("e", -(1 << 62)),
              ints("c", 1), ints("s", -1)),
        "Slice",
    ),
    "shifted": (build([node("Pad", "x p", "a")], ints("p", 0, 1, 0, -1)), "Pad"),
    "mask": (
        model([node("Dropout", "x", "a y")], [X], [value("y", None, 9)], opset=12), "Dropout"
    ),
    "training": (
        build([node("Dropout", "x r t", "a")], tensor("r", 0.0), tensor("t", 1, bool)), "Dropout"
    ),
    "random": (
        build([node("RandomUniform", "", "r", shape=[4], seed=1.0), node("Add", "x r", "a")]),
        "RandomUniform",
    ),
    "dequantize a matrix": (
        build([node("DequantizeLinear", "q s", "d"), node("MatMul", "x d", "a")],
              tensor("q", np.eye(4), np.int8), tensor("s", 0.5)),
        "DequantizeLinear",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOMETHING)
def test_node_that_does_something_stays(name: str, tmp_path: Path) -> None:
    proto, op = SOMETHING[name]
    assert op in same(proto, tmp_path)


def test_constants_fold(tmp_path: Path) -> None:
    nodes = [
        node("Sqrt", "c", "r"),
        node("Div", "one r", "q"),
        node("Shape", "x", "s"),
        node("Gather", "s i", "d"),
        node("Cast", "d", "f", to=F32),
        node("Mul", "q f", "k"),
        node("Mul", "x k", "a"),
    ]
    proto = build(nodes, tensor("c", 2.0), tensor("one", 1.0), tensor("i", 1, np.int64))
    assert same(proto, tmp_path) == ["Mul", "Relu"]


def scaled_matrices(count: int, rows: int) -> ModelProto:
    """Products by matrices of 4 columns that a mean is taken off first."""
    nodes, tensors = list[NodeProto](), list[Any]()
    for i in range(count):
        nodes += [
            node("ReduceMean", f"w{i}", f"m{i}", axes=[1]),
            node("Sub", f"w{i} m{i}", f"s{i}"),
            node("Gemm", f"{'a' if i == 0 else f'g{i - 1}'} s{i}", f"g{i}", transB=i % 2),
        ]
        numbers = np.arange(4 * rows, dtype=np.float32) % 7
        tensors.append(tensor(f"w{i}", numbers.reshape(4, rows)))
    nodes = [node("Relu", "x", "a"), *nodes]
    return model(nodes, [X], [value(f"g{count - 1}", None)], tensors)


def test_large_weights_fold_up_to_a_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of 2 MB each; with room for one of them the other stays as it was."""
    proto = scaled_matrices(2, 1 << 17)
    assert ops(read(proto, tmp_path)) == ["Relu", "Gemm", "Gemm"]
    monkeypatch.setattr(constant_folding, "TOTAL", 3 << 20)
    assert sorted(ops(read(proto, tmp_path))) == ["Gemm", "Gemm", "ReduceMean", "Relu", "Sub"]


def test_folding_never_makes_the_file_grow(tmp_path: Path) -> None:
    nodes = [node("Expand", "c s", "e"), node("Add", "x e", "a")]
    proto = build(nodes, tensor("c", 2.0), ints("s", 500, 4))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 500
    loaded = read(proto, tmp_path)
    assert ops(loaded) == ["Expand", "Add", "Relu"]
    assert verbatim(loaded, tmp_path / "o.onnx").bytes <= loaded.size * 1.02


def test_shape_arithmetic_of_a_reshape_goes(tmp_path: Path) -> None:
    nodes = [
        node("Exp", "x", "e"),
        node("Shape", "e", "s"),
        node("Gather", "s i", "g"),
        node("Unsqueeze", "g z", "u"),
        node("Concat", "u two two", "t", axis=0),
        node("Reshape", "e t", "a"),
    ]
    proto = build(nodes, tensor("i", 0, np.int64), ints("z", 0), ints("two", 2))
    assert same(proto, tmp_path) == ["Exp", "Reshape", "Relu"]


def test_equal_sizes_are_read_from_the_first_source(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Exp", "x", "e"),
        node("Shape", "e", "t"),
        node("Expand", "one t", "o"),
        node("Expand", "one s", "p"),
        node("Sum", "o p e", "a"),
    ]
    loaded = read(build(nodes, tensor("one", [[1.0]])), tmp_path)
    assert ops(loaded).count("Shape") == 1
    assert {r.operands[1] for r in loaded.graph.regions() if r.op == "Expand"} == {"s"}


@pytest.mark.parametrize(("index", "read_from"), [(0, "x"), (-2, "e")])
def test_sizes_of_activations_are_read_from_the_input(
    index: int, read_from: str, tmp_path: Path
) -> None:
    """But for an axis counted from the end, which might be another one of the input."""
    nodes = [
        node("Exp", "x", "e"),
        node("Shape", "e", "s"),
        node("Gather", "s i", "g"),
        node("Range", "zero g one", "r"),
        node("Cast", "r", "f", to=F32),
        node("ReduceMax", "f", "m", keepdims=0),
        node("Mul", "e m", "a"),
    ]
    scalars = {"i": index, "zero": 0, "one": 1}
    proto = build(nodes, *(tensor(n, v, np.int64) for n, v in scalars.items()))
    assert "Shape" in same(proto, tmp_path)
    (shape,) = [r for r in read(proto, tmp_path).graph.regions() if r.op == "Shape"]
    assert shape.operands == (read_from,)


def test_sizes_read_from_the_input_are_not_taken_for_those_of_others(tmp_path: Path) -> None:
    nodes = [
        node("Concat", "x x", "e", axis=1),
        node("Shape", "e", "s"),
        node("Gather", "s i", "g"),
        node("Range", "i g one", "r"),
        node("Cast", "r", "f", to=F32),
        node("ReduceMax", "f", "m", keepdims=0),
        node("Neg", "e", "n"),
        node("Shape", "n", "whole"),
        node("Expand", "m whole", "o"),
        node("Add", "o e", "a"),
    ]
    scalars = {"i": 0, "one": 1}
    same(build(nodes, *(tensor(n, v, np.int64) for n, v in scalars.items())), tmp_path)


def test_identity_at_an_output_renames_its_producer(tmp_path: Path) -> None:
    nodes = [node("Exp", "x", "e"), node("Identity", "e", "y"), node("Neg", "e", "z")]
    proto = model(nodes, [X], [Y, value("z", None)])
    assert same(proto, tmp_path) == ["Exp", "Neg"]


def test_identity_behind_random_values_stays(tmp_path: Path) -> None:
    """Verification feeds random values by name: their writer keeps the one it has."""
    nodes = [node("RandomNormalLike", "x", "e"), node("Identity", "e", "y")]
    proto = model(nodes, [X], [Y])
    assert ops(read(proto, tmp_path)) == ["RandomNormalLike", "Identity"]


def test_identity_between_two_outputs_stays(tmp_path: Path) -> None:
    nodes = [node("Exp", "x", "e"), node("Identity", "e", "y")]
    assert same(model(nodes, [X], [value("e", None), Y]), tmp_path) == ["Exp", "Identity"]
    nodes = [node("Identity", "x", "y")]
    assert same(model(nodes, [X], [Y]), tmp_path) == ["Identity"]


def test_captured_identity_stays(tmp_path: Path) -> None:
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Add", "h a", "t")], "b",
        [value("i", [], 7), value("go", [], 9), value("h", None)],
        [value("on", [], 9), value("t", None)],
    )  # fmt: skip
    nodes = [node("Identity", "x", "a"), node("Loop", "_ c x", "y", body=body)]
    proto = model(nodes, [X, value("c", [], 9)], [Y])
    assert ops(read(proto, tmp_path)) == ["Identity", "Loop"]


def test_weights_behind_nodes_are_known_while_the_nodes_stay(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((600, 500)).astype(np.float32)
    nodes = [
        node("Transpose", "w", "wt"),
        node("Reshape", "wt s", "wr"),
        node("Cast", "wr", "wc", to=11),
        node("Cast", "wc", "back", to=F32),
        node("MatMul", "x w", "q"),
        node("MatMul", "x back", "p"),
        node("ConstantOfShape", "big", "f"),
        node("Sum", "q p f", "a"),
    ]
    proto = model([*nodes, node("Relu", "a", "y")], [value("x", ["n", 600])],
                  [Y], [tensor("w", w), ints("s", 600, 500), ints("big", 1, 500)])  # fmt: skip
    graph = read(proto, tmp_path).graph
    assert [r.op for r in graph.regions()][:3] == ["Transpose", "Reshape", "Cast"]
    expected = w.T.reshape(600, 500)
    assert np.array_equal(graph.weights["wr"].array(), expected)
    assert np.array_equal(graph.weights["wc"].array(), expected.astype(np.float64))
    assert graph.weights["back"].nbytes == w.nbytes
    assert graph.producer("wr") is not None
    same(proto, tmp_path)


def test_string_constants_stay_nodes(tmp_path: Path) -> None:
    nodes = [node("Constant", "", "c", value_string="a"), node("Equal", "s c", "y")]
    proto = model(nodes, [value("s", [2], 8)], [value("y", [2], 9)], opset=19)
    assert ops(read(proto, tmp_path)) == ["Constant", "Equal"]


def test_zero_sized_tensors(tmp_path: Path) -> None:
    nodes = [node("Concat", "x e", "a", axis=0)]
    proto = build(nodes, tensor("e", np.zeros((0, 4))))
    assert same(proto, tmp_path) == ["Concat", "Relu"]


def branch(nodes: list[NodeProto], result: str) -> Any:
    return helper.make_graph(nodes, "branch", [], [helper.make_empty_tensor_value_info(result)])


def choice(keep: bool, kept: str, made: list[NodeProto]) -> list[NodeProto]:
    """``kept``, or what other nodes make, by the rank of x, which is 2."""
    branches = {
        "then_branch": branch([node("Identity", kept, "same")], "same"),
        "else_branch": branch(made, made[-1].output[0]),
    }
    if not keep:
        branches = dict(zip(branches, reversed(branches.values()), strict=True))
    return [
        node("Shape", "x", "sizes"), node("Shape", "sizes", "rank"),
        node("GreaterOrEqual", "rank two", "flag"),
        helper.make_node("If", ["flag"], ["chosen"], **branches),
    ]  # fmt: skip


@pytest.mark.parametrize("keep", [True, False])
def test_a_condition_that_is_known_chooses_its_branch(keep: bool, tmp_path: Path) -> None:
    made = [
        helper.make_node("Constant", [], ["one"], value=tensor("one", [1], np.int64)),
        node("Concat", "one rank", "both", axis=0),
    ]
    nodes = [*choice(keep, "repeats", made), node("Tile", "x chosen", "a")]
    assert same(build(nodes, ints("two", 2), ints("repeats", 1, 3)), tmp_path) == ["Tile", "Relu"]


def test_the_branch_that_hands_on_an_activation(tmp_path: Path) -> None:
    other = [node("Sin", "e", "other")]
    nodes = [node("Exp", "x", "e"), *choice(True, "e", other), node("Neg", "chosen", "a")]
    assert same(build(nodes, ints("two", 2)), tmp_path) == ["Exp", "Neg", "Relu"]


def test_a_condition_that_is_not_known_stays(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "sizes"), node("Slice", "sizes zero one", "rows"),
        node("GreaterOrEqual", "rows two", "flag"), node("Shape", "sizes", "rank"),
        helper.make_node(
            "If", ["flag"], ["chosen"],
            then_branch=branch([node("Identity", "repeats", "same")], "same"),
            else_branch=branch([node("Concat", "one rank", "both", axis=0)], "both"),
        ),
        node("Tile", "x chosen", "a"),
    ]  # fmt: skip
    given = [ints("zero", 0), ints("one", 1), ints("two", 5), ints("repeats", 1, 3)]
    assert "If" in same(build(nodes, *given), tmp_path)


@pytest.mark.parametrize(("start", "count"), [(0.5, 4), (0.0, 4), (-0.25, 5), (9.0, 0)])
def test_a_range_of_fractions_is_a_constant(start: float, count: int, tmp_path: Path) -> None:
    nodes = [
        node("Range", "start end step", "line"), node("ReduceSum", "line", "sum", keepdims=0),
        node("Add", "x sum", "a"),
    ]  # fmt: skip
    given = [tensor(n, v) for n, v in (("start", start), ("end", 4.0), ("step", 1.0))]
    assert same(build(nodes, *given), tmp_path) == ["Add", "Relu"]
    assert np.arange(start, 4.0, 1.0).size == count


def written(order: str) -> ModelProto:
    """``z[:n, :m] = -x``, z of n × m, as PyTorch's exporter spells it."""
    spread = [
        node("Constant", "", "zero", value_int=0), node("Constant", "", "one", value_int=1),
        node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Gather", "s one", "m"),
        node("Range", "zero n one", "i"), node("Reshape", "i down", "is"),
        node("Range", "zero m one", "j"),
        node("Add", "is j", "ij"), node("Shape", "ij", "both"),
        node("Expand", "is both", "all_i"), node("Unsqueeze", "all_i last", "a_i"),
        node("Expand", "j both", "all_j"), node("Unsqueeze", "all_j last", "a_j"),
        node("Concat", order, "at", axis=-1),
        node("Sin", "x", "z"), node("Neg", "x", "y0"),
        node("ScatterND", "z at y0", "a"),
    ]  # fmt: skip
    return build(spread, ints("down", -1, 1), ints("last", -1))


def test_what_is_written_everywhere_is_the_result(tmp_path: Path) -> None:
    assert same(written("a_i a_j"), tmp_path) == ["Neg", "Relu"]


def test_what_is_written_elsewhere_stays(tmp_path: Path) -> None:
    """Columns and rows swapped: all of a square, mirrored."""
    proto = written("a_j a_i")
    proto.graph.input[0].CopyFrom(value("x", [4, 4]))
    assert "ScatterND" in same(proto, tmp_path)
