"""Operators that are several others are written out, and become what those become."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import (
    APART,
    Net,
    assert_same,
    loaded,
    normal,
    only,
    ops,
    optimized,
    reasons,
    schedule_only,
)
from tracea_graph.ir import DType
from tracea_graph.passes.decompose.decompose import Decompose

MS = "com.microsoft"
Write = Callable[[Net, str], str]


def norm(op: str, *weights: int, **attrs: float) -> Write:
    """A contributed norm of x + s with vectors of these sizes."""
    return lambda n, x: n(
        op, x, n.input("s", "batch", "seq", 16), *(n.weight(w) if w else "" for w in weights),
        domain=MS, **attrs,
    )  # fmt: skip


FORMS: dict[str, tuple[Write, int, set[str]]] = {
    "LayerNormalization over two axes": (
        lambda n, x: n("LayerNormalization", n("Reshape", x, n.ints(0, 0, 4, 4)),
                       n.weight(4, 4), n.weight(4, 4), axis=2),
        17, {"FusedNorm"},
    ),
    "the same without beta": (
        lambda n, x: n("LayerNormalization", n("Reshape", x, n.ints(0, 0, 4, 4)),
                       n.weight(4, 4), axis=-2, epsilon=1e-3),
        21, {"FusedNorm"},
    ),
    "LayerNormalization over everything, its weights computed": (
        lambda n, x: n("LayerNormalization", n("Reshape", x, n.ints(10, 16)),
                       n.input("g", 10, 16), n.input("b", 10, 16), axis=0),
        17, {"FusedNorm"},
    ),
    "RMSNormalization over two axes": (
        lambda n, x: n("RMSNormalization", n("Reshape", x, n.ints(0, 0, 4, 4)), n.weight(4, 4),
                       axis=2),
        23, {"FusedNorm"},
    ),
    "MeanVarianceNormalization": (
        lambda n, x: n("MeanVarianceNormalization", n("Unsqueeze", x, n.ints(1)), axes=[0, 2, 3]),
        13, {"FusedReduce", "FusedElementwise"},
    ),
    "MeanVarianceNormalization of the last axes": (
        lambda n, x: n("MeanVarianceNormalization", x, axes=[1, 2]),
        13, {"FusedReduce", "FusedElementwise"},
    ),
    "LpNormalization": (
        lambda n, x: n("LpNormalization", x), 17, {"FusedReduce", "FusedElementwise"}
    ),
    "LpNormalization, the 1-norm": (
        lambda n, x: n("LpNormalization", x, p=1, axis=1),
        17, {"FusedReduce", "FusedElementwise"},
    ),
    "SkipLayerNormalization": (
        norm("SkipLayerNormalization", 16, 16, epsilon=1e-5), 17, {"FusedNorm"}
    ),
    "SkipLayerNormalization with a bias": (
        norm("SkipLayerNormalization", 16, 16, 16), 14, {"FusedNorm"}
    ),
    "SkipSimplifiedLayerNormalization": (
        norm("SkipSimplifiedLayerNormalization", 16, epsilon=1e-6), 17, {"FusedNorm"}
    ),
    "SkipSimplifiedLayerNormalization with a bias": (
        norm("SkipSimplifiedLayerNormalization", 16, 16), 17, {"FusedNorm"}
    ),
    "Gelu": (lambda n, x: n("Gelu", x, domain=MS), 17, {"FusedElementwise"}),
    "BiasGelu": (
        lambda n, x: n("BiasGelu", x, n.weight(16), domain=MS), 17, {"FusedElementwise"}
    ),
    "FastGelu": (lambda n, x: n("FastGelu", x, domain=MS), 17, {"FusedElementwise"}),
    "FastGelu with a bias": (
        lambda n, x: n("FastGelu", x, n.weight(16), domain=MS), 17, {"FusedElementwise"}
    ),
    "QuickGelu": (
        lambda n, x: n("QuickGelu", x, alpha=1.5, domain=MS), 17, {"FusedElementwise"}
    ),
    "DequantizeLinear by channel": (
        lambda n, x: n("DequantizeLinear", n.input("q", "batch", 16, 5, dtype=DType.U8),
                       n.const(np.linspace(0.01, 0.1, 16)), n.const(np.arange(16), np.uint8)),
        17, {"FusedElementwise"},
    ),
    "DequantizeLinear by column": (
        lambda n, x: n("DequantizeLinear", n.input("q", "batch", 5, 16, dtype=DType.U8),
                       n.const(np.linspace(0.01, 0.1, 16)), axis=-1),
        19, {"FusedElementwise"},
    ),
}  # fmt: skip


def feeds(net: Net) -> dict[str, np.ndarray]:
    quantised = np.arange(160, dtype=np.uint8)
    every = {
        "x": normal(2, 5, 16), "s": normal(2, 5, 16, seed=1),
        "q": quantised.reshape(2, 16, 5), "g": normal(10, 16, seed=2), "b": normal(10, 16, seed=3),
    }  # fmt: skip
    if "q" in net.inputs and net.inputs["q"].type.tensor_type.shape.dim[1].dim_value == 5:
        every["q"] = quantised.reshape(2, 5, 16)
    return {name: every[name] for name in net.inputs}


@pytest.mark.parametrize("name", FORMS)
def test_an_operator_becomes_kernels(name: str) -> None:
    write, opset, words = FORMS[name]
    net = Net(opset)
    y = write(net, net.input("x", "batch", "seq", 16))
    graph = loaded(net, net("Neg", y))
    trace = optimized(graph)
    assert trace.applied()["decompose"] == 1, trace.misses()
    movement = {"Unsqueeze", "Reshape", "FusedElementwise"}
    assert words <= set(ops(graph)) <= words | movement, ops(graph)
    assert_same(net, graph, feeds(net), 5e-6)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_the_sum_of_a_skip_norm_is_a_second_result(op: str) -> None:
    net = Net()
    x, s = (net.input(v, "batch", "seq", 16) for v in "xs")
    y = net.many(op, 4, x, s, net.weight(16), domain=MS, name="y")
    graph = loaded(net, net("MatMul", y[0], net.weight(16, 16)), net("Neg", y[3]))
    trace = optimized(graph)
    assert trace.applied()["decompose"] == 1, trace.misses()
    assert ops(graph).count("FusedNorm") == 1
    assert_same(net, graph, feeds(net))


def test_zeros_over_their_norm_stay_zeros() -> None:
    net = Net()
    graph = loaded(net, net("LpNormalization", net.input("x", 2, 4)))
    optimized(graph)
    assert "FusedElementwise" in ops(graph)
    assert_same(net, graph, {"x": np.array([[0, 0, 0, 0], [3, 0, 4, 0]], np.float32)})


def test_the_bias_of_an_attention_goes_to_what_is_before_it() -> None:
    net = Net()
    x = net.input("x", "batch", "seq", 16)
    qkv = [net("MatMul", x, net.weight(16, 16)) for _ in range(3)]
    y = net("MultiHeadAttention", *qkv, net.weight(48), num_heads=2, domain=MS)
    net.graph(y)
    graph = loaded(net, y)
    assert schedule_only(graph, Decompose()).applied() == {"decompose": 1}
    assert len(only(graph, f"{MS}::MultiHeadAttention").operands) == 3
    optimized(graph, limits=APART)
    assert "FusedAttention" in ops(graph) and "Add" not in ops(graph), ops(graph)
    assert_same(net, graph, {"x": normal(2, 5, 16)})


MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 1, 0]], np.int32)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("op", ["Attention", "MultiHeadAttention"])
def test_contributed_attention_with_a_mask_of_keys(op: str, added: bool, masked: bool) -> None:
    net = Net()
    x = net.input("x", 3, 5, 8)
    mask = net.input("mask", 3, 5, dtype=DType.I32) if masked else ""
    more = net.input("added", 1, 2, 5, 5) if added else ""
    if op == "Attention":
        inputs = [x, net.weight(8, 24), net.weight(24), mask, "", more]
    else:
        inputs = [*(net("MatMul", x, net.weight(8, 8)) for _ in range(3)), net.weight(24), mask]
        inputs += [more]
    y = net(op, *inputs, num_heads=2, domain=MS)
    net.graph(y)
    graph = loaded(net, y)
    optimized(graph, limits=APART)
    assert "FusedAttention" in ops(graph), ops(graph)
    assert not any(name.startswith(MS) for name in ops(graph))
    feeds = {"x": normal(3, 5, 8), "mask": MASK, "added": normal(1, 2, 5, 5)}
    assert_same(net, graph, {k: v for k, v in feeds.items() if k in net.inputs})


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("masked", ["", "keys", "queries", "counts"])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("op", ["Attention", "MultiHeadAttention"])
def test_contributed_attention_with_a_cache_or_an_order(
    op: str, ordered: int, past: bool, masked: str, opset: int
) -> None:
    """A decoder of GPT-2's kind, as ONNX Runtime's own transformer tools write it."""
    if op == "MultiHeadAttention" and masked == "queries" and past:
        pytest.skip("ONNX Runtime wants a bias of scores there")
    net = Net(opset=opset)
    x = net.input("x", 3, "rows", 8)
    held = {"keys": ("every",), "queries": ("rows", "every"), "counts": ()}.get(masked)
    mask = "" if held is None else net.input("mask", 3, *held, dtype=DType.I32)
    if op == "Attention":
        cache = net.input("past", 2, 3, 2, "held", 4) if past else ""
        inputs, results = [x, net.weight(8, 24), net.weight(24), mask, cache], 1 + past
    else:
        inputs = [*(net("MatMul", x, net.weight(8, 8)) for _ in range(3)), net.weight(24), mask]
        inputs += ["", *(net.input(f"past_{x}", 3, 2, "held", 4) for x in "kv")] if past else []
        results = 1 + 2 * past
    ys = net.many(op, results, *inputs, num_heads=2, domain=MS, unidirectional=ordered)
    net.graph(*ys)
    graph = loaded(net, *ys)
    optimized(graph, limits=APART)
    assert "FusedAttention" in ops(graph), ops(graph)
    assert not any(name.startswith(MS) for name in ops(graph))
    every = 7 if past else 5
    feeds = {"x": normal(3, 5, 8), "past": normal(2, 3, 2, 2, 4, seed=1)}
    feeds |= {f"past_{x}": normal(3, 2, 2, 4, seed=i) for i, x in enumerate("kv")}
    feeds["mask"] = np.arange(every) < np.array([[every], [4], [6]])
    if masked == "queries":
        feeds["mask"] = np.repeat(feeds["mask"][:, None], 5, 1)
        feeds["mask"][:, 1, 0] = False
    feeds["mask"] = feeds["mask"].astype(np.int32)
    if masked == "counts":
        feeds["mask"] = feeds["mask"].sum(-1, dtype=np.int32)
    assert_same(net, graph, {k: v for k, v in feeds.items() if k in net.inputs})


@pytest.mark.parametrize("sizes", [(6,), (3, 1)])
def test_other_masks_of_an_attention_stay(sizes: tuple[int, ...]) -> None:
    """Ends and starts, and a mask that says nothing."""
    net = Net()
    mask = net.input("mask", *sizes, dtype=DType.I32)
    y = net("Attention", net.input("x", 3, 5, 8), net.weight(8, 24), net.weight(24), mask,
            num_heads=2, domain=MS)  # fmt: skip
    net.graph(y)
    trace = schedule_only(loaded(net, y), Decompose())
    assert reasons(trace, "decompose") == {"its mask does not hold one number for each key"}


def test_the_sizes_of_an_attention_s_projections_may_differ() -> None:
    net = Net()
    x = net.input("x", 2, 5, 8)
    y = net("Attention", x, net.weight(8, 20), net.weight(20), num_heads=2, domain=MS,
            qkv_hidden_sizes=[8, 8, 4])  # fmt: skip
    net.graph(y)
    graph = loaded(net, y)
    optimized(graph, limits=APART)
    assert "FusedAttention" in ops(graph), ops(graph)
    assert_same(net, graph, {"x": normal(2, 5, 8)})


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (
            lambda n, x: n.many("SkipLayerNormalization", 2, x, x, n.weight(16), domain=MS,
                                name="y"),
            "its result 'y_1' is used",
        ),
        (
            lambda n, x: (n("LayerNormalization", x, n.input("g", 16), axis=1),),
            "gamma or beta does not have the normalised shape",
        ),
        (
            lambda n, x: (n("MeanVarianceNormalization", n("Cast", x, to=11), axes=[2]),),
            "its operands are not float32",
        ),
    ],
)  # fmt: skip
def test_what_is_not_known_stays(
    write: Callable[[Net, str], tuple[str, ...]], reason: str
) -> None:
    net = Net()
    graph = net.graph(*write(net, net.input("x", 2, 5, 16)))
    assert reasons(schedule_only(graph, Decompose()), "decompose") == {reason}


def test_a_bias_beside_keys_by_heads_is_that_of_queries() -> None:
    """Cross-attention of a decoder to keys that were computed once, as Whisper's."""
    net = Net()
    q, *kv = net.input("q", 2, 5, 8), *(net.input(x, 2, 2, 7, 4) for x in "kv")
    y = net("MultiHeadAttention", q, *kv, net.weight(24), num_heads=2, domain=MS)
    net.graph(y)
    graph = loaded(net, y)
    optimized(graph, limits=APART)
    assert "FusedAttention" in ops(graph), ops(graph)
    given = {"q": normal(2, 5, 8)} | {x: normal(2, 2, 7, 4, seed=i) for i, x in enumerate("kv", 1)}
    assert_same(net, graph, given)
