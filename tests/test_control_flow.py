"""Models with If and Loop through the whole pipeline: programs in branches, unrolled loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.graphs import normal, relative_error, session
from tests.halves import EPSILON, F16, in_double
from tests.onnx_io.samples import BOOL, F32, I64, model, node, tensor, value
from tracea_graph import Options, api
from tracea_graph.onnx_io import load
from tracea_graph.onnx_io.custom_op_inlining import custom_op_nodes, is_tracea_node
from tracea_graph.onnx_io.node_conversion import all_nodes, subgraphs_of

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
CLOSE = {F32: 1e-5, F16: EPSILON[F16]}


def perceptron(prefix: str, x: str) -> list[NodeProto]:
    names = [f"{prefix}{i}" for i in range(4)]
    return [
        node("MatMul", f"{x} {prefix}w", names[0]), node("Add", f"{names[0]} bias", names[1]),
        node("Tanh", names[1], names[2]), node("MatMul", f"{names[2]} {prefix}v", names[3]),
        node("Softmax", names[3], "r", axis=-1),
    ]  # fmt: skip


def branching(kind: int = F32) -> ModelProto:
    """Both branches call a value r and read an outer bias; one has its own matrices, in one there
    is another If."""
    dtype = np.float32 if kind == F32 else np.float16
    r = value("r", ["n", 32], kind)
    sizes = {"w": (32, 96), "v": (96, 32)}

    def matrices(prefix: str, seed: int) -> list[TensorProto]:
        return [
            tensor(f"{prefix}{n}", normal(*s, seed=seed + i) / np.sqrt(s[0]), dtype)
            for i, (n, s) in enumerate(sizes.items())
        ]

    deep = [
        helper.make_graph([*perceptron(p, "h")], p, [], [r], matrices(p, 10 * i))
        for i, p in enumerate("ab", 3)
    ]
    then = helper.make_graph(perceptron("t", "h"), "then", [], [r], matrices("t", 1))
    other = helper.make_graph(
        [node("If", "deeper", "q", then_branch=deep[0], else_branch=deep[1]),
         node("Mul", "q h", "r")], "else", [], [r],
    )  # fmt: skip
    nodes = [
        node("Sin", "x", "h"), node("If", "flag", "c", then_branch=then, else_branch=other),
        node("Add", "c h", "y"),
    ]  # fmt: skip
    inputs = [value("x", ["n", 32], kind), value("flag", [], BOOL), value("deeper", [], BOOL)]
    return model(nodes, inputs, [value("y", ["n", 32], kind)], [tensor("bias", normal(96), dtype)])


def feeds(kind: int, flag: bool, deeper: bool) -> dict[str, Any]:
    x = normal(5, 32, seed=7).astype(np.float32 if kind == F32 else np.float16)
    return {"x": x, "flag": np.array(flag), "deeper": np.array(deeper)}


@pytest.mark.parametrize("kind", [F32, F16], ids=["fp32", "fp16"])
def test_programs_run_in_branches(kind: int, tmp_path: Path) -> None:
    proto = branching(kind)
    onnx.save(proto, tmp_path / "m.onnx")
    report = api.optimize(tmp_path / "m.onnx", Options(keep="all", budget=60))
    assert report.status == "passed", report.status_reason
    result = onnx.load(report.output)
    (choice,) = [n for n in result.graph.node if n.op_type == "If"]
    inside = [n for body in subgraphs_of(choice) for n in all_nodes(body)]
    programs = [n for n in inside if is_tracea_node(n)]
    assert len({n.op_type for n in programs if n.op_type.startswith("FusedRegion")}) == 1
    assert len(programs) >= 3 and not any(n.op_type == "MatMul" for n in inside)
    assert len(custom_op_nodes(load(Path(report.output)))) == report.kernels
    library = Path(str(report.library))
    for flag, deeper in ((True, True), (False, True), (False, False)):
        given = feeds(kind, flag, deeper)
        (wanted,) = in_double(proto, given)
        for own in (library, None):  # kernels, then the nodes' bodies
            (found,) = session(report.output, own).run(None, given)
            assert relative_error(found.astype(np.float64), wanted) <= CLOSE[kind]


def test_programs_in_branches_are_inlined_again(tmp_path: Path) -> None:
    onnx.save(branching(), tmp_path / "m.onnx")
    report = api.optimize(tmp_path / "m.onnx", Options(keep="all", budget=60))
    graph = load(Path(report.output), inline=True).graph
    assert not any("tracea." in r.op for r in graph.regions())
    assert sum(r.op == "MatMul" for r in graph.regions()) == 6


def test_an_unrolled_recurrent_net_is_one_program(tmp_path: Path) -> None:
    """Gates in a Loop whose counter is a state, as TensorFlow writes LSTMs."""
    step = [
        node("Gather", "rows t", "row", axis=0), node("Gemm", "row w", "a"),
        node("Gemm", "h u bias", "b"), node("Add", "a b", "gates"),
        node("Split", "gates", "i f c", axis=1), node("Sigmoid", "i", "i2"),
        node("Sigmoid", "f", "f2"), node("Tanh", "c", "c2"), node("Mul", "i2 c2", "new"),
        node("Mul", "f2 h", "old"), node("Add", "new old", "h2"),
        node("Add", "t one", "t2"), node("Less", "t2 six", "on"),
    ]  # fmt: skip
    state, counter = value("h", ["n", 16]), value("t", [], I64)
    body = helper.make_graph(
        step, "body", [value("k", [], I64), value("go", [], BOOL), state, counter],
        [value("on", [], BOOL), value("h2", ["n", 16]), value("t2", [], I64)],
    )  # fmt: skip
    nodes = [node("Loop", "_ yes h0 zero", "last steps", body=body), node("Relu", "last", "y")]
    constants = [
        tensor("w", normal(8, 48, seed=1)), tensor("u", normal(16, 48, seed=2) / 4),
        tensor("bias", normal(48, seed=3)), tensor("yes", True, np.bool_),
        *(tensor(n, v, np.int64) for n, v in (("zero", 0), ("one", 1), ("six", 6))),
    ]  # fmt: skip
    inputs = [value("rows", [6, "n", 8]), value("h0", ["n", 16])]
    proto = model(nodes, inputs, [value("y", ["n", 16])], constants)
    onnx.save(proto, tmp_path / "m.onnx")
    report = api.optimize(tmp_path / "m.onnx", Options(keep="all", budget=60))
    assert report.status == "passed", report.status_reason
    result = onnx.load(report.output)
    assert not any(n.op_type in ("Loop", "Gemm", "Sigmoid") for n in all_nodes(result.graph))
    given = {"rows": normal(6, 3, 8, seed=4), "h0": normal(3, 16, seed=5)}
    (wanted,) = in_double(proto, given)
    for own in (Path(str(report.library)), None):
        (found,) = session(report.output, own).run(None, given)
        assert relative_error(found, wanted) <= CLOSE[F32]


ITERATED = """<ir_version: 8, opset_import: ["": 17]>
    g (float[n, k, 32] x, float[t, n, 32] rows, float[n, 32] first, int64 times, bool go)
        => (float[n, m, 32] y, float[n, 32] last, float[t, n, 32] every) {
        y = Loop(times, go, x) <body = grow (int64 i, bool c, float[n, l, 32] h)
            => (bool on, float[n, l2, 32] h2) {
                on = Identity(c)  end = Slice(h, before, behind, axis)  p = MatMul(end, w)
                q = Add(p, bias)  r = Tanh(q)  h2 = Concat <axis = 1> (h, r) }>
        last, every = Scan <num_scan_inputs = 1, body = cell (float[n, 32] s, float[n, 32] row)
            => (float[n, 32] s2, float[n, 32] out) {
                a = MatMul(s, w)  b = Add(a, row)  s2 = Tanh(b)  out = Identity(s2) }>
            (first, rows)
    }"""
"""Bodies that read nothing but carried values of symbolic sizes, one of which grows."""


def test_kernels_run_in_bodies_that_read_only_carried_values(tmp_path: Path) -> None:
    made = onnx.parser.parse_model(ITERATED)
    made.graph.initializer.extend((
        tensor("w", normal(32, 32) / 6), tensor("bias", normal(32, seed=1)),
        *(tensor(n, [v], np.int64) for n, v in (("before", -1), ("behind", 2**31), ("axis", 1))),
    ))  # fmt: skip
    onnx.save(made, tmp_path / "m.onnx")
    report = api.optimize(tmp_path / "m.onnx", Options(keep="all", budget=60))
    assert report.status == "passed", report.status_reason
    loops = [n for n in onnx.load(report.output).graph.node if n.op_type in ("Loop", "Scan")]
    inside = [[n for body in subgraphs_of(loop) for n in all_nodes(body)] for loop in loops]
    assert len(loops) == 2 and all(any(map(is_tracea_node, nodes)) for nodes in inside)
    for n, times in ((1, 0), (3, 4)):
        given = {
            "x": normal(n, 2, 32), "rows": normal(5, n, 32, seed=2),
            "first": normal(n, 32, seed=3), "times": np.array(times), "go": np.array(True),
        }  # fmt: skip
        wanted = in_double(made, given)
        found = session(report.output, Path(str(report.library))).run(None, given)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.shape == theirs.shape and relative_error(ours, theirs) <= CLOSE[F32]
