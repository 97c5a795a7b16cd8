"""Bodies of loops whose number of iterations is not known: in the graph, and sunk again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, helper

from tests.graphs import normal, session
from tests.onnx_io.samples import BOOL, I64, equal, model, node, save, tensor, value, verbatim
from tracea_graph.errors import GraphError
from tracea_graph.onnx_io import Model, load
from tracea_graph.onnx_io.node_conversion import all_nodes, subgraphs_of
from tracea_graph.onnx_io.subgraph_flattening import sink_into_subgraphs

WEIGHT, YES = tensor("w", normal(4, 4)), tensor("yes", True, np.bool_)
STATE, ON = value("h", [2, 4]), value("on", [], BOOL)
KEEP_ON = node("Identity", "go", "on")
SCALED = [node("MatMul", "h w", "m"), node("Mul", "m s", "h2")]


def body(nodes: list[NodeProto], outputs: list[Any], *tensors: Any, states: Any = (STATE,)) -> Any:
    inputs = [value("i", [], I64), value("go", [], BOOL), *states]
    return helper.make_graph(nodes, "body", inputs, outputs, tensors)


def build(nodes: list[NodeProto], *tensors: Any, outputs: str = "y") -> ModelProto:
    inputs = [value("x", [2, 4]), value("n", [], I64)]
    return model(nodes, inputs, results(outputs), [WEIGHT, YES, *tensors])


def results(names: str) -> list[Any]:
    """Outputs of rank 2; one for each iteration, ``rows``, has an axis more."""
    ranks = [(name, 3 if name == "rows" else 2) for name in names.split()]
    return [value(name, [f"{name}{axis}" for axis in range(rank)]) for name, rank in ranks]


def counted() -> ModelProto:
    """A fed number of iterations, the counter, an outer value, and a value per iteration."""
    inner = body(
        [*SCALED, node("Cast", "i", "f", to=1), node("Add", "h2 f", "row"), KEEP_ON],
        [ON, value("h2", [2, 4]), value("row", [2, 4])],
    )  # fmt: skip
    return build(
        [node("Sigmoid", "x", "s"), node("Loop", "n yes x", "y rows", body=inner)],
        outputs="y rows",
    )


def carried_weights() -> ModelProto:
    """As TensorFlow writes it: the loop carries its weights, one of them under a new name."""
    states = (STATE, value("w_in", [4, 4]), value("s", [2, 4]))
    inner = body(
        [node("MatMul", "h w_in", "m"), node("Mul", "m s", "h2"), KEEP_ON,
         node("Identity", "w_in", "w_out")],
        [ON, value("h2", [2, 4]), value("w_out", [4, 4]), value("s", [2, 4])], states=states,
    )  # fmt: skip
    return build(
        [node("Sigmoid", "x", "g"), node("Loop", "n yes x w g", "y kept gate", body=inner),
         node("Add", "y gate", "z")], outputs="y kept z",
    )  # fmt: skip


def swapped() -> ModelProto:
    """Two states change places: both change, though each is handed on as it is."""
    states = (STATE, value("g", [2, 4]))
    inner = body([KEEP_ON], [ON, value("g", [2, 4]), value("h", [2, 4])], states=states)
    return build([node("Tanh", "x", "t"), node("Loop", "n yes x t", "y z", body=inner)],
                 outputs="y z")  # fmt: skip


def returned_twice() -> ModelProto:
    inner = body([node("MatMul", "h w", "h2"), KEEP_ON],
                 [ON, value("h2", [2, 4]), value("h2", [2, 4])])  # fmt: skip
    return build([node("Loop", "n yes x", "y rows", body=inner)], outputs="y rows")


def nested() -> ModelProto:
    inner = body([node("MatMul", "k w", "m2"), node("Add", "m2 h", "k2"),
                  node("Identity", "go2", "on2")],
                 [value("on2", [], BOOL), value("k2", [2, 4])])  # fmt: skip
    for given, name in zip(inner.input, ("i2", "go2", "k"), strict=True):
        given.name = name
    outer = body([node("Loop", "n yes h", "h2", body=inner), KEEP_ON], [ON, value("h2", [2, 4])])
    return build([node("Loop", "n yes x", "y", body=outer)])


def with_a_branch() -> ModelProto:
    then = helper.make_graph([node("MatMul", "h w", "r")], "then", [], [value("r", [2, 4])])
    other = helper.make_graph([node("Neg", "h", "r")], "else", [], [value("r", [2, 4])])
    inner = body(
        [node("Greater", "i one", "c"), node("If", "c", "h2", then_branch=then, else_branch=other),
         KEEP_ON], [ON, value("h2", [2, 4])], tensor("one", 1, np.int64),
    )  # fmt: skip
    return build([node("Loop", "n yes x", "y", body=inner)])


def scan() -> ModelProto:
    """A recurrent net over a fed number of rows, which carries its weights."""
    inner = helper.make_graph(
        [node("MatMul", "h v", "p"), node("Add", "p row", "q"), node("Tanh", "q", "h2"),
         node("Identity", "h2", "out"), node("Identity", "v", "v2")],
        "body", [value("h", [4]), value("v", [4, 4]), value("row", [4])],
        [value("h2", [4]), value("v2", [4, 4]), value("out", [4])],
    )  # fmt: skip
    nodes = [node("Scan", "h0 w r", "y kept rows", body=inner, num_scan_inputs=1)]
    made = [value("y", [4]), value("kept", [4, 4]), value("rows", ["t", 4])]
    return model(nodes, [value("r", ["t", 4])], made, [WEIGHT, tensor("h0", np.zeros(4))])


MODELS = {
    made.__name__: made()
    for made in (counted, carried_weights, swapped, returned_twice, nested, with_a_branch, scan)
}


def bodies(proto: ModelProto) -> list[GraphProto]:
    loops = [n for n in all_nodes(proto.graph) if n.op_type in ("Loop", "Scan")]
    return [body for loop in loops for body in subgraphs_of(loop)]


def answers(proto: ModelProto, count: int) -> list[Any]:
    feeds = {"x": normal(2, 4, seed=9), "n": np.array(count), "r": normal(count, 4, seed=3)}
    fed = {v.name: feeds[v.name] for v in proto.graph.input}
    return [list(session(proto, optimized=on).run(None, fed)) for on in (False, True)]


def close(found: list[Any], wanted: list[Any]) -> None:
    """A constant operand may change how ONNX Runtime multiplies."""
    for results, others in zip(found, wanted, strict=True):
        for a, b in zip(results, others, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def read(proto: ModelProto, folder: Path) -> Model:
    return load(save(proto, folder), unrolled=True)


@pytest.mark.parametrize("name", MODELS)
def test_bodies_are_in_the_graph_and_sink_again(name: str, tmp_path: Path) -> None:
    proto = MODELS[name]
    loaded = read(proto, tmp_path)
    products = sum(r.op == "MatMul" for r in loaded.graph.regions())
    assert products == sum(n.op_type == "MatMul" for n in all_nodes(proto.graph))
    result = onnx.load(verbatim(loaded, tmp_path / "out.onnx").model)
    onnx.checker.check_model(result, full_check=True)
    assert len(bodies(result)) == len(bodies(proto))
    assert not any("LoopValue" in n.op_type for n in all_nodes(result.graph))
    assert not any(n.op_type == "MatMul" for n in result.graph.node)
    assert [*result.opset_import] == [*proto.opset_import]
    for count in (0, 1, 5) if name != "scan" else (1, 5):
        close(answers(result, count), answers(proto, count))


@pytest.mark.parametrize("name", ["carried_weights", "scan"])
def test_what_a_loop_never_changes_is_an_outer_value(name: str, tmp_path: Path) -> None:
    loaded = read(MODELS[name], tmp_path)
    (product,) = [r for r in loaded.graph.regions() if r.op == "MatMul"]
    assert product.operands[1] == "w"
    result = onnx.load(verbatim(loaded, tmp_path / "out.onnx").model)
    (inner,) = bodies(result)
    assert len(inner.input) < len(bodies(MODELS[name])[0].input)


def test_sizes_of_an_iteration_are_no_sizes_of_the_graph(tmp_path: Path) -> None:
    """A state that grows has the declared rank, and sizes of its own."""
    state, grown = value("h", ["rows", 4]), value("h2", ["rows", 4])
    inner = body([node("Concat", "h x", "c", axis=0), node("MatMul", "c w", "h2"), KEEP_ON],
                 [ON, grown], states=(state,))  # fmt: skip
    proto = build([node("Loop", "n yes x", "y", body=inner)])
    loaded = read(proto, tmp_path)
    (product,) = [r for r in loaded.graph.regions() if r.op == "MatMul"]
    shape = loaded.graph.spec(product.results[0]).shape
    assert shape is not None and shape[1] == 4 and not isinstance(shape[0], int)
    result = onnx.load(verbatim(loaded, tmp_path / "out.onnx").model)
    for count in (0, 1, 3):
        assert equal(answers(result, count), answers(proto, count))


@pytest.mark.parametrize("op", ["RandomNormalLike", "SequenceConstruct"])
def test_bodies_that_cannot_be_moved_stay(op: str, tmp_path: Path) -> None:
    inner = body([node(op, "h", "z"), *SCALED, KEEP_ON], [ON, value("h2", [2, 4])])
    proto = build([node("Tanh", "x", "s"), node("Loop", "n yes x", "y", body=inner)])
    loaded = read(proto, tmp_path)
    assert sorted(r.op for r in loaded.graph.regions()) == ["Loop", "Tanh"]


def test_half_precision_bodies_stay(tmp_path: Path) -> None:
    half = onnx.TensorProto.FLOAT16
    inner = body([node("Tanh", "h", "h2"), KEEP_ON], [ON, value("h2", [2, 4], half)],
                 states=(value("h", [2, 4], half),))  # fmt: skip
    nodes = [node("Cast", "x", "a", to=half), node("Loop", "n yes a", "b", body=inner),
             node("Cast", "b", "y", to=1)]  # fmt: skip
    loaded = read(build(nodes), tmp_path)
    assert "Loop" in {r.op for r in loaded.graph.regions()}
    assert "Tanh" not in {r.op for r in loaded.graph.regions()}


def test_a_value_of_an_iteration_never_leaves_its_loop(tmp_path: Path) -> None:
    loaded = read(counted(), tmp_path)
    proto = ModelProto()
    proto.CopyFrom(loaded.skeleton)
    tanh = helper.make_node("Neg", ["h:body"], ["leak"])
    proto.graph.node.append(tanh)
    proto.graph.output.append(value("leak", None))
    with pytest.raises(GraphError, match="reads a value inside it"):
        sink_into_subgraphs(proto)
