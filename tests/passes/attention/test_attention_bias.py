"""What is added to an attention's scores beside masks: slopes, relative positions, a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.graphs import Net, assert_same, loaded, normal, only, schedule_only
from tracea_graph import load
from tracea_graph.ir import DType
from tracea_graph.passes.attention.attention import Attention

H, D = 4, 4
LOWEST = float(np.finfo(np.float32).min)
SLOPES = 2.0 ** -np.arange(1, H + 1).reshape(H, 1, 1)
Bias = Callable[[Net, str], str]


def positions(net: Net, value: str) -> str:
    """0, 1, 2 … over the rows of q or k, as float32."""
    size = net("Gather", net("Shape", value), net.const(2, np.int64))
    return net("Cast", net("Range", net.const(0, np.int64), size, net.const(1, np.int64)), to=1)


def alibi_of_keys(net: Net, scores: str) -> str:
    """BLOOM: slope times the key's position, a row.s constant off the distance."""
    return net("Add", scores, net("Mul", net.const(SLOPES), positions(net, "k")))


def alibi_of_distances(net: Net, scores: str) -> str:
    """MPT: slope times −|i − j|."""
    rows = net("Unsqueeze", positions(net, "q"), net.ints(1))
    far = net("Abs", net("Sub", rows, positions(net, "k")))
    return net("Add", scores, net("Mul", net("Neg", far), net.const(SLOPES)))


def alibi_in_order(net: Net, scores: str) -> str:
    """The same under a causal mask."""
    biased = alibi_of_distances(net, scores)
    rows = net("Unsqueeze", positions(net, "q"), net.ints(1))
    keep = net("LessOrEqual", positions(net, "k"), rows)
    return net("Where", keep, biased, LOWEST)


def relative_table(net: Net, scores: str) -> str:
    """T5: a row of a table for every bucket of distances, turned so that heads come first."""
    rows = net("Unsqueeze", positions(net, "q"), net.ints(1))
    distance = net("Sub", positions(net, "k"), rows)
    bucket = net("Cast", net("Clip", net("Add", distance, 4.0), 0.0, 8.0), to=DType.I64.onnx)
    bias = net("Transpose", net("Gather", net.weight(9, H), bucket), perm=[2, 0, 1])
    return net("Add", scores, net("Unsqueeze", bias, net.ints(0)))


def given(net: Net, scores: str) -> str:
    """Swin: a bias per head that the graph is given."""
    return net("Add", scores, net.input("bias", 1, H, "seq", "keys"))


BIASES = {f.__name__: f for f in (
    alibi_of_keys, alibi_of_distances, alibi_in_order, relative_table, given
)}  # fmt: skip


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_of_scores_is_the_mask(name: str) -> None:
    net = Net(18)
    q, k, v = (net.input(x, "batch", H, n, D) for x, n in zip("qkv", ("seq", "keys", "keys"),
                                                              strict=True))  # fmt: skip
    scores = net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2]))
    weights = net("Softmax", BIASES[name](net, net("Mul", scores, D**-0.5)), axis=-1)
    y = net("Transpose", net("MatMul", weights, v), perm=[0, 2, 1, 3])
    graph = loaded(net, net("Reshape", y, net.ints(0, 0, H * D)))
    trace = schedule_only(graph, Attention())
    assert trace.applied() == {"attention": 1}, trace.misses()
    assert only(graph, "FusedAttention").params.mask == "add"
    sizes = {"q": (2, H, 5, D), "k": (2, H, 7, D), "v": (2, H, 7, D), "bias": (1, H, 5, 7)}
    assert_same(net, graph, {n: normal(*sizes[n], seed=i) for i, n in enumerate(net.inputs)})


@pytest.mark.parametrize("sign", ["Add", "Sub"])
@pytest.mark.parametrize("factors", [(0.5, 1.0), (1.0, 0.25), (0.3, 0.7)])
def test_what_is_added_before_scaling_is_scaled_too(
    sign: str, factors: tuple[float, float]
) -> None:
    """Transformer-XL, Conformer: two sums of scores, scaled together; masked by a difference."""
    net = Net()
    q, k, v, r = (net.input(x, "batch", 2, "seq", 8) for x in "qkvr")
    scores, places = (
        net("MatMul", q, net("Transpose", x, perm=[0, 1, 3, 2])) for x in (k, r)
    )  # fmt: skip
    scores = net("Add", net("Mul", scores, factors[0]), net("Relu", places))
    scores = net("Mul", scores, factors[1])
    scores = net(sign, scores, net("Mul", net.input("m", "batch", 1, 1, "seq"), 1e30))
    graph = net.graph(net("MatMul", net("Softmax", scores, axis=-1), v))
    trace = schedule_only(graph, Attention())
    assert trace.applied() == {"attention": 1}, trace.misses()
    feeds = {x: normal(2, 2, 5, 8, seed=i) for i, x in enumerate("qkvr")}
    masked = np.zeros((2, 1, 1, 5), np.float32)
    masked[0, ..., 3:] = 1 if sign == "Sub" else -1
    assert_same(net, graph, {**feeds, "m": masked})


def relative_shift(net: Net, scores: str, rows: int) -> str:
    """Row i of ``[B,H,S,2S−1]`` from column S − 1 − i on, as ESPnet and NeMo write it."""
    padded = net("Pad", scores, net.ints(0, 0, 0, 1, 0, 0, 0, 0))
    turned = net("Reshape", padded, net.ints(0, 0, 2 * rows, rows))
    below = net("Slice", turned, net.ints(1), net.ints(2**31), net.ints(2))
    again = net("Reshape", below, net.ints(0, 0, rows, 2 * rows - 1))
    return net("Slice", again, net.ints(0), net.ints(rows), net.ints(3))


@pytest.mark.parametrize("fill", [-1e4, -np.inf])
@pytest.mark.parametrize("keeps", [True, False])
def test_conformer_with_weights_zeroed_after_the_softmax(fill: float, keeps: bool) -> None:
    """Queries that are padding have no key left, and answer zero."""
    net, rows = Net(), 6
    q, k, v = (net.input(x, "batch", H, rows, D) for x in "qkv")
    places = net.const(normal(1, H, 2 * rows - 1, D, seed=9))
    content, position = (
        net("MatMul", net("Add", q, net.const(normal(H, 1, D, seed=seed))),
            net("Transpose", x, perm=[0, 1, 3, 2]))
        for seed, x in ((7, k), (8, places))
    )  # fmt: skip
    scores = net("Div", net("Add", content, relative_shift(net, position, rows)), D**0.5)
    mask = net.input("m", "batch", 1, rows, rows, dtype=DType.BOOL)

    def chosen(value: str, dropped: float) -> str:
        sides = (value, net.const(np.float32(dropped)))
        return net("Where", mask, *(sides if keeps else sides[::-1]))

    weights = chosen(net("Softmax", chosen(scores, fill), axis=-1), 0.0)
    graph = net.graph(net("MatMul", weights, v))
    trace = schedule_only(graph, Attention())
    assert trace.applied() == {"attention": 1}, trace.misses()
    assert only(graph, "FusedAttention").params.zero_rows == "masked"
    seen = np.arange(rows) < np.array([[6], [4]])
    kept = (seen[:, None] & seen[:, :, None])[:, None]
    feeds = {x: normal(2, H, rows, D, seed=i) for i, x in enumerate("qkv")}
    assert_same(net, graph, {**feeds, "m": kept if keeps else ~kept})


def test_conformer_of_any_length(tmp_path: Path) -> None:
    """The table of relative positions is cut about its centre, by the number of frames."""
    net, most = Net(), 16
    q, k, v = (net.input(x, "batch", H, "seq", D) for x in "qkv")
    count = net("Slice", net("Shape", q), net.ints(2), net.ints(3))
    table, ends = net.const(normal(1, H, 2 * most - 1, D, seed=9)), (net.ints(most),) * 2
    last = net("Sub", net("Add", ends[1], count), net.ints(1))
    places = net("Slice", table, net("Sub", ends[0], count), last, net.ints(2))
    content, position = (
        net("MatMul", q, net("Transpose", x, perm=[0, 1, 3, 2])) for x in (k, places)
    )
    sizes = net("Shape", position)
    padded = net("Pad", position, net.ints(0, 0, 0, 1, 0, 0, 0, 0))
    turned = net("Reshape", padded, net("Concat", net.ints(0, 0, -1), count, axis=0))
    shifted = net("Slice", turned, net.ints(1), net.ints(2**62), net.ints(2))
    shifted = net("Slice", net("Reshape", shifted, sizes), net.ints(0), count, net.ints(3))
    scores = net("Div", net("Add", content, shifted), D**0.5)
    y = net("MatMul", net("Softmax", scores, axis=-1), v)
    graph = load(net.save(tmp_path / "m.onnx", y))
    trace = schedule_only(graph, Attention())
    assert trace.applied() == {"attention": 1}, trace.misses()
    for seq in (1, 5, most):
        feeds = {x: normal(2, H, seq, D, seed=i) for i, x in enumerate("qkv")}
        assert_same(net, graph, feeds)


@pytest.mark.parametrize(
    ("fill", "after", "other"), [(-50.0, 0.0, False), (-1e4, 1.0, False), (-1e4, 0.0, True)]
)
def test_other_choices_after_a_softmax_are_kept(fill: float, after: float, other: bool) -> None:
    net = Net()
    q, k, v = (net.input(x, "batch", H, 6, D) for x in "qkv")
    mask, second = (net.input(x, "batch", 1, 1, 6, dtype=DType.BOOL) for x in "mn")
    scores = net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2]))
    weights = net("Softmax", net("Where", mask, scores, np.float32(fill)), axis=-1)
    weights = net("Where", second if other else mask, weights, np.float32(after))
    graph = net.graph(net("MatMul", weights, v), second)
    trace = schedule_only(graph, Attention())
    assert trace.applied() == {} and trace.misses()
