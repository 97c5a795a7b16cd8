"""Loops and scans that compute recurrent cells become recurrent operators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, helper

from tests.graphs import normal, session
from tests.onnx_io.samples import BOOL, I64, model, node, save, tensor, value, verbatim
from tracea_graph.onnx_io import load

WIDTH, H = 5, 4
YES = tensor("yes", True, np.bool_)


def weights(gates: int, *, joined: bool = False) -> list[Any]:
    if joined:
        made = [tensor("k", normal(WIDTH + H, gates * H, seed=1))]
    else:
        made = [
            tensor("w", normal(WIDTH, gates * H, seed=1)),
            tensor("r", normal(H, gates * H, seed=2)),
        ]
    return [*made, tensor("b", normal(gates * H, seed=3)), tensor("rb", normal(gates * H, seed=4))]


def split(source: str, names: str) -> NodeProto:
    return node("Split", source, names, axis=-1)


LSTM = [
    node("MatMul", "xt w", "p"), node("MatMul", "h r", "q"), node("Add", "p q", "s"),
    node("Add", "s b", "z"), split("z", "i f g o"),
    node("Sigmoid", "i", "si"), node("Sigmoid", "f", "sf"), node("Sigmoid", "o", "so"),
    node("Tanh", "g", "tg"), node("Mul", "sf c", "keep"), node("Mul", "si tg", "new"),
    node("Add", "keep new", "c2"), node("Tanh", "c2", "tc"), node("Mul", "so tc", "h2"),
]  # fmt: skip
"""As PyTorch's LSTMCell, gates i, f, g, o."""

BASIC = [
    node("Concat", "xt h", "xh", axis=1), node("MatMul", "xh k", "m"), node("Add", "m b", "z"),
    split("z", "i j f o"), node("Add", "f one", "f1"),
    node("Sigmoid", "f1", "sf"), node("Mul", "c sf", "keep"),
    node("Sigmoid", "i", "si"), node("Tanh", "j", "tj"), node("Mul", "si tj", "new"),
    node("Add", "keep new", "c2"), node("Tanh", "c2", "tc"),
    node("Sigmoid", "o", "so"), node("Mul", "tc so", "h2"),
]  # fmt: skip
"""As TensorFlow's BasicLSTMCell, gates i, j, f, o and one added to f."""

GRU_AFTER = [
    node("Gemm", "xt w b", "p"), node("Gemm", "h r rb", "q"),
    split("p", "pr pz pn"), split("q", "qr qz qn"),
    node("Add", "pr qr", "ar"), node("Sigmoid", "ar", "sr"),
    node("Add", "pz qz", "az"), node("Sigmoid", "az", "sz"),
    node("Mul", "sr qn", "reset"), node("Add", "pn reset", "an"), node("Tanh", "an", "n"),
    node("Sub", "h n", "gap"), node("Mul", "gap sz", "part"), node("Add", "part n", "h2"),
]  # fmt: skip
"""As PyTorch's GRUCell: n + z·(h − n)."""

GRU_BEFORE = [
    node("MatMul", "xt w", "p"), node("Add", "p b", "pb"), split("pb", "pz pr pn"),
    node("Slice", "r zero two_h last", "rzr"), node("Slice", "r two_h three_h last", "rn"),
    node("MatMul", "h rzr", "q"), split("q", "qz qr"),
    node("Add", "pz qz", "az"), node("Sigmoid", "az", "z"),
    node("Add", "pr qr", "ar"), node("Sigmoid", "ar", "sr"),
    node("Mul", "sr h", "rh"), node("MatMul", "rh rn", "back"),
    node("Add", "pn back", "an"), node("Tanh", "an", "n"),
    node("Mul", "z h", "keep"), node("Sub", "one z", "rest"), node("Mul", "rest n", "new"),
    node("Add", "keep new", "h2"),
]  # fmt: skip
"""As Keras before version 2: the reset gate scales the state."""

GRU_MIRRORED = [*GRU_BEFORE[:-4], node("Sub", "one z", "rest"), node("Mul", "rest h", "keep"),
                node("Mul", "z n", "new"), node("Add", "keep new", "h2")]  # fmt: skip
"""The update gate weighs what is new."""

RNN = [node("Gemm", "xt w b", "p"), node("Gemm", "h r rb", "q"), node("Add", "p q", "s"),
       node("Tanh", "s", "h2")]  # fmt: skip

PIECES = [
    tensor("one", 1.0), tensor("zero", [0], np.int64), tensor("two_h", [2 * H], np.int64),
    tensor("three_h", [3 * H], np.int64), tensor("last", [1], np.int64),
]  # fmt: skip

CELLS: dict[str, tuple[list[NodeProto], int, str, bool]] = {
    "lstm": (LSTM, 4, "LSTM", False),
    "basic lstm": (BASIC, 4, "LSTM", True),
    "gru, reset after": (GRU_AFTER, 3, "GRU", False),
    "gru, reset before": (GRU_BEFORE, 3, "GRU", False),
    "gru, mirrored": (GRU_MIRRORED, 3, "GRU", False),
    "rnn": (RNN, 1, "RNN", False),
}


def looped(
    nodes: list[NodeProto],
    gates: int,
    *,
    joined: bool = False,
    take: Any = None,
    batch: str | int = 2,
    sequence: Any = ("t", 2, WIDTH),
    scanned: str = "h2",
) -> ModelProto:
    """A Loop over the rows of x, whose number is a size of x."""
    states = [value("h", [batch, H]), value("c", [batch, H])][: 2 if gates == 4 else 1]
    take = take or [node("Gather", "x index", "xt", axis=0)]
    inner = helper.make_graph(
        [*take, *nodes, node("Identity", "go", "on"), node("Identity", scanned, "row")], "body",
        [value("index", [], I64), value("go", [], BOOL), *states],
        [value("on", [], BOOL), *(value(f"{s.name}2", [batch, H]) for s in states),
         value("row", [batch, H])],
    )  # fmt: skip
    at = 1 if sequence[0] in ("b", 2) else 0
    given, ends = (" ".join(f"{s.name}{n}" for s in states) for n in ("0", "T"))
    outer = [
        node("Shape", "x", "shape"), node("Gather", "shape at", "t", axis=0),
        node("Loop", f"t yes {given}", f"{ends} rows", body=inner),
    ]  # fmt: skip
    inputs = [value("x", sequence), *(value(f"{s.name}0", [batch, H]) for s in states)]
    outputs = [*(value(f"{s.name}T", [batch, H]) for s in states), value("rows", ["t", batch, H])]
    constants = [*weights(gates, joined=joined), *PIECES, YES, tensor("at", at, np.int64)]
    return model(outer, inputs, outputs, constants)


def scanned_lstm(*, reverse: bool = False, axis: int = 0) -> ModelProto:
    inner = helper.make_graph(
        [*LSTM, node("Identity", "h2", "row")], "body",
        [value("h", [2, H]), value("c", [2, H]), value("xt", [2, WIDTH])],
        [value("h2", [2, H]), value("c2", [2, H]), value("row", [2, H])],
    )  # fmt: skip
    more: dict[str, Any] = {"scan_input_axes": [axis], "scan_output_axes": [axis]}
    if reverse:
        more |= {"scan_input_directions": [1], "scan_output_directions": [1]}
    scan = node("Scan", "h0 c0 x", "hT cT rows", body=inner, num_scan_inputs=1, **more)
    x = [2, "t", WIDTH] if axis else ["t", 2, WIDTH]
    rows = [2, "t", H] if axis else ["t", 2, H]
    inputs = [value("x", x), value("h0", [2, H]), value("c0", [2, H])]
    outputs = [value("hT", [2, H]), value("cT", [2, H]), value("rows", rows)]
    return model([scan], inputs, outputs, weights(4))


def read_through(op: str) -> ModelProto:
    """A scan whose last states become outputs by an operator that changes nothing."""
    proto = scanned_lstm()
    proto.graph.node[0].output[:2] = ["h9", "c9"]
    proto.graph.node.extend([node(op, "h9", "hT"), node(op, "c9", "cT")])
    return proto


def as_tensorflow() -> ModelProto:
    """A while loop that counts by itself, and carries its weights and the whole sequence."""
    take = [node("Gather", "seq time", "xt", axis=1)]
    count = [node("Add", "time step", "time2"), node("Less", "time2 length", "a"),
             node("Add", "loops step", "loops2"), node("Less", "loops2 length", "d"),
             node("And", "a d", "on")]  # fmt: skip
    same = [node("Identity", "kk", "kk2"), node("Identity", "seq", "seq2")]
    nodes = [NodeProto.FromString(n.SerializeToString()) for n in BASIC]
    nodes[1].input[1] = "kk"
    carried = [("time", [], I64), ("loops", [], I64), ("h", [2, H], 1), ("c", [2, H], 1),
               ("kk", [WIDTH + H, 4 * H], 1), ("seq", [2, "t", WIDTH], 1)]  # fmt: skip
    inner = helper.make_graph(
        [*take, *nodes, *count, *same, node("Identity", "h2", "row")], "body",
        [value("index", [], I64), value("go", [], BOOL), *(value(n, s, k) for n, s, k in carried)],
        [value("on", [], BOOL), *(value(f"{n}2", s, k) for n, s, k in carried),
         value("row", [2, H])],
        [tensor("step", 1, np.int64)],
    )  # fmt: skip
    outer = [
        node("Shape", "x", "shape"), node("Gather", "shape second", "length", axis=0),
        node("Less", "none length", "start"),
        node("Loop", "most start none none h0 c0 k x", "e0 e1 hT e2 e3 e4 rows", body=inner),
    ]  # fmt: skip
    constants = [*weights(4, joined=True), *PIECES, tensor("none", 0, np.int64),
                 tensor("second", 1, np.int64), tensor("most", 2**31 - 1, np.int64)]  # fmt: skip
    inputs = [value("x", [2, "t", WIDTH]), value("h0", [2, H]), value("c0", [2, H])]
    outputs = [value("hT", [2, H]), value("rows", ["t", 2, H])]
    return model(outer, inputs, outputs, constants)


def stacked() -> ModelProto:
    """Two layers in one loop: the second reads the first's state."""
    second = [NodeProto.FromString(n.SerializeToString()) for n in RNN]
    for one in second:
        one.input[:] = ["h2" if v == "xt" else v if v in ("w2", "r", "b", "rb") else f"{v}_b"
                        for v in one.input]  # fmt: skip
        one.output[:] = [f"{v}_b" for v in one.output]
    second[0].input[1] = "w2"
    states = [value("h", [2, H]), value("h_b", [2, H])]
    inner = helper.make_graph(
        [node("Gather", "x index", "xt", axis=0), *RNN, *second, node("Identity", "go", "on"),
         node("Identity", "h2_b", "row")], "body",
        [value("index", [], I64), value("go", [], BOOL), *states],
        [value("on", [], BOOL), value("h2", [2, H]), value("h2_b", [2, H]),
         value("row", [2, H])],
    )  # fmt: skip
    outer = [
        node("Shape", "x", "shape"), node("Gather", "shape at", "t", axis=0),
        node("Loop", "t yes h0 c0", "hT cT rows", body=inner),
    ]  # fmt: skip
    inputs = [value("x", ["t", 2, WIDTH]), value("h0", [2, H]), value("c0", [2, H])]
    outputs = [value("hT", [2, H]), value("cT", [2, H]), value("rows", ["t", 2, H])]
    constants = [*weights(1), tensor("w2", normal(H, H, seed=9)), YES, tensor("at", 0, np.int64)]
    return model(outer, inputs, outputs, constants)


def zero_states() -> ModelProto:
    """A batch of any size, whose states begin as zeros."""
    proto = looped(LSTM, 4, batch="b", sequence=("t", "b", WIDTH))
    graph = proto.graph
    del graph.input[1:]
    nodes = [
        node("Slice", "shape last second zero", "batch"),
        node("Concat", "batch h", "both", axis=0),
        node("ConstantOfShape", "both", "h0"), node("ConstantOfShape", "both", "c0"),
    ]  # fmt: skip
    graph.node.extend(nodes)
    graph.initializer.extend([tensor("h", [H], np.int64), tensor("second", [2], np.int64)])
    order = [graph.node[i] for i in (0, 3, 4, 5, 6, 1, 2)]
    copies = [NodeProto.FromString(n.SerializeToString()) for n in order]
    del graph.node[:]
    graph.node.extend(copies)
    return proto


SLICED = [
    node("Unsqueeze", "index zero", "i1"), node("Add", "i1 last", "i2"),
    node("Slice", "x i1 i2 last", "xs"), node("Squeeze", "xs last", "xt"),
]  # fmt: skip
"""A row of a sequence whose batch comes first, as a slice."""
BATCHES = {
    **{
        name: looped(c, g, joined=j, sequence=(3 if op == "GRU" else "t", 2, WIDTH))
        for name, (c, g, op, j) in CELLS.items()
    },
    "zeros": zero_states(),
    "any batch": looped(LSTM, 4, batch="b", sequence=("t", "b", WIDTH)),
    "slices": looped(
        [*LSTM], 4, take=SLICED, sequence=(2, "t", WIDTH),
    ),
    "scan": scanned_lstm(), "scan, backwards": scanned_lstm(reverse=True),
    "scan, other axes": scanned_lstm(axis=1),
    "scan, read through Identity": read_through("Identity"),
    "scan, read through Dropout": read_through("Dropout"),
    "tensorflow": as_tensorflow(), "stacked": stacked(),
}  # fmt: skip
FIRST = ("slices", "scan, other axes", "tensorflow")
"""Models whose batch is the first axis of x."""


def feeds(proto: ModelProto, steps: int, batch_first: bool, batch: int = 2) -> dict[str, Any]:
    shape = (batch, steps, WIDTH) if batch_first else (steps, batch, WIDTH)
    made = {"x": normal(*shape, seed=steps)}
    names = [v.name for v in proto.graph.input[1:]]
    return made | {n: normal(batch, H, seed=i + 7) for i, n in enumerate(names)}


@pytest.mark.parametrize("name", BATCHES)
def test_cells_become_operators(name: str, tmp_path: Path) -> None:
    proto = BATCHES[name]
    onnx.checker.check_model(proto, full_check=True)
    path = save(proto, tmp_path)
    loaded = load(path, unrolled=True)
    found = [r.op for r in loaded.graph.regions()]
    assert not {*found} & {"Loop", "Scan"}
    kinds = {k: op for k, (_, _, op, _) in CELLS.items()}
    expected = ["RNN", "RNN"] if name == "stacked" else [kinds.get(name, "LSTM")]
    assert [op for op in found if op in ("LSTM", "GRU", "RNN")] == expected
    out = verbatim(loaded, tmp_path / "out.onnx").model
    original, result = session(path), session(out)
    for steps in (3,) if expected == ["GRU"] else (1, 3) if name.startswith("scan") else (1, 3, 0):
        fed = feeds(proto, steps, name in FIRST)
        wanted, got = original.run(None, fed), result.run(None, fed)
        for a, b in zip(wanted, got, strict=True):
            if a.size:  # ONNX Runtime takes symbols of a body for 0 if it never runs
                np.testing.assert_allclose(b, a, atol=2e-6)
            assert a.size == b.size


@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 1, 1), (1, 3, 1), (1, 1, 3), (3, 1, 3)])
def test_sequences_and_states_are_repeated_to_one_batch(
    sizes: tuple[int, int, int], tmp_path: Path
) -> None:
    proto = looped(LSTM, 4, batch="b", sequence=("t", "b", WIDTH))
    graph, inner = proto.graph, body_of(proto)
    for size, info in enumerate(graph.input):
        info.type.tensor_type.shape.dim[-2].dim_param = f"b{size}"
    for info in (*inner.input[2:], *inner.output[1:], *graph.output):
        info.type.tensor_type.ClearField("shape")  # ONNX Runtime reuses memory of equal symbols
    out = verbatim(load(save(proto, tmp_path), unrolled=True), tmp_path / "out.onnx").model
    original, result = session(tmp_path / "m.onnx"), session(out)
    x, h, c = sizes
    for steps in (1, 3, 0):
        fed = {"x": normal(steps, x, WIDTH, seed=1), "h0": normal(h, H, seed=2),
               "c0": normal(c, H, seed=3)}  # fmt: skip
        wanted, got = original.run(None, fed), result.run(None, fed)
        for a, b in zip(wanted[:2], got[:2], strict=True):
            np.testing.assert_allclose(b, a, atol=2e-6, strict=True)
        if steps:
            np.testing.assert_allclose(got[2], wanted[2], atol=2e-6, strict=True)


def with_result(scanned: str) -> ModelProto:
    return looped(LSTM, 4, scanned=scanned)


def peepholes() -> ModelProto:
    nodes = [n for n in LSTM if n.output[0] != "sf"]
    more = [node("Add", "f c", "fc"), node("Sigmoid", "fc", "sf")]
    return looped([*nodes[:5], *more, *nodes[5:]], 4)


def other_length() -> ModelProto:
    proto = looped(LSTM, 4)
    proto.graph.input.append(value("n", [], I64))
    proto.graph.node[-1].input[0] = "n"
    return proto


def broadcast_batch() -> ModelProto:
    """One sequence for a batch of states."""
    return looped(LSTM, 4, sequence=("t", 1, WIDTH))


def earlier_row() -> ModelProto:
    take = [node("Sub", "index at", "before"), node("Gather", "x before", "xt", axis=0)]
    proto = looped(LSTM, 4, take=take)
    (at,) = [t for t in proto.graph.initializer if t.name == "at"]
    assert not int.from_bytes(at.raw_data, "little")
    take[0].input[1] = "back"
    proto = looped(LSTM, 4, take=take)
    proto.graph.initializer.append(tensor("back", 1, np.int64))
    return proto


def constant_cell() -> ModelProto:
    """The cell state is scaled between steps."""
    nodes = [n for n in LSTM if n.output[0] not in ("c2", "tc")]
    more = [node("Add", "keep new", "cs"), node("Mul", "cs half", "c2"), node("Tanh", "c2", "tc")]
    proto = looped([*nodes[:-1], *more, nodes[-1]], 4)
    proto.graph.initializer.append(tensor("half", 0.5))
    return proto


OTHERS = {
    "a result besides states": with_result("si"), "peepholes": peepholes(),
    "another length": other_length(), "a broadcast batch": broadcast_batch(),
    "an earlier row": earlier_row(), "a gru of any length": looped(GRU_AFTER, 3),
    "a scaled cell state": constant_cell(),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_loops_stay(name: str, tmp_path: Path) -> None:
    path = save(OTHERS[name], tmp_path)
    found = {r.op for r in load(path, unrolled=True).graph.regions()}
    assert "Loop" in found and not found & {"LSTM", "GRU", "RNN"}


def body_of(proto: ModelProto) -> GraphProto:
    (call,) = [n for n in proto.graph.node if n.op_type == "Loop"]
    return next(a.g for a in call.attribute if a.name == "body")


def test_a_condition_of_values_keeps_the_loop(tmp_path: Path) -> None:
    proto = looped(LSTM, 4)
    inner = body_of(proto)
    (last,) = [n for n in inner.node if n.output[0] == "on"]
    inner.node.remove(last)
    inner.node.extend(
        [node("ReduceMax", "h2", "most", keepdims=0), node("Less", "most one", "on")]
    )
    found = {r.op for r in load(save(proto, tmp_path), unrolled=True).graph.regions()}
    assert "Loop" in found


def _inner_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for each in graph.node:
        yield each
        for attr in each.attribute:
            yield from _inner_nodes(attr.g)


def in_a_branch() -> ModelProto:
    """An LSTM's loop inside the branch that ``pick`` chooses; the other one returns the states."""
    proto = looped(LSTM, 4)
    graph = proto.graph
    results = [v.name for v in graph.output]
    loop = helper.make_graph(list(graph.node), "loop", [], list(graph.output))
    states = [
        node("Identity", "h0", "h"), node("Identity", "c0", "c"),
        node("Unsqueeze", "h0 first", "row"), node("Expand", "row sizes", "repeated"),
    ]  # fmt: skip
    ends = [value("h", [2, H]), value("c", [2, H]), value("repeated", [3, 2, H])]
    kept = helper.make_graph(states, "kept", [], ends)
    call = node("If", "pick", " ".join(f"{r}_of_both" for r in results), then_branch=loop,
                else_branch=kept)  # fmt: skip
    outputs = [value(f"{r}_of_both", None) for r in results]
    constants = [*graph.initializer, tensor("first", [0], np.int64),
                 tensor("sizes", [3, 2, H], np.int64)]  # fmt: skip
    return model([call], [*graph.input, value("pick", [], BOOL)], outputs, constants)


def test_a_loop_in_a_branch_becomes_an_operator(tmp_path: Path) -> None:
    path = save(in_a_branch(), tmp_path)
    loaded = load(path, unrolled=True)
    out = verbatim(loaded, tmp_path / "out.onnx").model
    found = [r.op for r in loaded.graph.regions()]
    assert found.count("LSTM") == 1 and "Loop" not in found
    written = onnx.load(out).graph
    assert [n.op_type for n in _inner_nodes(written) if n.op_type in ("LSTM", "Loop")] == ["LSTM"]
    assert all(n.op_type != "LSTM" for n in written.node), "the other branch would wait for it"
    original, result = session(path), session(out)
    fed = feeds(looped(LSTM, 4), 3, batch_first=False)
    for pick in (True, False):
        given = {**fed, "pick": np.array(pick)}
        for a, b in zip(original.run(None, given), result.run(None, given), strict=True):
            np.testing.assert_allclose(b, a, atol=2e-6)
