"""Products of two tensors, whatever their spelling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, only, ops, optimized, reasons, schedule_only
from tracea_graph.ir import DType, Weight
from tracea_graph.passes.matmul import gemm, matmul
from tracea_graph.rewrite import RulePass

Dims = tuple[int | str, ...]
SIZES = {"batch": 2, "seq": 5, "past": 7}


def feed(net: Net) -> dict[str, Any]:
    return {
        name: normal(
            *(SIZES.get(d.dim_param, d.dim_value) for d in info.type.tensor_type.shape.dim),
            seed=i,
        )
        for i, (name, info) in enumerate(net.inputs.items())
    }


def lift(net: Net, *outputs: str) -> Any:
    graph = net.graph(*outputs)
    schedule_only(graph, gemm.Gemm(), RulePass(matmul.MATMUL))
    return graph


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (("seq", 8), (8, "past")),
        (("batch", 3, "seq", 8), ("batch", 3, 8, "past")),
        (("batch", 3, "seq", 8), ("batch", 1, 8, "past")),
        (("batch", 3, "seq", 8), (3, 8, "past")),
        (("batch", "seq", 8), (8, "past")),
        (("seq", 8), ("batch", 8, 4)),
        ((8,), (8, "past")),
        ((8,), ("batch", 8, "past")),
        (("batch", "seq", 8), (8,)),
        ((8,), (8,)),
    ],
    ids=str,
)
def test_a_product_of_activations(a: Dims, b: Dims) -> None:
    net = Net()
    graph = lift(net, net("MatMul", net.input("a", *a), net.input("b", *b)))
    assert ops(graph) == ["FusedMatMul"]
    assert_same(net, graph, feed(net))


def test_constants_that_are_no_matrix_for_all_rows() -> None:
    net = Net()
    x, y = net.input("x", 3, "seq", 8), net.input("y", 8, "seq")
    graph = lift(
        net,
        net("MatMul", x, net.weight(3, 8, 4)),
        net("MatMul", net.weight(6, 8), y),
        net("MatMul", net.input("z", 5, 8), net.weight(1, 8, 4)),
        net("MatMul", x, net.weight(8)),
    )
    assert ops(graph) == ["FusedMatMul"] * 4
    assert_same(net, graph, feed(net))


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("constant", [False, True])
def test_gemm_spelled_any_way(trans_a: int, trans_b: int, constant: bool) -> None:
    net = Net()
    a = net.input("a", *((8, "seq") if trans_a else ("seq", 8)))
    shape = (4, 8) if trans_b else (8, 4)
    b = net.weight(*shape) if constant else net.input("b", *shape)
    y = net("Gemm", a, b, net.weight(1, 4), transA=trans_a, transB=trans_b, alpha=0.5, beta=2.0)
    graph = lift(net, y)
    assert ops(graph) == ["FusedGemm" if constant and not trans_a else "FusedMatMul"]
    assert_same(net, graph, feed(net))


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize(
    "perm", [(0, 2, 1, 3), (0, 1, 3, 2), (0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0)], ids=str
)
def test_a_transposed_operand_is_read_as_it_lies(name: str, perm: tuple[int, ...]) -> None:
    net = Net()
    seen: dict[str, Dims] = {"a": (2, 3, 5, 8), "b": (2, 3, 8, 7)}
    stored = [0] * 4
    for i, axis in enumerate(perm):
        stored[axis] = int(seen[name][i])
    values = {n: net.input(n, *(stored if n == name else seen[n])) for n in seen}
    values[name] = net("Transpose", values[name], perm=perm)
    graph = lift(net, net("MatMul", values["a"], values["b"]))
    together = 3 in perm[-2:]
    assert ops(graph) == (["FusedMatMul"] if together else ["Transpose", "FusedMatMul"])
    assert_same(net, graph, feed(net))


def test_scales_of_operands_become_one_of_the_product() -> None:
    net = Net()
    a = net("Mul", net.input("a", "batch", "seq", 8), 0.25)
    b = net("Transpose", net("Div", net.input("b", "batch", "past", 8), 2.0), perm=(0, 2, 1))
    graph = lift(net, net("MatMul", a, b))
    region = only(graph, "FusedMatMul")
    assert ops(graph) == ["FusedMatMul"] and region.operands == ("a", "b")
    assert region.params.epilogue.text == "full|mul(0,0.125)|1"
    assert_same(net, graph, feed(net))


def test_what_others_read_stays() -> None:
    net = Net()
    a = net("Mul", net.input("a", "batch", "seq", 8), 0.25)
    graph = lift(net, net("MatMul", a, net.input("b", "batch", 8, 4)), a)
    assert sorted(ops(graph)) == ["FusedMatMul", "Mul"]
    assert_same(net, graph, feed(net))


def test_scores_take_up_scale_bias_and_mask() -> None:
    net = Net()
    q, k = net.input("q", "batch", 3, "seq", 8), net.input("k", "batch", 3, "past", 8)
    scores = net("MatMul", q, net("Transpose", k, perm=(0, 1, 3, 2)))
    biased = net("Add", net("Mul", scores, 0.125), net.input("r", 1, 3, "seq", "past"))
    keep = net.input("m", "batch", 1, 1, "past", dtype=DType.BOOL)
    graph = net.graph(net("Where", keep, biased, -1e4))
    optimized(graph)
    assert ops(graph) == ["FusedMatMul"]
    kinds = only(graph, "FusedMatMul").params.epilogue.operands
    assert kinds == ("full", "full", "row")
    assert_same(net, graph, feed(net) | {"m": normal(2, 1, 1, 7, seed=5) > 0})


def test_reasons() -> None:
    net = Net()
    wide = [net.input(n, 3, 3, dtype=DType.F64) for n in ("a", "b")]
    open_sizes = net("MatMul", net.input("c", "p", 3), net.input("d", 3, 4))
    codes = net.const(np.ones((3, 4)), np.int8)
    quantized = net("DequantizeLinear", codes, 0.5)
    third = net("MatMul", net.input("e", "p", 3), quantized)
    graph = net.graph(net("MatMul", *wide), open_sizes, third)
    trace = schedule_only(graph, gemm.Gemm(), RulePass(matmul.MATMUL))
    assert reasons(trace, "matmul") == {
        "the operands are not float32",
        f"{quantized!r} is quantized, and integer kernels are faster for it",
    }
    assert sorted(ops(graph)) == ["DequantizeLinear", "FusedMatMul", "MatMul", "MatMul"]


def test_a_matrix_stored_in_fewer_bytes_is_taken() -> None:
    net = Net()
    half = net.const(normal(200, 200), np.float16)
    wide = net("Cast", half, to=DType.F32.onnx)
    graph = net.graph(net("MatMul", net.input("x", "seq", 200), wide))
    graph.weights[wide] = Weight(
        wide, DType.F32, (200, 200), lambda: net.weights[half].astype(np.float32)
    )
    trace = schedule_only(graph, gemm.Gemm(), RulePass(matmul.MATMUL))
    assert trace.applied() == {"gemm": 1}
    assert ops(graph) == ["Cast", "FusedGemm"], "packing converts it"


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("rows", "taken"), [("n", True), (1, True), ("m", False)])
def test_an_addend_of_unknown_rows_may_have_one(
    constant: bool, rows: int | str, taken: bool
) -> None:
    """ONNX Runtime repeats it then; kernels would read rows that do not exist."""
    net = Net()
    b = net.weight(16, 24) if constant else net.input("b", 16, 24)
    made = net("Gemm", net.input("x", "n", 16), b, net.input("c", rows, 24), beta=0.5)
    graph = net.graph(made)
    trace = schedule_only(graph, gemm.Gemm(), RulePass(matmul.MATMUL))
    name = "FusedGemm" if constant else "FusedMatMul"
    assert ops(graph) == [name if taken else "Gemm"]
    why = "the sizes of 'c' are not proven to fit the product"
    assert taken or why in reasons(trace, "gemm" if constant else "matmul")
