"""Symbols at several axes of inputs: one size where operators say so, and no sooner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import TensorProto

from tests.graphs import Net
from tracea_graph.check.symbol_bindings import choose_bindings
from tracea_graph.errors import UsageError
from tracea_graph.ir import DType
from tracea_graph.onnx_io import load
from tracea_graph.ttg import TileGraph

SHAPES = {"a": ("n", "s", 8), "b": ("n", "s", 8)}


def read(
    make: Callable[[Net], tuple[str, ...]], path: Path, **shapes: tuple[int | str, ...]
) -> TileGraph:
    net = Net()
    for name, shape in (shapes or SHAPES).items():
        net.input(name, *shape)
    net.save(path / "m.onnx", *make(net))
    return load(path / "m.onnx").graph


def sizes(graph: TileGraph) -> list[str]:
    return [str(graph.spec(v)) for v in graph.inputs]


def test_sizes_that_never_meet_are_apart(tmp_path: Path) -> None:
    graph = read(lambda net: (net("Tanh", "a"), net("Exp", "b")), tmp_path)
    assert sizes(graph) == ["f32[n,s,8]", "f32[n#2,s#2,8]"]


def test_numbers_of_symbols_are_none_that_the_model_has(tmp_path: Path) -> None:
    shapes = {"a": ("n", "n"), "b": ("n#2", "n#2")}
    graph = read(lambda net: (net("Tanh", "a"), net("Exp", "b")), tmp_path, **shapes)
    assert sizes(graph) == ["f32[n,n#3]", "f32[n#2,n#2#2]"]


def test_rows_and_columns_of_a_product_are_apart(tmp_path: Path) -> None:
    """Every one with every one: as many columns as there are of the other."""

    def make(net: Net) -> tuple[str, ...]:
        return (net("MatMul", "a", net("Transpose", "b", perm=[1, 0])),)

    graph = read(make, tmp_path, a=("n", "d"), b=("n", "d"))
    assert sizes(graph) == ["f32[n,d]", "f32[n#2,d]"]
    assert str(graph.spec(graph.outputs[0])) == "f32[n,n#2]"


def test_sizes_beside_the_axis_of_a_concatenation_are_equal(tmp_path: Path) -> None:
    graph = read(lambda net: (net("Concat", "a", "b", axis=1),), tmp_path)
    assert sizes(graph) == ["f32[n,s,8]", "f32[n,s#2,8]"]
    assert str(graph.spec(graph.outputs[0])) == "f32[n,(s+s#2),8]"


WITHIN: dict[str, Callable[[Net], str]] = {
    "split": lambda net: net("Reshape", "a", net.ints(0, 0, 2, 4)),
    "padded": lambda net: net("Pad", "a", net.ints(0, 0, 1, 0, 0, 0)),
    "attended": lambda net: net("MultiHeadAttention", *"aaa", num_heads=2, domain="com.microsoft"),
}


@pytest.mark.parametrize("name", WITHIN)
def test_axes_of_one_input_are_apart(name: str, tmp_path: Path) -> None:
    graph = read(lambda net: (WITHIN[name](net),), tmp_path, a=("n", "n", 8))
    assert sizes(graph) == ["f32[n,n#2,8]"]


def test_sizes_that_numbers_are_dealt_to_are_equal(tmp_path: Path) -> None:
    """As many as there are of a sum: its sizes are those that one of its terms says."""

    def make(net: Net) -> tuple[str, ...]:
        rows = net("Reshape", net("Add", "a", net("Exp", "b")), net.ints(-1, 8))
        shape = net("Concat", net("Slice", net("Shape", "a"), net.ints(0), net.ints(2)),
                    net.ints(8), axis=0)  # fmt: skip
        return (net("Reshape", rows, shape),)

    graph = read(make, tmp_path)
    assert sizes(graph) == ["f32[n,s,8]", "f32[n,s,8]"]
    assert {frozenset("a")} <= graph.loose["n"]


@pytest.mark.parametrize("reads", [1, 2])
def test_sizes_that_broadcast_are_one_symbol_if_nobody_sees_it(reads: int, tmp_path: Path) -> None:
    """What is summed before it is broadcast shows its own size."""

    def make(net: Net) -> tuple[str, ...]:
        total = net("Add", "a", net("Exp", "b"))
        return (total, net("ReduceMax", "b", axes=[1]))[:reads]

    graph = read(make, tmp_path)
    assert sizes(graph)[1] == ("f32[n,s,8]" if reads == 1 else "f32[n#2,s#2,8]")


def test_numbers_made_of_sizes_show_them(tmp_path: Path) -> None:
    def make(net: Net) -> tuple[str, ...]:
        last = net("Gather", net("Shape", "b"), net.const(1, "int64"))
        return (net("Mul", net("Add", "a", "b"), net("Cast", last, to=TensorProto.FLOAT)),)

    assert sizes(read(make, tmp_path))[1] == "f32[n,s#2,8]"


def test_a_size_that_is_given_is_for_all_that_have_its_name(tmp_path: Path) -> None:
    graph = read(lambda net: (net("Tanh", "a"), net("Exp", "b")), tmp_path)
    (timed,), _ = choose_bindings(graph, [{"s": 5}])
    assert dict(timed.symbols) == {"n": 1, "s": 5, "n#2": 1, "s#2": 5}
    assert timed.label == "n=1 s=5"
    (other,), _ = choose_bindings(graph, [{"s": 5, "s#2": 7}])
    assert other.label == "n=1 s=5 s#2=7"


@pytest.mark.parametrize("state", [False, True])
def test_a_recurrence_has_a_length_and_a_state_for_each_sequence(
    state: bool, tmp_path: Path
) -> None:
    net = Net()
    x, lengths = net.input("x", "t", "n", 8), net.input("a", "n", dtype=DType.I32)
    operands = [x, net.weight(1, 12, 8), net.weight(1, 12, 4), "", lengths]
    if state:
        operands.append(net.input("h", 1, "n", 4))
    net.save(tmp_path / "m.onnx", net("GRU", *operands, hidden_size=4))
    graph = load(tmp_path / "m.onnx").graph
    assert sizes(graph) == ["f32[t,n,8]", "i32[n]", "f32[1,n,4]"][: 2 + state]


CACHED = {"q": ("n", 2, "s", 8), "k": ("n", 2, "s", 8), "past": ("n", 2, "p", 8)}


def scores(net: Net) -> str:
    """Of queries and of past and new keys."""
    keys = net("Transpose", net("Concat", "past", "k", axis=2), perm=[0, 1, 3, 2])
    return net("MatMul", "q", keys)


def test_keys_of_a_mask_are_past_and_new_ones(tmp_path: Path) -> None:
    """A size given for them must be the sum."""

    def make(net: Net) -> tuple[str, ...]:
        masked = net("Add", net("Mul", scores(net), 0.5), net("Sub", 1.0, "mask"))
        return (net("Softmax", masked, axis=-1),)

    graph = read(make, tmp_path, **CACHED, mask=("n", 1, "s", "total"))
    assert sizes(graph)[-1] == "f32[n,1,s,(p+s)]"
    (binding,), _ = choose_bindings(graph, [{"p": 5, "s": 2, "total": 7}])
    assert binding.symbols == {"n": 1, "s": 2, "p": 5}
    with pytest.raises(UsageError, match="total=8 does not fit the model: it is p=5 and s=2"):
        choose_bindings(graph, [{"p": 5, "s": 2, "total": 8}])


def test_what_is_added_elsewhere_keeps_its_symbol(tmp_path: Path) -> None:
    graph = read(lambda net: (net("Add", scores(net), "other"),), tmp_path, **CACHED,
                 other=("n", 1, "s", "total"))  # fmt: skip
    assert sizes(graph)[-1].endswith(",total]")
    graph = read(lambda net: (net("Softmax", net("Add", "q", "other"), axis=-1),), tmp_path,
                 q=("n", "s"), other=("n", "total"))  # fmt: skip
    assert sizes(graph)[-1].endswith(",total]"), "its axis meets no sum"
