"""Loops whose number of iterations is known are unrolled on import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, helper

from tests.graphs import normal, session
from tests.onnx_io.samples import BOOL, I64, equal, model, node, save, tensor, value, verbatim
from tracea_graph.onnx_io import load, loop_unrolling

STATE = value("h", [2, 4])
YES = tensor("yes", True, np.bool_)
WEIGHT = tensor("w", normal(4, 4))


def body(nodes: list[NodeProto], outputs: list[Any], *tensors: Any, states: Any = (STATE,)) -> Any:
    inputs = [value("i", [], I64), value("go", [], BOOL), *states]
    return helper.make_graph(nodes, "body", inputs, outputs, tensors)


STEP = [node("MatMul", "h w", "m"), node("Tanh", "m", "h2")]
AFTER = [value("on", [], BOOL), value("h2", [2, 4])]


def build(
    nodes: list[NodeProto], *tensors: Any, outputs: str = "y", opset: int = 17, rank: int = 2
) -> ModelProto:
    made = [
        value(n, [f"{n}{axis}" for axis in range(rank + i)]) for i, n in enumerate(outputs.split())
    ]
    return model(nodes, [value("x", [2, 4])], made, [WEIGHT, *tensors], opset)


def counted(trips: int, opset: int = 17) -> ModelProto:
    """A number of iterations, a state and a value per iteration, which reads the counter."""
    inner = body(
        [*STEP, node("Cast", "i", "f", to=1), node("Add", "h2 f", "row"),
         node("Identity", "go", "on")],
        [*AFTER, value("row", [2, 4])],
    )  # fmt: skip
    nodes = [node("Loop", "n yes x", "y rows", body=inner)]
    return build(nodes, YES, tensor("n", trips, np.int64), outputs="y rows", opset=opset)


def while_counting() -> ModelProto:
    """As TensorFlow writes it: a counter among the states decides."""
    inner = body(
        [*STEP, node("Add", "t one", "t2"), node("Less", "t2 five", "on")],
        [value("on", [], BOOL), value("h2", [2, 4]), value("t2", [], I64)],
        tensor("one", 2, np.int64), states=(STATE, value("t", [], I64)),
    )  # fmt: skip
    nodes = [node("Less", "zero five", "c"), node("Loop", "_ c x zero", "y end", body=inner)]
    return build(nodes, tensor("zero", 0, np.int64), tensor("five", 5, np.int64))


def scan() -> ModelProto:
    """A recurrent net over the rows of its input."""
    inner = helper.make_graph(
        [node("Mul", "h v", "p"), node("Add", "p row", "q"), node("Tanh", "q", "h2"),
         node("Identity", "h2", "out")],
        "body", [value("h", [4]), value("row", [4])], [value("h2", [4]), value("out", [4])],
        [tensor("v", normal(4, seed=5))],
    )  # fmt: skip
    return build(
        [node("Scan", "h0 x", "y rows", body=inner, num_scan_inputs=1)], tensor("h0", np.zeros(4)),
        outputs="y rows", rank=1,
    )  # fmt: skip


UNROLLED = {
    "counted": counted(3),
    "counted, old": counted(2, opset=12),
    "once": counted(1),
    "counter": while_counting(),
    "scan": scan(),
}


def answers(path: Path) -> list[Any]:
    return list(session(path).run(None, {"x": normal(2, 4, seed=8)}))


@pytest.mark.parametrize("name", UNROLLED)
def test_known_loops_are_unrolled(name: str, tmp_path: Path) -> None:
    path = save(UNROLLED[name], tmp_path)
    assert {r.op for r in load(path).graph.regions()} & {"Loop", "Scan"}
    loaded = load(path, unrolled=True)
    found = [r.op for r in loaded.graph.regions()]
    assert not {*found} & {"Loop", "Scan"}
    trips = {"counted": 3, "counted, old": 2, "once": 1, "counter": 3, "scan": 2}[name]
    assert found.count("Tanh") == trips
    out = verbatim(loaded, tmp_path / "out.onnx").model
    onnx.checker.check_model(onnx.load(out), full_check=True)
    assert equal(answers(out), answers(path))


def looping(inner: GraphProto, inputs: str, *tensors: Any) -> ModelProto:
    return build([node("Loop", inputs, "y", body=inner)], YES, *tensors)


def data_dependent() -> ModelProto:
    nodes = [*STEP, node("ReduceMax", "h2", "most", keepdims=0), node("Less", "most half", "on")]
    return looping(body(nodes, AFTER, tensor("half", 0.5)), "n yes x", tensor("n", 3, np.int64))


def random() -> ModelProto:
    nodes = [node("RandomNormalLike", "h", "r"), node("Add", "h r", "h2"),
             node("Identity", "go", "on")]  # fmt: skip
    return looping(body(nodes, AFTER), "n yes x", tensor("n", 3, np.int64))


def endless() -> ModelProto:
    """Many more iterations than are unrolled."""
    nodes = [*STEP, node("Identity", "go", "on")]
    return looping(body(nodes, AFTER), "n yes x", tensor("n", 1000, np.int64))


def never() -> ModelProto:
    nodes = [*STEP, node("Identity", "go", "on")]
    return looping(body(nodes, AFTER), "n yes x", tensor("n", 0, np.int64))


def fed() -> ModelProto:
    proto = looping(body([*STEP, node("Identity", "go", "on")], AFTER), "n yes x")
    proto.graph.input.append(value("n", [], I64))
    return proto


def backwards() -> ModelProto:
    proto = scan()
    (made,) = proto.graph.node
    made.attribute.append(helper.make_attribute("scan_input_directions", [1]))
    return proto


@pytest.mark.parametrize("make", [data_dependent, random, endless, never, fed, backwards])
def test_other_loops_stay(make: Any, tmp_path: Path) -> None:
    path = save(make(), tmp_path)
    assert {r.op for r in load(path, unrolled=True).graph.regions()} & {"Loop", "Scan"}


def test_the_number_of_nodes_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_unrolling, "_MAX_NODES", 10)
    path = save(counted(3), tmp_path)
    regions = load(path, unrolled=True).graph.regions()
    assert [r.op for r in regions].count("MatMul") == 1


def test_outer_names_stay_apart_from_those_of_the_body(tmp_path: Path) -> None:
    """The body hides an outer value, and iterations would write equal names."""
    inner = body([node("Add", "h m", "h2"), node("Identity", "go", "on")], AFTER)
    nodes = [node("Tanh", "x", "m"), node("Loop", "n yes x", "a", body=inner),
             node("Mul", "a m", "h2"), node("Exp", "h2", "y")]  # fmt: skip
    path = save(build(nodes, YES, tensor("n", 2, np.int64)), tmp_path)
    loaded = load(path, unrolled=True)
    out = verbatim(loaded, tmp_path / "out.onnx").model
    assert equal(answers(out), answers(path))


def test_loops_inside_unrolled_ones_are_flattened(tmp_path: Path) -> None:
    """Each copy of the inner loop has iterations of its own, which sink into it again."""
    inner = body([*STEP, node("Identity", "go", "on")], AFTER)
    outer = body(
        [node("Loop", "n yes h", "z", body=inner), node("Sin", "z", "h2"),
         node("Identity", "go", "on")], AFTER,
    )  # fmt: skip
    nodes = [node("Loop", "n yes x", "y", body=outer)]
    path = save(build(nodes, YES, tensor("n", 2, np.int64)), tmp_path)
    loaded = load(path, unrolled=True)
    found = [r.op for r in loaded.graph.regions()]
    assert found.count("Loop") == found.count("MatMul") == found.count("Sin") == 2
    out = verbatim(loaded, tmp_path / "out.onnx").model
    onnx.checker.check_model(onnx.load(out), full_check=True)
    assert equal(answers(out), answers(path))
