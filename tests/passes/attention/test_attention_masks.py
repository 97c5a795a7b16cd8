"""Masks of an attention: what is proved to be an order, how several become one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import Net, assert_same, loaded, normal, only, ops, reasons, schedule_only
from tracea_graph.ir import DType
from tracea_graph.passes.attention.attention import Attention
from tracea_graph.ttg import TileGraph

H, D = 2, 4
LOWEST = float(np.finfo(np.float32).min)
Masking = Callable[[Net, str], str]


def attention(net: Net, mask: Masking, past: bool = False) -> str:
    """q, k, v by heads; with ``past``, keys are cached ones and new ones."""
    q = net.input("q", "batch", H, "seq", D)
    k, v = (net.input(x, "batch", H, "seq", D) for x in "kv")
    if past:
        k, v = (
            net(
                "Concat",
                net.input(f"past_{x}", "batch", H, "past", D),
                x,
                axis=-2,
                name=f"all_{x}",
            )
            for x in (k, v)
        )
    scores = net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2]), name="scores")
    p = net("Softmax", mask(net, net("Div", scores, 2.0)), axis=-1)
    return net("MatMul", p, v)


def size(net: Net, value: str, axis: int) -> str:
    return net("Gather", net("Shape", value), net.const(axis, np.int64))


def count(net: Net, end: str, start: str = "") -> str:
    return net("Range", start or net.const(0, np.int64), end, net.const(1, np.int64))


def rows(net: Net) -> str:
    """Positions of the queries, [S,1]."""
    return net("Reshape", count(net, size(net, "q", 2)), net.ints(-1, 1))


def later_rows(net: Net) -> str:
    """The same behind a cache."""
    past = size(net, "past_k", 2)
    total = net("Add", past, size(net, "q", 2))
    return net("Unsqueeze", count(net, total, past), net.ints(1))


def columns(net: Net, past: bool = False) -> str:
    total = size(net, "q", 2)
    if past:
        total = net("Add", size(net, "past_k", 2), total)
    return count(net, total)


def lessorequal(net: Net, scores: str) -> str:
    return net("Where", net("LessOrEqual", columns(net), rows(net)), scores, LOWEST)


def greater(net: Net, scores: str) -> str:
    return net("Where", net("Greater", columns(net), rows(net)), LOWEST, scores)


def less_added(net: Net, scores: str) -> str:
    """CLIP: Where(j < i + 1, 0, full of lowest)"""
    n = net("Unsqueeze", size(net, "q", 2), net.ints(0))
    full = net("Expand", net.const([[LOWEST]]), net("Concat", n, n, axis=0))
    before = net("Less", columns(net), net("Add", rows(net), net.const(1, np.int64)))
    return net("Add", scores, net("Where", before, 0.0, full))


def not_less(net: Net, scores: str) -> str:
    keep = net("Not", net("Less", rows(net), columns(net)))
    return net("Where", net("Expand", keep, net("Shape", scores)), scores, -np.inf)


def triangle(net: Net, scores: str) -> str:
    """GPT-2: a constant triangle cut to size."""
    whole = net.const(np.tri(16, dtype=bool)[None, None], bool)
    n = net("Unsqueeze", size(net, "q", 2), net.ints(0))
    cut = net("Slice", whole, net.ints(0), n, net.ints(2), net.ints(1))
    cut = net("Slice", cut, net.ints(0), n, net.ints(3), net.ints(1))
    return net("Where", cut, scores, LOWEST)


def trilu(net: Net, scores: str) -> str:
    n = net("Unsqueeze", size(net, "q", 2), net.ints(0))
    full = net("Expand", net.const([[-np.inf]]), net("Concat", n, n, axis=0))
    upper = net("Trilu", full, net.const(1, np.int64), upper=1)
    return net("Add", net("Unsqueeze", upper, net.ints(0)), scores)


def with_true(net: Net, scores: str) -> str:
    keep = net("And", net.const(True, bool), net("LessOrEqual", columns(net), rows(net)))
    return net("Where", keep, scores, LOWEST)


ORDERS = {f.__name__: f for f in
          (lessorequal, greater, less_added, not_less, triangle, trilu, with_true)}  # fmt: skip


def recognised(
    mask: Masking, past: bool = False, extra: tuple[str, ...] = ()
) -> tuple[Net, TileGraph]:
    net = Net(18)
    graph = loaded(net, attention(net, mask, past), *extra)
    trace = schedule_only(graph, Attention())
    assert trace.applied() == {"attention": 1}, trace.misses()
    return net, graph


def feeds(net: Net, past: int = 3, seq: int = 5) -> dict[str, np.ndarray]:
    sizes = {"batch": 2, "seq": seq, "past": past, "keys": past + seq}
    result = {}
    for i, (name, info) in enumerate(net.inputs.items()):
        tensor = info.type.tensor_type
        shape = [sizes.get(d.dim_param, d.dim_value) for d in tensor.shape.dim]
        draw = normal(*shape, seed=i)
        result[name] = draw > -0.7 if tensor.elem_type == DType.BOOL.onnx else draw
    return result


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_is_proved(name: str) -> None:
    net, graph = recognised(ORDERS[name])
    region = only(graph, "FusedAttention")
    assert region.params.causal in ("top", "bottom") and region.params.mask == "none"
    assert region.operands == ("q", "k", "v") and ops(graph) == ["FusedAttention"]
    assert_same(net, graph, feeds(net))


def cached(net: Net, scores: str) -> str:
    return net("Where", net("LessOrEqual", columns(net, True), later_rows(net)), scores, LOWEST)


def test_an_order_behind_a_cache_ends_with_the_last_key() -> None:
    net, graph = recognised(cached, past=True, extra=("all_k", "all_v"))
    region = only(graph, "FusedAttention")
    assert region.params.causal == "bottom" and region.operands == ("q", "all_k", "all_v")
    assert ops(graph).count("Concat") == 2  # the cache stays: it is an output
    assert_same(net, graph, feeds(net))


def test_an_order_from_the_first_key_on() -> None:
    def mask(net: Net, scores: str) -> str:
        return net("Where", net("LessOrEqual", columns(net, True), rows(net)), scores, LOWEST)

    net, graph = recognised(mask, past=True)
    assert only(graph, "FusedAttention").params.causal == "top"
    assert_same(net, graph, feeds(net))


# ---- what is no order stays a mask -------------------------------------------------------


def shifted(net: Net, scores: str) -> str:
    keep = net("LessOrEqual", columns(net), net("Add", rows(net), net.const(2, np.int64)))
    return net("Where", keep, scores, LOWEST)


def backwards(net: Net, scores: str) -> str:
    return net("Where", net("GreaterOrEqual", columns(net), rows(net)), scores, LOWEST)


def from_outside(net: Net, scores: str) -> str:
    positions = net("Unsqueeze", net.ids("ids", "seq"), net.ints(1))
    return net("Where", net("LessOrEqual", columns(net), positions), scores, LOWEST)


def no_triangle(net: Net, scores: str) -> str:
    holes = np.tri(16, dtype=bool)
    holes[7, 2] = False
    n = net("Unsqueeze", size(net, "q", 2), net.ints(0))
    cut = net("Slice", net.const(holes, bool), net.ints(0), n, net.ints(0), net.ints(1))
    cut = net("Slice", cut, net.ints(0), n, net.ints(1), net.ints(1))
    return net("Where", cut, scores, LOWEST)


@pytest.mark.parametrize("mask", [shifted, backwards, from_outside, no_triangle])
def test_what_is_no_order_stays_a_mask(mask: Masking) -> None:
    net, graph = recognised(mask)
    params = only(graph, "FusedAttention").params
    assert params.causal == "none" and params.mask == "bool"
    given = feeds(net)
    if "ids" in given:
        given["ids"] = np.array([0, 3, 1, 4, 2])
    assert_same(net, graph, given)


# ---- several masks -----------------------------------------------------------------------


def padding(net: Net) -> str:
    return net.input("m", "batch", 1, 1, "seq", dtype=DType.BOOL)


def together(net: Net, scores: str) -> str:
    keep = net("And", net("LessOrEqual", columns(net), rows(net)), padding(net))
    return net("Add", scores, net("Where", keep, 0.0, LOWEST))


def test_order_and_padding_in_one_condition() -> None:
    net, graph = recognised(together)
    region = only(graph, "FusedAttention")
    assert region.params.causal != "none" and region.operands[3] == "m"
    given = feeds(net)
    given["m"][..., 0] = False  # the first query has no key left
    assert_same(net, graph, given)


def one_after_another(net: Net, scores: str) -> str:
    """GPT-2: an order by Where, then padding added."""
    kept = net("Cast", padding(net), to=DType.F32.onnx)
    return net("Add", triangle(net, scores), net("Mul", net("Sub", 1.0, kept), LOWEST))


def hoisted(net: Net, scores: str) -> str:
    """Both masks summed first, for all layers."""
    keep = net("LessOrEqual", columns(net), rows(net))
    order = net("Unsqueeze", net("Where", keep, 0.0, LOWEST), net.ints(0))
    bias = net.input("b", 1, H, "seq", "seq")
    return net("Add", scores, net("Add", order, bias))


@pytest.mark.parametrize("mask", [one_after_another, hoisted])
def test_an_order_beside_a_sum(mask: Masking) -> None:
    net, graph = recognised(mask)
    params = only(graph, "FusedAttention").params
    assert params.causal != "none" and params.mask == "add"
    given = feeds(net)
    if "m" in given:
        given["m"][0, ..., 0] = False  # queries that see masked keys only
        given["m"][1, ..., :3] = False
    assert_same(net, graph, given)


def two_sums(net: Net, scores: str) -> str:
    scores = net("Add", scores, net.input("a", 1, H, "seq", "seq"))
    return net("Add", scores, net.input("b", "batch", 1, 1, "seq"))


def sum_and_condition(net: Net, scores: str) -> str:
    scores = net("Where", padding(net), scores, -np.inf)
    return net("Add", scores, net.input("b", 1, H, "seq", "seq"))


def two_conditions(net: Net, scores: str) -> str:
    scores = net("Where", padding(net), scores, LOWEST)
    return net("Where", net.input("n", "seq", "seq", dtype=DType.BOOL), scores, LOWEST)


@pytest.mark.parametrize(
    ("mask", "kind"), [(two_sums, "add"), (sum_and_condition, "add"), (two_conditions, "bool")]
)
def test_two_masks_become_one(mask: Masking, kind: str) -> None:
    net, graph = recognised(mask)
    region = only(graph, "FusedAttention")
    assert region.params.mask == kind and len(region.operands) == 4
    given = feeds(net)
    for name in ("m", "n"):
        if name in given:
            given[name][..., 0] = True
    assert_same(net, graph, given)


def slopes(net: Net, scores: str) -> str:
    """ALiBi beside order and padding in one condition."""
    return together(net, net("Add", scores, net.input("b", "batch", H, 1, "seq")))


def test_order_and_padding_in_one_condition_beside_a_sum() -> None:
    net, graph = recognised(slopes)
    params = only(graph, "FusedAttention").params
    assert params.causal == "none" and params.mask == "add"
    given = feeds(net)
    given["m"][0, ..., :2] = False  # the first queries have no key left
    given["m"][1, ..., 2:] = False
    assert_same(net, graph, given)


def mixed(net: Net, scores: str) -> str:
    keep = net("And", net("LessOrEqual", columns(net), rows(net)), padding(net))
    scores = net("Where", keep, scores, LOWEST)
    return net("Add", scores, net.input("b", "batch", 1, 1, "seq"))


def added_to_a_number(net: Net, scores: str) -> str:
    """Where a row has no key left, what is added decides, and no score does."""
    scores = net("Where", padding(net), scores, -1e4)
    return net("Add", scores, net.input("b", 1, H, "seq", "seq"))


INTERFERING = {
    mixed: "a condition that includes causality replaces scores that have another mask",
    added_to_a_number: "one mask is added to scores, and another one overwrites scores",
}


@pytest.mark.parametrize("mask", INTERFERING)
def test_masks_that_cannot_be_told_apart_are_a_reason(mask: Masking) -> None:
    net = Net(18)
    graph = loaded(net, attention(net, mask))
    trace = schedule_only(graph, Attention())
    assert reasons(trace, "attention") == {INTERFERING[mask]}


@pytest.mark.parametrize("opset", [10, 11])
def test_an_order_needs_an_opset_whose_bodies_can_count(opset: int) -> None:
    """Range came with opset 11; a constant triangle says the same without it."""

    def triangle(net: Net, scores: str) -> str:
        keep = net.const(np.tri(5, dtype=bool), bool)
        return net("Where", keep, scores, net.const(LOWEST))

    net = Net(opset)
    q, k, v = (net.input(x, "batch", H, 5, D) for x in "qkv")
    scores = net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2]))
    p = net("Softmax", triangle(net, net("Div", scores, net.const(2.0))), axis=3)
    graph = loaded(net, net("MatMul", p, v))
    trace = schedule_only(graph, Attention())
    if opset < 11:
        assert reasons(trace, "attention") == {
            "its function body needs Range, which requires opset 11"
        }
    else:
        assert only(graph, "FusedAttention").params.causal != "none"
    assert_same(net, graph, feeds(net))
