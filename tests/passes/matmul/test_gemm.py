"""Products with constant matrices, and what they absorb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graphs import (
    APART,
    Net,
    assert_same,
    normal,
    only,
    ops,
    optimized,
    reasons,
    schedule_only,
)
from tracea_graph.ir import DType
from tracea_graph.ops.norm import Norm
from tracea_graph.ops.weight_layouts import KN
from tracea_graph.passes.matmul import gemm
from tracea_graph.rewrite import RulePass

FEEDS = {"x": normal(2, 5, 24)}
N = 20


def new() -> tuple[Net, str]:
    net = Net()
    return net, net.input("x", "batch", "seq", 24)


def linear(net: Net, x: str, bias: bool = True, n: int = N) -> str:
    y = net("MatMul", x, net.weight(24, n))
    return net("Add", y, net.weight(n)) if bias else y


# ---- the product itself ------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 16, 20, 48])
@pytest.mark.parametrize("dims", [("m",), ("batch", "seq"), (2, "h", "seq")])
def test_matmul_of_any_rank(dims: tuple[Any, ...], n: int) -> None:
    net = Net()
    x = net.input("x", *dims, 24)
    graph = net.graph(net("MatMul", x, net.weight(24, n)))
    schedule_only(graph, gemm.Gemm())
    region = only(graph, "FusedGemm")
    assert (region.params.k, region.params.n, region.params.layout) == (24, n, KN)
    assert graph.weights[region.operands[1]].shape == (24, n)
    assert_same(net, graph, {"x": normal(*range(2, 2 + len(dims)), 24)})


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("c", ["", "C"])
def test_gemm_transposed_and_scaled(trans_b: int, alpha: float, c: str) -> None:
    net = Net()
    x = net.input("x", "m", 24)
    weight = net.weight(N, 24) if trans_b else net.weight(24, N)
    operands = (x, weight, net.weight(N)) if c else (x, weight)
    graph = net.graph(net("Gemm", *operands, transB=trans_b, alpha=alpha))
    schedule_only(graph, gemm.Gemm())
    assert only(graph, "FusedGemm").params.bias == bool(c)
    assert_same(net, graph, {"x": normal(7, 24)})


def test_two_scales_of_one_matrix_are_two_weights() -> None:
    net = Net()
    x, weight = net.input("x", "m", 24), net.weight(24, N)
    parts = [net("Gemm", x, weight, alpha=a) for a in (0.1234567, 0.1234568, 1.0)]
    graph = net.graph(*parts)
    schedule_only(graph, gemm.Gemm())
    assert len({r.operands[1] for r in graph.regions()}) == 3
    assert_same(net, graph, {"x": normal(7, 24)}, 1e-6)


def test_one_matrix_read_twice_is_stored_once() -> None:
    net, x = new()
    weight = net.weight(24, 24)
    graph = net.graph(net("MatMul", net("MatMul", x, weight), weight))
    schedule_only(graph, gemm.Gemm())
    assert len({r.operands[1] for r in graph.regions()}) == 1
    assert_same(net, graph, FEEDS)


def test_a_matrix_others_need_is_read_in_place() -> None:
    net = Net()
    table, i = net.weight(1024, 24), net.ids("i", "batch", "seq")
    x = net("Gather", table, i, axis=0)
    graph = net.graph(
        net("MatMul", x, net.weight(24, 24)), net("Gemm", net.input("z", 3, 24), table, transB=1)
    )
    optimized(graph)
    head = next(r for r in graph.regions() if r.op == "FusedGemm" and r.params.n == 1024)
    assert head.params.layout.name == "nk" and head.operands[1] == table
    assert_same(net, graph, {"i": np.array([[3, 5, 1]]), "z": normal(3, 24)})


def test_without_prepacking_every_matrix_stays() -> None:
    net, x = new()
    weight = net.weight(24, N)
    graph = net.graph(net("MatMul", x, weight))
    schedule_only(graph, gemm.Gemm(plain=True))
    region = only(graph, "FusedGemm")
    assert region.params.layout.name == "kn" and region.operands[1] == weight
    assert_same(net, graph, FEEDS)


def doubles(net: Net) -> str:
    x = net.input("x", 3, 24, dtype=DType.F64)
    return net("MatMul", x, net.const(normal(24, 4), np.float64))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (doubles, "the operands are not float32"),
        (
            lambda n: n("MatMul", n.input("x", 3, 0), n.weight(0, 4)),
            "the constant matrix is empty",
        ),
    ],
)
def test_products_we_do_not_run(make: Callable[[Net], str], reason: str) -> None:
    net = Net()
    graph = net.graph(make(net))
    trace = schedule_only(graph, gemm.Gemm())
    assert reasons(trace, "gemm") == {reason}
    assert "FusedGemm" not in ops(graph)


C_SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (N,), (1, N), (7, 1), (1, 1), (7, N))


@pytest.mark.parametrize("shape", C_SHAPES, ids=str)
@pytest.mark.parametrize("beta", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("alpha", [1.0, 2.0])
@pytest.mark.parametrize("plain", [False, True])
def test_gemm_with_any_c(shape: tuple[int, ...], beta: float, alpha: float, plain: bool) -> None:
    net = Net()
    x, c = net.input("x", 7, 24), net.const(normal(*shape, seed=9))
    graph = net.graph(net("Gemm", x, net.weight(24, N), c, alpha=alpha, beta=beta))
    schedule_only(graph, gemm.Gemm(plain))
    params = only(graph, "FusedGemm").params
    assert params.bias == (shape == (N,) and beta == 1.0 and (alpha == 1.0 or not plain))
    assert_same(net, graph, {"x": normal(7, 24)})


def test_a_row_alone_and_a_matrix_with_leading_ones() -> None:
    net = Net()
    x, y = net.input("x", 24), net.input("y", "batch", "seq", 24)
    graph = net.graph(net("MatMul", x, net.weight(24, N)), net("MatMul", y, net.weight(1, 24, N)))
    schedule_only(graph, gemm.Gemm())
    assert ops(graph) == ["FusedGemm", "FusedGemm"]
    assert_same(net, graph, {"x": normal(24), "y": normal(2, 5, 24)})


# ---- bias --------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_a_bias_on_either_side(first: bool) -> None:
    net, x = new()
    y, bias = linear(net, x, bias=False), net.weight(N)
    graph = net.graph(net("Add", *((bias, y) if first else (y, bias))))
    trace = schedule_only(graph, gemm.Gemm(), RulePass(gemm.GEMM_BIAS))
    assert trace.applied() == {"gemm": 1, "gemm-bias": 1}
    region = only(graph, "FusedGemm")
    assert region.params.bias and region.operands[2] == bias
    assert_same(net, graph, FEEDS)


def test_a_bias_that_is_an_input_is_a_bias() -> None:
    net, x = new()
    graph = net.graph(net("Add", linear(net, x, bias=False), net.input("b", N)))
    schedule_only(graph, gemm.Gemm(), RulePass(gemm.GEMM_BIAS))
    assert only(graph, "FusedGemm").operands[2] == "b"
    assert_same(net, graph, FEEDS | {"b": normal(N, seed=4)})


def test_a_second_vector_is_an_epilogue() -> None:
    net, x = new()
    graph = net.graph(net("Add", linear(net, x), net.weight(N)))
    optimized(graph)
    region = only(graph, "FusedGemm")
    assert region.params.bias and region.params.epilogue.text == "full,row|add(0,1)|2"
    assert_same(net, graph, FEEDS)


def test_a_product_with_other_readers_keeps_its_bias_outside() -> None:
    net, x = new()
    y = linear(net, x, bias=False)
    graph = net.graph(net("Add", y, net.weight(N)), net("Exp", y))
    trace = schedule_only(graph, gemm.Gemm(), RulePass(gemm.GEMM_BIAS))
    assert reasons(trace, "gemm-bias") == {f"the result {y!r} of FusedGemm has other readers"}
    assert_same(net, graph, FEEDS)


# ---- epilogues ---------------------------------------------------------------------------

EPILOGUES: dict[str, tuple[Callable[[Net, str], str], str]] = {
    "relu": (lambda n, y: n("Relu", y), "full|relu(0)|1"),
    "tanh": (lambda n, y: n("Tanh", y), "full|tanh(0)|1"),
    "sigmoid": (lambda n, y: n("Sigmoid", y), "full|sigmoid(0)|1"),
    "silu": (lambda n, y: n("Mul", y, n("Sigmoid", y)), "full|silu(0)|1"),
    "gelu": (
        lambda n, y: n("Mul", n("Mul", y, n("Add", n("Erf", n("Div", y, 2**0.5)), 1.0)), 0.5),
        "full|gelu(0)|1",
    ),
    "residual": (
        lambda n, y: n("Add", n.input("r", "batch", "seq", N), y),
        "full,full|add(1,0)|2",
    ),
    "scale": (lambda n, y: n("Mul", y, 0.125), "full|mul(0,0.125)|1"),
    "row": (lambda n, y: n("Mul", y, n.weight(N)), "full,row|mul(0,1)|2"),
    "mask": (
        lambda n, y: n("Mul", y, n.input("r", "batch", "seq", 1)),
        "full,col|mul(0,1)|2",
    ),
    "a number that is not constant": (
        lambda n, y: n("Sub", n.input("r", 1), y),
        "full,scalar|sub(1,0)|2",
    ),
    "itself": (lambda n, y: n("Mul", y, y), "full|mul(0,0)|1"),
    "square": (lambda n, y: n("Pow", y, 2.0), "full|mul(0,0)|1"),
    "a chain": (
        lambda n, y: n("Add", n("Relu", n("Mul", y, 0.5)), n.input("r", "batch", "seq", N)),
        "full,full|mul(0,0.5);relu(2);add(3,1)|4",
    ),
}


def extra_feed(net: Net) -> dict[str, np.ndarray]:
    if "r" not in net.inputs:
        return {}
    dims = net.inputs["r"].type.tensor_type.shape.dim
    sizes = {"batch": 2, "seq": 5}
    return {"r": normal(*(sizes.get(d.dim_param, d.dim_value) for d in dims), seed=8)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", EPILOGUES)
def test_elementwise_work_becomes_the_epilogue(name: str, bias: bool) -> None:
    make, text = EPILOGUES[name]
    net, x = new()
    graph = net.graph(make(net, linear(net, x, bias)))
    optimized(graph)
    assert ops(graph) == ["FusedGemm"]
    assert only(graph, "FusedGemm").params.epilogue.text == text
    assert_same(net, graph, FEEDS | extra_feed(net))


def test_a_product_with_other_readers_stays_a_result() -> None:
    net, x = new()
    y = linear(net, x)
    z = net("Mul", net("Relu", y), 2.0)
    graph = net.graph(z, y)
    optimized(graph)
    region = only(graph, "FusedGemm")
    assert ops(graph) == ["FusedGemm"] and region.results == (z, y)
    assert_same(net, graph, FEEDS)


def test_what_reads_both_results_of_an_epilogue() -> None:
    """Scaling is absorbed before what it is multiplied by, which needs the product itself too."""
    net, x = new()
    y = linear(net, x)
    graph = net.graph(net("Mul", y, net("Sigmoid", net("Mul", y, 1.702))))
    optimized(graph)
    assert ops(graph) == ["FusedGemm"]
    assert_same(net, graph, FEEDS)


def test_a_third_result_is_the_reason() -> None:
    net, x = new()
    y = linear(net, x)
    z = net("Relu", y)
    graph = net.graph(y, z, net("Exp", z))
    trace = optimized(graph)
    assert reasons(trace, "gemm-epilogue") == {f"the product {z!r} has other readers"}
    assert_same(net, graph, FEEDS)


def test_operands_and_results_of_other_types() -> None:
    net, x = new()
    keep = net.input("m", "batch", "seq", 1, dtype=DType.BOOL)
    y = net("Where", keep, linear(net, x), -1.0)
    graph = net.graph(net("Greater", y, 0.5))
    optimized(graph)
    region = only(graph, "FusedGemm")
    assert ops(graph) == ["FusedGemm"]
    assert region.params.infer([graph.spec("x")])[0].dtype is DType.BOOL
    assert_same(net, graph, FEEDS | {"m": normal(2, 5, 1, seed=4) > 0})


def test_a_broadcast_product_is_the_reason() -> None:
    net = Net()
    y = net("MatMul", net.input("x", 5, 24), net.weight(24, N))
    graph = net.graph(net("Add", y, net.input("r", 3, 5, N)))
    trace = optimized(graph)
    assert reasons(trace, "gemm-epilogue") == {f"the matmul's {y!r} is broadcast"}
    assert_same(net, graph, {"x": normal(5, 24), "r": normal(3, 5, N)})


def test_an_operand_repeated_along_the_batch_is_the_reason() -> None:
    net, x = new()
    graph = net.graph(net("Add", linear(net, x), net.input("r", "seq", N)))
    trace = optimized(graph)
    assert reasons(trace, "gemm-epilogue") == {
        f"operand f32[seq,{N}] is not full, row, column or scalar over f32[batch,seq,{N}]"
    }
    assert_same(net, graph, FEEDS | {"r": normal(5, N, seed=3)})


def test_too_many_operands_are_the_reason() -> None:
    net, x = new()
    y = linear(net, x)
    for _ in range(8):
        y = net("Mul", y, net.weight(N))
    graph = net.graph(y)
    trace = optimized(graph, limits=APART)
    assert "the epilogue would have too many operands" in reasons(trace, "gemm-epilogue")
    assert ops(graph) == ["FusedGemm", "FusedElementwise"]
    assert_same(net, graph, FEEDS)


def test_an_operand_that_waits_for_the_product_makes_no_cycle() -> None:
    net, x = new()
    y = linear(net, x)
    later = net("MatMul", y, net.weight(N, N))
    graph = net.graph(net("Add", net("Relu", y), later))
    optimized(graph)
    graph.check()
    assert_same(net, graph, FEEDS)


# ---- normalisation -----------------------------------------------------------------------


def layer_norm(net: Net, y: str, n: int = N) -> str:
    return net("LayerNormalization", y, net.weight(n), net.weight(n), epsilon=1e-12)


def test_a_residual_and_a_norm_after_a_product() -> None:
    net, x = new()
    y = net("Add", linear(net, x), net.input("r", "batch", "seq", N))
    graph = net.graph(layer_norm(net, y))
    trace = optimized(graph)
    region = only(graph, "FusedGemm")
    assert ops(graph) == ["FusedGemm"] and trace.applied()["gemm-norm"] == 1
    assert region.params.norm.kind == "layer" and not region.params.keep_sum
    assert_same(net, graph, FEEDS | extra_feed(net))


@pytest.mark.parametrize("output", [True, False])
def test_a_sum_others_read_is_kept(output: bool) -> None:
    net, x = new()
    y = linear(net, x)
    graph = net.graph(layer_norm(net, y), y if output else net("Softmax", y))
    optimized(graph, limits=APART)
    region = only(graph, "FusedGemm")
    assert region.params.keep_sum and region.results[1] == y
    assert_same(net, graph, FEEDS)


def test_an_rms_norm_after_a_product() -> None:
    net, x = new()
    y = linear(net, x, bias=False)
    scale = net("Reciprocal", net("Sqrt", net("Add", net.mean(net("Pow", y, 2.0)), 1e-6)))
    graph = net.graph(net("Mul", net.weight(N), net("Mul", y, scale)))
    optimized(graph)
    assert ops(graph) == ["FusedGemm"]
    epsilon = float(np.float32(1e-6))
    assert only(graph, "FusedGemm").params.norm == Norm("rms", epsilon, True, False)
    assert_same(net, graph, FEEDS)


def test_what_follows_a_norm_is_not_an_epilogue() -> None:
    net, x = new()
    graph = net.graph(net("Relu", layer_norm(net, linear(net, x))))
    optimized(graph, limits=APART)
    assert ops(graph) == ["FusedGemm", "FusedElementwise"]
    assert only(graph, "FusedGemm").params.epilogue is None
    assert_same(net, graph, FEEDS)


# ---- flattened rows ----------------------------------------------------------------------


def flattened(net: Net, x: str) -> tuple[str, str]:
    """A product over flattened rows, and the same unflattened, as exporters of Conv1D write it."""
    batch = net("Gather", net("Shape", x), net.const([0], np.int64))
    length = net("Gather", net("Shape", x), net.const([1], np.int64))
    flat = net("Reshape", x, net.ints(-1, 24))
    y = net("Gemm", flat, net.weight(24, N), net.weight(N))
    there = net("Concat", batch, length, net.ints(N), axis=0)
    return y, net("Reshape", y, there)


def test_rows_flattened_for_a_product_stay_as_they_are() -> None:
    net, x = new()
    graph = net.graph(net("Relu", flattened(net, x)[1]))
    optimized(graph)
    assert ops(graph) == ["FusedGemm"]
    assert graph.regions()[0].params.epilogue is not None
    assert_same(net, graph, FEEDS)


def test_a_flattened_product_that_others_read_stays() -> None:
    net, x = new()
    flat, y = flattened(net, x)
    graph = net.graph(net("Tanh", flat), y)
    trace = schedule_only(graph, gemm.Gemm(), gemm.GemmReshape())
    assert any("has other readers" in r for r in reasons(trace, "gemm-reshape"))


def test_a_product_that_is_an_output_beside_what_is_cast_of_it() -> None:
    """Both are results of the epilogue: its numbers and, stored as integers, the same numbers."""
    net, x = new()
    product = linear(net, x, bias=False)
    whole = net("Cast", product, to=DType.I64.onnx)
    graph = net.graph(product, whole)
    optimized(graph)
    region = only(graph, "FusedGemm")
    assert region.results == (whole, product)
    assert region.params.epilogue.result_types == (DType.I64, DType.F32)
    assert_same(net, graph, {"x": 9 * normal(2, 5, 24)})
