"""Calls of model-local functions become the functions' nodes, or stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, helper, parser

from tests.graphs import normal
from tests.onnx_io.samples import equal, feeds, model, node, ops, read, run, tensor, value
from tests.onnx_io.samples import verbatim as write_again
from tracea_graph.errors import ModelError
from tracea_graph.onnx_io.node_conversion import all_nodes
from tracea_graph.onnx_io.protobuf_wire import LARGE

X, Y = value("x", ["n", 16]), value("y", ["n", 16])
STANDARD = helper.make_opsetid("", 17)
LOCAL = helper.make_opsetid("local", 1)


def function(
    name: str, nodes: Sequence[NodeProto], domain: str = "local", opset: int = 17
) -> FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(domain, 1)]
    return helper.make_function(domain, name, ["a"], ["r"], nodes, imports)


def call(name: str, reads: str, writes: str, domain: str = "local") -> NodeProto:
    return node(name, reads, writes, domain=domain)


def with_functions(nodes: Sequence[NodeProto], *functions: FunctionProto) -> ModelProto:
    made = model(nodes, [X], [Y], [tensor("r", normal(16))])
    made.functions.extend(functions)
    for domain in dict.fromkeys(f.domain for f in functions):
        made.opset_import.append(helper.make_opsetid(domain, 1))
    return made


ATTRIBUTES = parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[n, 16] x) => (float[n, 16] y) {
        h = local.Leaky <alpha = 0.25> (x)  y = local.Leaky (h)
    }
    <domain: "local", opset_import: ["" : 17]>
    Leaky <alpha: float = 0.5> (a) => (r) { r = LeakyRelu <alpha: float = @alpha> (a) }
""")
BRANCHES = parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[n, 16] x) => (float[n, 16] y) { t = Abs(x)  u = Neg(t)  y = local.Chosen(u) }
    <domain: "local", opset_import: ["" : 17]>
    Chosen (a) => (r) {
        s = ReduceSum <keepdims = 0> (a)
        zero = Constant <value_float = 0.0> ()
        c = Greater(s, zero)
        r = If (c) <
            then_branch = one () => (t) { t = Exp(a) },
            else_branch = two () => (u) { t = Neg(a)  u = Sigmoid(t) }
        >
    }
""")
LARGE_CONSTANTS = with_functions(
    [
        call("Twice", "x", "p"),
        node("Constant", "", "k", value=tensor("", normal(16, LARGE))),
        node("MatMul", "p k", "m"),
        node("Constant", "", "l", value=tensor("", normal(LARGE, 16))),
        node("MatMul", "m l", "q"),
        call("Twice", "q", "y"),
    ],
    function("Once", [node("Add", "a a", "r")]),
    function("Twice", [call("Once", "a", "x"), call("Once", "x", "r")]),
)
INLINED = {
    "attributes": (ATTRIBUTES, ["LeakyRelu", "LeakyRelu"]),
    "names that meet those of the graph": (
        with_functions(
            [call("F", "x", "t"), node("Mul", "t r", "y")],
            function("F", [node("Tanh", "a", "t"), node("Neg", "t", "r")]),
        ),
        ["Tanh", "Neg", "Mul"],
    ),
    "large constants between calls": (
        LARGE_CONSTANTS, ["Add", "Add", "MatMul", "MatMul", "Add", "Add"],
    ),
    "an operator set that only the function has": (
        with_functions(
            [call("F", "x", "y")],
            helper.make_function(
                "local", "F", ["a"], ["r"], [call("Gelu", "a", "r", "com.microsoft")],
                [STANDARD, helper.make_opsetid("com.microsoft", 1)],
            ),
        ),
        ["com.microsoft::Gelu"],
    ),
}  # fmt: skip
STAYS = {
    "another opset": with_functions(
        [call("F", "x", "y")], function("F", [node("Tanh", "a", "r")], opset=16)
    ),
    "a domain with kernels": with_functions(
        [call("FastGelu", "x", "y", "com.microsoft")],
        function("FastGelu", [node("Tanh", "a", "r")], "com.microsoft"),
    ),
}


@pytest.mark.parametrize("name", INLINED)
def test_calls_become_the_nodes_of_functions(name: str, tmp_path: Path) -> None:
    proto, wanted = INLINED[name]
    loaded = read(proto, tmp_path)
    assert [op for op in ops(loaded) if op != "Constant"] == wanted
    result = write_again(loaded, tmp_path / "out.onnx").model
    assert not onnx.load(result).functions
    given = feeds(tmp_path / "m.onnx", {})
    assert equal(run(result, given), run(tmp_path / "m.onnx", given))


def test_branches_of_functions_are_read(tmp_path: Path) -> None:
    loaded = read(BRANCHES, tmp_path)
    found = {n.op_type for n in all_nodes(loaded.skeleton.graph)}
    assert {"ReduceSum", "Greater", "If", "Exp", "Sigmoid"} <= found
    given = feeds(tmp_path / "m.onnx", {})
    result = write_again(loaded, tmp_path / "out.onnx").model
    assert equal(run(result, given), run(tmp_path / "m.onnx", given))


@pytest.mark.parametrize("name", STAYS)
def test_functions_that_stay(name: str, tmp_path: Path) -> None:
    proto = STAYS[name]
    loaded = read(proto, tmp_path)
    assert len(loaded.graph.regions()) == len(proto.graph.node)
    given = feeds(tmp_path / "m.onnx", {})
    result = write_again(loaded, tmp_path / "out.onnx").model
    assert onnx.load(result).functions == proto.functions
    assert equal(run(result, given), run(tmp_path / "m.onnx", given))


def test_functions_that_double_the_graph_are_refused(tmp_path: Path) -> None:
    """Inferring the shapes of forty of them would take years."""
    doubled = [function("F0", [node("Tanh", "a", "r")])]
    for i in range(40):
        names = [call(f"F{i}", "a", "b"), call(f"F{i}", "b", "r")]
        doubled.append(function(f"F{i + 1}", names))
    with pytest.raises(ModelError, match=r"the model has 1,099,511,627,776 nodes"):
        read(with_functions([call("F40", "x", "y")], *doubled), tmp_path)


def test_a_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    own = function("Own", [call("Other", "a", "r")])
    other = function("Other", [call("Own", "a", "r")])
    with pytest.raises(ModelError, match=r"function '\w+' of 'local' calls itself"):
        read(with_functions([call("Own", "x", "y")], own, other), tmp_path)


def test_a_call_with_more_operands_than_its_function_is_refused(tmp_path: Path) -> None:
    own = function("Own", [node("Tanh", "a", "r")])
    with pytest.raises(ModelError, match=r"'Own' has 2 inputs, but the function 'Own' of 'local'"):
        read(with_functions([node("Own", "x x", "y", domain="local")], own), tmp_path)


def test_overloaded_functions_stay(tmp_path: Path) -> None:
    plain, other = (
        function("Own", [node("Tanh", "a", "r")]),
        function("Own", [node("Neg", "a", "r")]),
    )
    other.overload = "neg"
    calls = [call("Own", "x", "m"), call("Own", "m", "y")]
    calls[1].overload = "neg"
    loaded = read(with_functions(calls, plain, other), tmp_path)
    assert [f.overload for f in loaded.skeleton.functions] == ["", "neg"]
    assert [n.op_type for n in loaded.skeleton.graph.node] == ["Own", "Own"]
