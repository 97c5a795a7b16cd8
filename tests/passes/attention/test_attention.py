"""Attention as exporters write it: what is recognised, what is not and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, only, ops, reasons, schedule_only
from tracea_graph.ir import DType
from tracea_graph.passes.attention.attention import Attention
from tracea_graph.ttg import TileGraph

H, D = 3, 4
LOWEST = float(np.finfo(np.float32).min)
Masking = Callable[[Net, str], str]


@dataclass(frozen=True)
class Spelling:
    """One exporter's way; every field is a choice it makes."""

    scale: str = "Div scores"
    keys: str = "one step"
    mask: Masking | None = None
    guard: bool = False
    opset: int = 17
    heads: int = H
    axis: int = -1

    def build(self, net: Net) -> str:
        q, k, v = (self.split(net, net.input(x, "batch", n, H * D), x)
                   for x, n in zip("qkv", ("seq", "keys", "keys"), strict=True))  # fmt: skip
        if self.scale == "Mul q and k":
            q, k = net("Mul", q, D**-0.25), net("Mul", k, D**-0.25)
        elif self.scale == "Div q":
            q = net("Div", q, sqrt(D))
        scores = net("MatMul", q, k)
        if self.scale == "Div scores":
            scores = net("Div", scores, sqrt(D))
        elif self.scale == "Mul scores":
            scores = net("Mul", scores, D**-0.5)
        if self.mask:
            scores = self.mask(net, scores)
        p = net("Softmax", scores, axis=self.axis, name="p")
        if self.guard:
            p = net("Where", net("IsNaN", p), 0.0, p)
        y = net("Transpose", net("MatMul", p, v), perm=[0, 2, 1, 3], name="turned")
        return net("Reshape", y, net.ints(0, 0, H * D), name="y")

    def split(self, net: Net, x: str, which: str) -> str:
        x = net("Reshape", x, net.ints(0, 0, H, D))
        if which != "k":
            return net("Transpose", x, perm=[0, 2, 1, 3])
        if self.keys == "one step":
            return net("Transpose", x, perm=[0, 2, 3, 1])
        x = net("Transpose", x, perm=[0, 2, 1, 3])
        return net("Transpose", x, perm=[0, 1, 3, 2])


def additive(net: Net, scores: str) -> str:
    return net("Add", scores, net.input("m", "batch", 1, 1, "keys"))


def computed(net: Net, scores: str) -> str:
    """(1 − Cast(mask))·lowest, as BERT's exporters write it."""
    kept = net("Cast", net.ids("m", "batch", 1, 1, "keys"), to=DType.F32.onnx)
    return net("Add", net("Mul", net("Sub", 1.0, kept), LOWEST), scores)


def boolean(net: Net) -> str:
    return net.input("m", "batch", 1, "seq", "keys", dtype=DType.BOOL)


def where_keep(net: Net, scores: str) -> str:
    return net("Where", boolean(net), scores, LOWEST)


def where_mild(net: Net, scores: str) -> str:
    return net("Where", boolean(net), scores, 0.25)


def where_drop(net: Net, scores: str) -> str:
    return net("Where", net("Not", boolean(net)), LOWEST, scores)


def added_where(fill: float) -> Masking:
    return lambda n, scores: n("Add", scores, n("Where", boolean(n), 0.0, fill))


def added_where_drop(net: Net, scores: str) -> str:
    return net("Add", scores, net("Where", net("Not", boolean(net)), LOWEST, 0.0))


def feeds(net: Net, empty_row: bool = False) -> dict[str, np.ndarray]:
    result = {x: normal(2, 5 if x == "q" else 6, H * D, seed=i) for i, x in enumerate("qkv")}
    if "m" not in net.inputs:
        return result
    tensor = net.inputs["m"].type.tensor_type
    sizes = {"batch": 2, "seq": 5, "keys": 6}
    shape = [sizes.get(d.dim_param, d.dim_value) for d in tensor.shape.dim]
    keep = np.random.default_rng(1).random(shape) < 0.6
    keep[..., 2] = True
    if empty_row:
        keep[1] = False
    kinds: dict[int, Any] = {
        DType.BOOL.onnx: keep, DType.I64.onnx: keep.astype(np.int64),
        DType.F32.onnx: np.where(keep, np.float32(0), np.float32(LOWEST)),
    }  # fmt: skip
    return result | {"m": kinds[tensor.elem_type]}


PLAIN = Spelling()
SPELLINGS = {
    "no mask": PLAIN,
    "scale by Mul": replace(PLAIN, scale="Mul scores"),
    "scale on q": replace(PLAIN, scale="Div q"),
    "scale on q and k": replace(PLAIN, scale="Mul q and k", keys="two steps"),
    "no scale": replace(PLAIN, scale="none"),
    "keys turned in two steps": replace(PLAIN, keys="two steps"),
    "additive mask": replace(PLAIN, mask=additive),
    "computed mask": replace(PLAIN, mask=computed),
    "boolean mask, true keeps": replace(PLAIN, mask=where_keep),
    "boolean mask, true drops": replace(PLAIN, mask=where_drop),
    "boolean mask, scores on both sides of its number": replace(PLAIN, mask=where_mild),
    "additive Where": replace(PLAIN, mask=added_where(LOWEST)),
    "additive Where of −∞": replace(PLAIN, mask=added_where(-np.inf)),
    "additive Where, true drops": replace(PLAIN, mask=added_where_drop),
    "guarded": replace(PLAIN, guard=True),
    "guarded, additive Where": replace(PLAIN, guard=True, mask=added_where(LOWEST)),
    "guarded, boolean mask": replace(PLAIN, guard=True, mask=where_keep),
    "guarded, −1e4": replace(PLAIN, guard=True, mask=added_where(-1e4)),
    "axis 3": replace(PLAIN, axis=3),
    "opset 11": replace(PLAIN, opset=11, axis=3, mask=additive),
}


def recognised(spelling: Spelling) -> tuple[Net, TileGraph]:
    net = Net(spelling.opset)
    graph = net.graph(spelling.build(net))
    trace = schedule_only(graph, Attention())
    assert trace.applied() == {"attention": 1} and not trace.misses()
    return net, graph


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_attention(name: str) -> None:
    net, graph = recognised(SPELLINGS[name])
    region = only(graph, "FusedAttention")
    scale = 1.0 if name == "no scale" else D**-0.5
    assert set(ops(graph)) <= {"FusedAttention", "Not", "Cast", "Sub", "Mul", "Where"}
    assert region.operands[:3] == ("q", "k", "v") and region.results == ("y",)
    assert (region.params.heads, region.params.head, region.params.head_v) == (H, D, D)
    assert region.params.scale == pytest.approx(scale, rel=1e-6)
    assert region.params.widths == (H * D,) * 3 and region.params.offsets == (0, 0, 0)
    assert_same(net, graph, feeds(net))


KINDS = {
    "no mask": ("none", ()),
    "additive mask": ("add", ("m",)),
    "boolean mask, true keeps": ("bool", ("m",)),
    "additive Where": ("bool", ("m",)),
    "boolean mask, true drops": ("bool", ("m",)),
    "additive Where, true drops": ("bool", ("m",)),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_mask_is_read_where_it_comes_from(name: str) -> None:
    _, graph = recognised(SPELLINGS[name])
    region = only(graph, "FusedAttention")
    assert (region.params.mask, region.operands[3:]) == KINDS[name]


EMPTY = [
    "computed mask", "boolean mask, true keeps", "boolean mask, true drops", "additive Where",
    "guarded, additive Where", "guarded, boolean mask", "guarded, −1e4",
]  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_a_row_masked_throughout_keeps_its_meaning(name: str) -> None:
    net, graph = recognised(SPELLINGS[name])
    assert_same(net, graph, feeds(net, empty_row=True), 1e-3 if "1e4" in name else 1e-5)


def test_an_expanded_mask_is_read_before_it_is_expanded() -> None:
    def mask(net: Net, scores: str) -> str:
        kept = net.input("m", "batch", 1, 1, "keys", dtype=DType.BOOL)
        return net("Where", net("Expand", kept, net("Shape", scores)), scores, LOWEST)

    net, graph = recognised(replace(PLAIN, mask=mask))
    assert ops(graph) == ["FusedAttention"]
    assert only(graph, "FusedAttention").operands[3] == "m"
    assert_same(net, graph, feeds(net))


# ---- keys turned as matrices, sizes computed from shapes ---------------------------------


def test_keys_turned_as_matrices() -> None:
    @dataclass(frozen=True)
    class Matrices(Spelling):
        def split(self, net: Net, x: str, which: str) -> str:
            x = net("Reshape", x, net.ints(0, 0, H, D))
            x = net("Transpose", x, perm=[0, 2, 1, 3])
            if which != "k":
                return x
            flat = net("Transpose", net("Reshape", x, net.ints(-1, 6, D)), perm=[0, 2, 1])
            return net("Reshape", flat, net.ints(2, H, D, 6))

    net = Net()
    for name, size in (("q", 5), ("k", 6), ("v", 6)):
        net.input(name, 2, size, H * D)
    net.input = lambda name, *_, **__: name  # type: ignore[method-assign]
    graph = net.graph(Matrices().build(net))
    trace = schedule_only(graph, Attention())
    assert ops(graph) == ["FusedAttention"], trace.misses()
    assert_same(net, graph, feeds(net))


def sized(net: Net, x: str, *tail: int, axes: tuple[int, ...] = (0, 1)) -> str:
    """Concat(Shape(x)[axes], tail), as exporters compute the sizes of a Reshape."""
    sizes = net("Shape", x)
    parts = [net("Unsqueeze", net("Gather", sizes, net.const(a, np.int64)), net.ints(0))
             for a in axes]  # fmt: skip
    return net("Concat", *parts, net.ints(*tail), axis=0)


def test_sizes_computed_for_it_alone_go_with_it() -> None:
    @dataclass(frozen=True)
    class Sized(Spelling):
        def split(self, net: Net, x: str, which: str) -> str:
            x = net("Reshape", x, sized(net, x, H, D), name=f"{which}_split")
            return net("Transpose", x, perm=[0, 2, 3, 1] if which == "k" else [0, 2, 1, 3])

        def build(self, net: Net) -> str:
            super().build(net)
            net.nodes.pop()
            return net("Reshape", "turned", sized(net, "turned", H * D), name="y")

    net = Net()
    graph = net.graph(Sized().build(net))
    trace = schedule_only(graph, Attention())
    assert ops(graph) == ["FusedAttention"], trace.misses()
    assert_same(net, graph, feeds(net))


def test_sizes_shared_with_others_stay() -> None:
    @dataclass(frozen=True)
    class Shared(Spelling):
        def split(self, net: Net, x: str, which: str) -> str:
            if which != "q":
                return super().split(net, x, which)
            sizes.append(sized(net, x, H, D))
            x = net("Reshape", x, sizes[0])
            return net("Transpose", x, perm=[0, 2, 1, 3])

    net, sizes = Net(), list[str]()
    graph = net.graph(Shared().build(net), net("Neg", sizes[0]))
    schedule_only(graph, Attention())
    assert {"FusedAttention", "Concat", "Shape"} <= set(ops(graph))
    assert_same(net, graph, feeds(net))


def test_heads_others_read_unmerged_are_merged_outside() -> None:
    net = Net()
    y = PLAIN.build(net)
    graph = net.graph(y, net("Exp", "turned"))
    schedule_only(graph, Attention())
    region = only(graph, "FusedAttention")
    assert region.results == ("turned",) and region.params.layouts[3] == "split"
    assert ops(graph) == ["FusedAttention", "Reshape", "Exp"]
    assert_same(net, graph, feeds(net))


def test_heads_nobody_merges_stay_heads() -> None:
    net = Net()
    PLAIN.build(net)
    del net.nodes[-2:]
    graph = net.graph(net.nodes[-1].output[0])
    schedule_only(graph, Attention())
    assert only(graph, "FusedAttention").params.layouts[3] == "heads"
    assert_same(net, graph, feeds(net))


# ---- misses ------------------------------------------------------------------------------


def scaled_after(net: Net, scores: str) -> str:
    return net("Mul", net("Where", boolean(net), scores, LOWEST), 0.5)


def replaced_after(net: Net, scores: str) -> str:
    kept = net.input("n", "batch", 1, 1, "keys", dtype=DType.BOOL)
    return net("Where", kept, additive(net, scores), -1e4)


def tall(net: Net, scores: str) -> str:
    return net("Add", scores, net.input("m", "batch", 1, "seq", 1))


def foreign(net: Net, scores: str) -> str:
    return net("Add", scores, net.input("m", 1, 1, 1, "others"))


def no_fill(net: Net, scores: str) -> str:
    return net("Where", boolean(net), scores, np.inf)


def unknown_fill(net: Net, scores: str) -> str:
    return net("Where", boolean(net), scores, net.input("n"))


GUARDED = {
    "−∞": added_where(-np.inf),
    "a mask from outside": additive,
    "a computed mask": computed,
}
MISSES = {
    "masked, then scaled": (
        replace(PLAIN, mask=scaled_after),
        "a mask is added to the scores before they are scaled",
    ),
    "replaced where another mask was added": (
        replace(PLAIN, mask=replaced_after),
        "a mask replaces scores that another mask has changed",
    ),
    "another axis": (replace(PLAIN, axis=2), "the Softmax is not over the last axis"),
    "the default axis of opset 11": (
        replace(PLAIN, opset=11, axis=1),
        "the Softmax is not over the last axis",
    ),
    "an infinite fill": (
        replace(PLAIN, mask=no_fill),
        "a boolean mask replaces scores by NaN or +inf",
    ),
    "an unknown fill": (
        replace(PLAIN, mask=unknown_fill),
        "a boolean mask does not replace scores by a constant",
    ),
    "a mask per query": (
        replace(PLAIN, mask=tall),
        "the mask does not vary over the keys",
    ),
    "a mask over something else": (
        replace(PLAIN, mask=foreign),
        "the mask f32[1,1,1,others] does not provably broadcast to [batch,3,seq,keys]",
    ),
}


@pytest.mark.parametrize("name", MISSES)
def test_what_is_missed_says_why(name: str) -> None:
    spelling, reason = MISSES[name]
    net = Net(spelling.opset)
    graph = net.graph(spelling.build(net))
    trace = schedule_only(graph, Attention())
    assert reasons(trace, "attention") == {reason}
    assert "FusedAttention" not in ops(graph)


@pytest.mark.parametrize("name", GUARDED)
def test_a_guard_counts_where_rows_may_be_empty(name: str) -> None:
    net, graph = recognised(replace(PLAIN, guard=True, mask=GUARDED[name]))
    assert only(graph, "FusedAttention").params.zero_rows == "guarded"
    given = feeds(net, empty_row=name == "−∞")
    assert name != "−∞" or not net.run(given)[0][1].any()
    assert_same(net, graph, given)


def test_a_guard_counts_for_scores_that_are_nan_or_infinite() -> None:
    """Rows of such weights become zeros where the mask leaves every row a key, too."""
    net, graph = recognised(SPELLINGS["guarded, −1e4"])
    assert only(graph, "FusedAttention").params.zero_rows == "guarded"
    given = feeds(net)
    given["q"][0, 1], given["k"][1, 0, ::4] = np.nan, np.inf
    assert not net.run(given)[0][0, 1].any()
    assert_same(net, graph, given)


def test_an_output_inside_is_a_reason() -> None:
    net = Net()
    graph = net.graph(PLAIN.build(net), "p")
    assert reasons(schedule_only(graph, Attention()), "attention") == {
        "the result 'p' of Softmax is a graph output"
    }


def test_weights_read_elsewhere_are_a_reason() -> None:
    net = Net()
    y = PLAIN.build(net)
    graph = net.graph(y, net("Exp", "p"))
    assert reasons(schedule_only(graph, Attention()), "attention") == {
        "the Softmax result has readers other than a single product with v"
    }


def test_a_plain_softmax_says_what_is_missing() -> None:
    net = Net()
    graph = net.graph(net("Softmax", net.input("x", 2, 3, 4, 4)))
    assert reasons(schedule_only(graph, Attention()), "attention") == {
        "no product feeds the Softmax"
    }


def test_values_scaled_on_their_way_are_a_reason() -> None:
    @dataclass(frozen=True)
    class Scaled(Spelling):
        def split(self, net: Net, x: str, which: str) -> str:
            part = super().split(net, x, which)
            return net("Mul", part, 2.0) if which == "v" else part

    net = Net()
    graph = net.graph(Scaled().build(net))
    assert reasons(schedule_only(graph, Attention()), "attention") == {"v is scaled"}
