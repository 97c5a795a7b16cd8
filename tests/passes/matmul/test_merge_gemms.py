"""Q, K and V of one input become one product, or say why not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import (
    APART,
    Net,
    assert_same,
    evaluate,
    every_phase,
    normal,
    ops,
    optimized,
    reasons,
)

H, D = 3, 4


def projected(
    net: Net, widths: tuple[int, int, int] = (H * D * 4,) * 3, bias: bool = True, xs: str = "xxx"
) -> str:
    heads = []
    for i, (x, width) in enumerate(zip(xs, widths, strict=True)):
        value = net.input(x, "batch", "seq", 24)
        value = net("MatMul", value, net.weight(24, width))
        if bias:
            value = net("Add", value, net.weight(width))
        value = net("Reshape", value, net.ints(0, 0, H, width // H), name=f"split{i}")
        heads.append(net("Transpose", value, perm=[0, 2, 3, 1] if i == 1 else [0, 2, 1, 3]))
    p = net("Softmax", net("Div", net("MatMul", heads[0], heads[1]), 4.0))
    y = net("Transpose", net("MatMul", p, heads[2]), perm=[0, 2, 1, 3])
    return net("Reshape", y, net.ints(0, 0, widths[2]))


X = {"x": normal(2, 5, 24), "z": normal(2, 5, 24, seed=1)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [(48, 48, 48), (48, 48, 96)])
def test_three_projections_become_one(widths: tuple[int, int, int], bias: bool) -> None:
    net = Net()
    graph = net.graph(projected(net, widths, bias))
    trace = optimized(graph, limits=APART)
    assert trace.applied()["merge-qkv"] == 1
    assert ops(graph) == ["FusedGemm", "FusedAttention"]
    gemm, attention = graph.regions()
    assert gemm.params.n == sum(widths) and gemm.params.bias == bias
    assert attention.operands == gemm.results * 3
    assert attention.params.offsets == (0, widths[0], widths[0] + widths[1])
    assert attention.params.widths == (sum(widths),) * 3
    assert_same(net, graph, {"x": X["x"]})


def test_projections_to_fewer_heads_of_keys_become_one() -> None:
    net = Net()
    x, heads = net.input("x", 2, 5, 24), []
    for i, count in enumerate((8, 4, 4)):
        value = net("MatMul", x, net.weight(24, count * D))
        value = net(
            "Transpose", net("Reshape", value, net.ints(0, 0, count, D)), perm=[0, 2, 1, 3]
        )
        if i:
            value = net("Tile", net("Unsqueeze", value, net.ints(2)), net.ints(1, 1, 2, 1, 1))
            value = net("Reshape", value, net.ints(2, 8, 5, D))
        heads.append(value)
    scores = net("MatMul", heads[0], net("Transpose", heads[1], perm=[0, 1, 3, 2]))
    y = net("Transpose", net("MatMul", net("Softmax", scores), heads[2]), perm=[0, 2, 1, 3])
    graph = net.graph(net("Reshape", y, net.ints(2, 5, 8 * D)))
    optimized(graph, limits=APART)
    gemm, attention = graph.regions()
    assert gemm.params.n == 64 and attention.params.kv_heads == 4
    assert attention.params.offsets == (0, 32, 48)
    assert_same(net, graph, {"x": X["x"]})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda n: projected(n, xs="zxx"), "the projections read different inputs"),
        (
            lambda n: projected(n, (24, 24, 24)),
            "the projections' columns are not whole vectors, or only some have a bias",
        ),
    ],
)
def test_projections_that_stay_apart(make: Callable[[Net], str], reason: str) -> None:
    net = Net()
    graph = net.graph(make(net))
    trace = optimized(graph)
    assert reasons(trace, "merge-qkv") == {reason}
    assert_same(net, graph, {v: X[v] for v in graph.inputs})


def test_a_projection_others_read_stays() -> None:
    net = Net()
    y = projected(net)
    second = next(n.input[0] for n in net.nodes if n.output[0] == "split1")
    graph = net.graph(y, net("Softmax", second))
    trace = optimized(graph)
    assert reasons(trace, "merge-qkv") == {"a projection has other readers"}
    assert_same(net, graph, {"x": X["x"]})


def test_a_projection_with_an_activation_stays() -> None:
    net = Net()
    y = projected(net)
    at = next(i for i, n in enumerate(net.nodes) if n.output[0] == "split1")
    relu = net("Relu", net.nodes[at].input[0])
    net.nodes[at].input[0] = relu
    net.nodes.insert(at, net.nodes.pop())
    graph = net.graph(y)
    trace = optimized(graph)
    assert trace.applied().get("merge-qkv") is None
    assert_same(net, graph, {"x": X["x"]})


def test_plain_matrices_stay_apart() -> None:
    net = Net()
    graph = net.graph(projected(net))
    trace = optimized(graph, every_phase(prepack=False))
    assert "merge-qkv" not in trace.applied()
    assert np.isfinite(evaluate(graph, {"x": X["x"]})[0]).all()


# ---- any products ------------------------------------------------------------------------


@pytest.mark.parametrize("biases", [(True, True, True), (False, True, False), (False,) * 3])
def test_products_of_one_input_become_one(biases: tuple[bool, ...]) -> None:
    net = Net()
    x, results = net.input("x", "batch", "seq", 24), []
    for bias, n in zip(biases, (16, 48, 32), strict=True):
        y = net("MatMul", x, net.weight(24, n))
        results.append(net("Add", y, net.weight(n)) if bias else y)
    graph = net.graph(*results)
    trace = optimized(graph)
    assert trace.applied()["merge-gemms"] == 1
    (region,) = graph.regions()
    widths = dict(zip(region.results, region.params.splits, strict=True))
    assert widths == dict(zip(results, (16, 48, 32), strict=True))
    assert region.params.bias == any(biases)
    assert_same(net, graph, {"x": X["x"]})


def test_products_that_something_follows_stay_apart() -> None:
    net = Net()
    x = net.input("x", "batch", "seq", 24)
    parts = [net("MatMul", x, net.weight(24, n)) for n in (16, 16, 20)]
    graph = net.graph(net("Relu", parts[0]), *parts[1:])
    optimized(graph)
    assert ops(graph) == ["FusedGemm"] * 3
    assert_same(net, graph, {"x": X["x"]})


def test_products_merged_wait_for_no_other() -> None:
    net = Net()
    x = net.input("x", "batch", "seq", 24)
    first = net("MatMul", x, net.weight(24, 32))
    later = net("MatMul", first, net.weight(32, 24))
    graph = net.graph(net("MatMul", x, net.weight(24, 16)), later)
    optimized(graph)
    graph.check()
    assert_same(net, graph, {"x": X["x"]})
