"""Heads of batched matrices told apart, and scores gathered by relative positions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import (
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
from tracea_graph.passes.attention.unflatten_heads import UnflattenHeads
from tracea_graph.passes.layout.gather_elements import GATHER_ELEMENTS
from tracea_graph.rewrite import RulePass
from tracea_graph.ttg import TileGraph

H, D, SPAN = 4, 4, 6
LOWEST = float(np.finfo(np.float32).min)


def flattened(net: Net, value: str, heads: int = H) -> str:
    """``[B,S,H·D]`` as matrices ``[B·H,S,D]``, as exporters write sizes."""
    sizes = net("Shape", value)
    batch, rows = (net("Gather", sizes, net.const(i, np.int64), axis=0) for i in (0, 1))
    pieces = [net("Unsqueeze", v, net.ints(0)) for v in (batch, rows)]
    target = net("Concat", *pieces, net.ints(heads), net.ints(D), axis=0)
    turned = net("Transpose", net("Reshape", value, target), perm=[0, 2, 1, 3])
    flat = net("Concat", net.ints(-1), pieces[1], net.ints(D), axis=0)
    return net("Reshape", turned, flat)


def apart(net: Net, value: str, like: str) -> str:
    """``[B·H,S,T]`` with its heads apart again; sizes are those of ``like`` ``[B,S,…]``."""
    sizes = net("Shape", like)
    rows = net("Gather", sizes, net.ints(1), axis=0)
    return net("Reshape", value, net("Concat", net.ints(-1), net.ints(H), rows, rows, axis=0))


def repeated(net: Net, table: str, like: str) -> str:
    """One matrix for each head, for every item."""
    items = net("Gather", net("Shape", like), net.ints(0), axis=0)
    return net("Tile", table, net("Concat", items, net.ints(1, 1), axis=0))


def positions(net: Net, like: str, sign: float) -> str:
    """Clipped distances of queries and keys, ``[1,S,S]``, as indices from 0 on."""
    rows = net("Gather", net("Shape", like), net.const(1, np.int64), axis=0)
    line = net("Range", net.const(0, np.int64), rows, net.const(1, np.int64))
    far = net("Sub", net("Unsqueeze", line, net.ints(1)), net("Unsqueeze", line, net.ints(0)))
    far = net("Cast", net("Mul", net("Cast", far, to=1), sign), to=7)
    low, high = net.const(0, np.int64), net.const(2 * SPAN - 1, np.int64)
    near = net("Clip", net("Add", far, net.const(SPAN, np.int64)), low, high)
    return net("Unsqueeze", near, net.ints(0))


def gathered(net: Net, scores: str, places: str) -> str:
    """Scores ``[B·H,S,P]`` picked by positions that are repeated for every matrix."""
    sizes = net("Shape", places)
    tail = net("Gather", sizes, net.ints(1, 2), axis=0)
    lead = net("Gather", net("Shape", scores), net.ints(0), axis=0)
    index = net("Expand", places, net("Concat", lead, tail, axis=0))
    return net("GatherElements", scores, index, axis=-1)


def disentangled(fill: float = LOWEST) -> tuple[Net, TileGraph]:
    """DeBERTa's attention: content to position and position to content beside the scores."""
    net = Net()
    x = net.input("x", "batch", "seq", H * D)
    mask = net.input("mask", "batch", 1, 1, "seq", dtype=DType.BOOL)
    q, k, v = (net("MatMul", x, net.weight(H * D, H * D)) for _ in range(3))
    q, k, v = (flattened(net, y) for y in (q, k, v))
    keys = net("Div", net("Transpose", k, perm=[0, 2, 1]), 3.0)
    scores = net("MatMul", q, keys)
    tables = [repeated(net, net.weight(H, 2 * SPAN, D), x) for _ in range(2)]
    turned = [net("Transpose", t, perm=[0, 2, 1]) for t in tables]
    to_place = gathered(net, net("MatMul", q, turned[0]), positions(net, x, 1.0))
    from_place = gathered(net, net("MatMul", k, turned[1]), positions(net, x, -1.0))
    from_place = net("Transpose", from_place, perm=[0, 2, 1])
    bias = net("Add", net("Div", to_place, 3.0), net("Div", from_place, 3.0))
    scores = apart(net, net("Add", scores, bias), x)
    shares = net("Softmax", net("Where", mask, scores, fill), axis=-1)
    sizes = net("Concat", net.ints(-1), net("Gather", net("Shape", x), net.ints(1, 1)), axis=0)
    y = net("MatMul", net("Reshape", shares, sizes), v)
    lead = net("Gather", net("Shape", x), net.ints(0, 1), axis=0)
    rows = net("Gather", net("Shape", x), net.ints(1), axis=0)
    y = net("Reshape", y, net("Concat", net.ints(-1), net.ints(H), rows, net.ints(D), axis=0))
    y = net("Transpose", y, perm=[0, 2, 1, 3])
    return net, loaded(net, net("Reshape", y, net("Concat", lead, net.ints(H * D), axis=0)))


def feeds(rows: int = 9, kept: int = 6) -> dict[str, np.ndarray]:
    mask = np.broadcast_to(np.arange(rows) < kept, (2, 1, 1, rows))
    return {"x": normal(2, rows, H * D), "mask": np.ascontiguousarray(mask)}


@pytest.mark.parametrize("kept", [6, 0])
def test_disentangled_attention_is_one_program(kept: int) -> None:
    """With every key masked, all of them count alike, whatever the positions add."""
    net, graph = disentangled()
    optimized(graph)
    program = only(graph, "FusedRegion")
    words = [type(s.params).__name__ for s in program.params.steps]
    assert words.count("AttentionParams") == 1 and words.count("GatherElementsParams") == 2
    assert not {"GatherElements", "Tile", "Expand", "Softmax", "MatMul"} & set(ops(graph))
    assert_same(net, graph, feeds(kept=kept), 3e-5)


def test_a_mask_that_adds_nothing_absorbing_is_not_chosen_over_positions() -> None:
    net, graph = disentangled(fill=-1e4)
    trace = optimized(graph)
    assert reasons(trace, "attention") == {"a mask replaces scores that another mask has changed"}
    assert_same(net, graph, feeds(), 3e-5)


def test_heads_stay_together_where_the_product_has_other_readers() -> None:
    net = Net()
    x = net.input("x", "batch", "seq", H * D)
    q, k = (flattened(net, net("MatMul", x, net.weight(H * D, H * D))) for _ in range(2))
    scores = net("MatMul", q, net("Transpose", k, perm=[0, 2, 1]))
    graph = loaded(net, apart(net, scores, x), net("Relu", scores))
    trace = schedule_only(graph, UnflattenHeads())
    assert reasons(trace, "unflatten-heads") == {f"{scores!r} has other readers"}
    assert_same(net, graph, {"x": normal(2, 5, H * D)})


def test_what_has_no_heads_before_is_split_without_a_copy() -> None:
    """A mask that comes as matrices: no operator of the graph told its heads."""
    net = Net()
    x = net.input("x", "batch", "seq", H * D)
    q, k = (flattened(net, net("MatMul", x, net.weight(H * D, H * D))) for _ in range(2))
    scores = net("MatMul", q, net("Transpose", k, perm=[0, 2, 1]))
    lower = net("Trilu", scores, upper=0)  # of a batch of matrices
    graph = loaded(net, apart(net, net("Add", scores, lower), x))
    schedule_only(graph, UnflattenHeads())
    assert "Unsqueeze" in ops(graph) and "Trilu" in ops(graph)
    assert_same(net, graph, {"x": normal(2, 5, H * D)})


def test_elements_are_taken_by_repeated_indices_in_place() -> None:
    net = Net()
    x = net.input("x", "batch", H, "seq", 2 * SPAN)
    ids = net.ids("ids", 1, "seq", "keys")
    lead = net("Gather", net("Shape", x), net.ints(0, 1), axis=0)
    tail = net("Gather", net("Shape", ids), net.ints(1, 2), axis=0)
    index = net("Expand", ids, net("Concat", lead, tail, axis=0))
    graph = loaded(net, net("GatherElements", x, index, axis=3))
    schedule_only(graph, RulePass(GATHER_ELEMENTS))
    given = {"x": normal(2, H, 5, 2 * SPAN), "ids": np.arange(35).reshape(1, 5, 7) % 12}
    assert_same(net, graph, given)
    assert len([op for op in ops(graph) if op == "FusedGatherElements"]) == 1


def test_other_picks_stay() -> None:
    net = Net()
    x = net.input("x", 2, 3, 4)
    graph = loaded(net, net("GatherElements", x, net.ids("ids", 2, 3, 4), axis=1))
    trace = schedule_only(graph, RulePass(GATHER_ELEMENTS))
    assert reasons(trace, "gather-elements") == {"it does not gather along the last axis"}


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("mask", [("n", "seq", "keys"), (1, "seq", "keys"), ("seq", "keys")])
def test_matrices_without_heads_are_items_with_one(
    mask: tuple[str | int, ...], opset: int
) -> None:
    net = Net(opset)
    q, k = net.input("q", "n", "seq", D), net.input("k", "n", "keys", D)
    v = net.input("v", "n", "keys", H)
    scores = net("MatMul", net("Mul", q, 0.5), net("Transpose", k, perm=[0, 2, 1]))
    scores = net("Add", scores, net.input("m", *mask))
    graph = net.graph(net("MatMul", net("Softmax", scores, axis=2), v))
    optimized(graph)
    assert set(ops(graph)) <= {"FusedAttention", "Unsqueeze"}
    sizes = {"n": 3, "seq": 5, "keys": 7}
    shape = [sizes[d] if isinstance(d, str) else d for d in mask]
    given = {"q": normal(3, 5, D), "k": normal(3, 7, D), "v": normal(3, 7, H), "m": normal(*shape)}
    assert_same(net, graph, given)


def test_matrices_whose_keys_lie_by_columns_stay() -> None:
    net = Net()
    q, k = net.input("q", "n", "seq", D), net.input("k", "n", D, "keys")
    shares = net("Softmax", net("MatMul", q, k), axis=-1)
    graph = net.graph(net("MatMul", shares, net.input("v", "n", "keys", H)))
    assert reasons(optimized(graph), "attention") == {"an operand is not split into heads"}
