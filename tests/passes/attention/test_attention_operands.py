"""Where q, k and v of an attention are read, and attention that is one operator already."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graphs import Net, assert_same, normal, only, ops, reasons, schedule_only
from tracea_graph.ir import DType, Node, TensorSpec
from tracea_graph.ops.attention import LOWEST
from tracea_graph.passes.attention.attention import Attention
from tracea_graph.passes.attention.attention_op import AttentionOp
from tracea_graph.ttg import TileGraph

H, D, B, S = 4, 4, 2, 5
MS = "com.microsoft"


def attend(net: Net, q: str, k: str, v: str) -> str:
    """From heads to merged rows."""
    scores = net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2]))
    p = net("Softmax", net("Mul", scores, 0.5), axis=-1)
    y = net("Transpose", net("MatMul", p, v), perm=[0, 2, 1, 3])
    return net("Reshape", y, net.ints(0, 0, H * D))


def to_heads(net: Net, x: str, heads: int = H) -> str:
    x = net("Reshape", x, net.ints(0, 0, heads, D))
    return net("Transpose", x, perm=[0, 2, 1, 3])


def recognised(net: Net, *outputs: str) -> TileGraph:
    graph = net.graph(*outputs)
    trace = schedule_only(graph, Attention())
    assert trace.applied() == {"attention": 1}, trace.misses()
    return graph


def feeds(net: Net) -> dict[str, np.ndarray]:
    return feeds_of(net, {"past": 3})


def feeds_of(net: Net, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Return numbers for each input whose symbols have these sizes."""
    result = {}
    for i, (name, info) in enumerate(net.inputs.items()):
        shape = [d.dim_value or sizes[d.dim_param] for d in info.type.tensor_type.shape.dim]
        result[name] = normal(*shape, seed=i)
    return result


# ---- columns of one tensor ---------------------------------------------------------------


def by_split(net: Net, x: str) -> list[str]:
    parts = net.many("Split", 3, x, net.ints(H * D, H * D, H * D), axis=-1, name="part")
    return [to_heads(net, p) for p in parts]


def by_slice(net: Net, x: str) -> list[str]:
    return [to_heads(net, net("Slice", x, net.ints(i * H * D), net.ints((i + 1) * H * D),
                              net.ints(2))) for i in range(3)]  # fmt: skip


def by_gather(net: Net, x: str) -> list[str]:
    """timm: Reshape [B,S,3,H,D], Transpose, three times Gather."""
    stack = net("Reshape", x, net.ints(0, 0, 3, H, D))
    stack = net("Transpose", stack, perm=[2, 0, 3, 1, 4])
    return [net("Gather", stack, net.const(i, np.int64), axis=0) for i in range(3)]


@pytest.mark.parametrize("part", [by_split, by_slice, by_gather])
def test_columns_are_read_in_place(part: Callable[[Net, str], list[str]]) -> None:
    net = Net()
    graph = recognised(net, attend(net, *part(net, net.input("x", B, S, 3 * H * D))))
    region = only(graph, "FusedAttention")
    assert region.operands == ("x",) * 3 and ops(graph) == ["FusedAttention"]
    assert region.params.offsets == (0, H * D, 2 * H * D)
    assert region.params.widths == (3 * H * D,) * 3
    assert_same(net, graph, feeds(net))


def test_a_split_others_read_stays() -> None:
    net = Net()
    x = net.input("x", B, S, 3 * H * D)
    y = attend(net, *by_split(net, x))
    graph = recognised(net, y, net("Exp", "part_1"))
    assert sorted(ops(graph)) == ["Exp", "FusedAttention", "Split"]
    assert only(graph, "FusedAttention").operands == ("x",) * 3
    assert_same(net, graph, feeds(net))


# ---- heads -------------------------------------------------------------------------------


def test_heads_from_elsewhere_are_read_as_they_are() -> None:
    net = Net()
    q, k, v = (net("Sin", net.input(x, B, H, S, D), name=f"{x}_turned") for x in "qkv")
    graph = recognised(net, attend(net, q, k, v))
    region = only(graph, "FusedAttention")
    assert region.params.layouts == ("heads", "heads", "heads", "rows")
    assert region.operands == ("q_turned", "k_turned", "v_turned")
    assert_same(net, graph, feeds(net))


def test_turned_keys_are_read_as_they_are() -> None:
    net = Net()
    q, k, v = net.input("q", B, H, S, D), net.input("k", B, H, D, 7), net.input("v", B, H, 7, D)
    p = net("Softmax", net("MatMul", q, k), axis=-1)
    graph = recognised(net, net("MatMul", p, v))
    assert only(graph, "FusedAttention").params.layouts == (
        "heads",
        "transposed",
        "heads",
        "heads",
    )
    assert_same(net, graph, feeds(net))


def by_expand(net: Net, x: str) -> str:
    wide = net("Expand", net("Unsqueeze", x, net.ints(2)), net.ints(B, 2, 2, S, D))
    return net("Reshape", wide, net.ints(B, H, S, D))


def by_tile(net: Net, x: str) -> str:
    wide = net("Tile", net("Unsqueeze", x, net.ints(2)), net.ints(1, 1, 2, 1, 1))
    return net("Reshape", wide, net.ints(0, H, -1, D))


@pytest.mark.parametrize("repeat", [by_expand, by_tile])
def test_shared_keys_are_not_repeated(repeat: Callable[[Net, str], str]) -> None:
    net = Net()
    q = to_heads(net, net.input("q", B, S, H * D))
    k, v = (repeat(net, to_heads(net, net.input(x, B, S, 2 * D), 2)) for x in "kv")
    graph = recognised(net, attend(net, q, k, v))
    region = only(graph, "FusedAttention")
    assert region.params.kv_heads == 2 and region.operands == ("q", "k", "v")
    assert ops(graph) == ["FusedAttention"]
    assert_same(net, graph, feeds(net))


def test_heads_repeated_in_another_order_are_not_shared() -> None:
    """Tile of whole blocks: head i reads keys i mod 2."""
    net = Net()
    q = net.input("q", B, H, S, D)
    k, v = (
        net("Reshape", net("Tile", net("Unsqueeze", net.input(x, B, 2, S, D), net.ints(1)),
                           net.ints(1, 2, 1, 1, 1)), net.ints(B, H, S, D))
        for x in "kv"
    )  # fmt: skip
    graph = recognised(net, attend(net, q, k, v))
    assert only(graph, "FusedAttention").params.kv_heads == 0 and "Tile" in ops(graph)
    assert_same(net, graph, feeds(net))


def test_one_head_of_keys_for_all() -> None:
    net = Net()
    q, k, v = net.input("q", B, H, S, D), net.input("k", B, 1, 7, D), net.input("v", B, 1, 7, D)
    graph = recognised(net, attend(net, q, k, v))
    assert only(graph, "FusedAttention").params.kv_heads == 1
    assert_same(net, graph, feeds(net))


def test_matrices_of_heads() -> None:
    """OPT, CLIP, Whisper: [B·H,S,D] throughout."""
    net = Net()
    q, k, v = (net("Reshape", to_heads(net, net.input(x, B, S, H * D)), net.ints(B * H, S, D))
               for x in "qkv")  # fmt: skip
    scores = net("MatMul", net("Mul", q, 0.5), net("Transpose", k, perm=[0, 2, 1]))
    scores = net("Reshape", scores, net.ints(B, H, S, S))
    scores = net("Add", scores, net.input("m", B, 1, S, S))
    p = net("Softmax", net("Reshape", scores, net.ints(B * H, S, S)), axis=-1)
    y = net("Reshape", net("MatMul", p, v), net.ints(B, H, S, D))
    y = net("Reshape", net("Transpose", y, perm=[0, 2, 1, 3]), net.ints(0, 0, H * D))
    graph = recognised(net, y)
    assert ops(graph) == ["FusedAttention"]
    assert only(graph, "FusedAttention").operands == ("q", "k", "v", "m")
    assert_same(net, graph, feeds(net))


def test_capped_scores() -> None:
    net = Net()
    q, k, v = (net.input(x, B, H, S, D) for x in "qkv")
    scores = net("Mul", net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2])), 0.5)
    scores = net("Mul", net("Tanh", net("Div", scores, 3.0)), 3.0)
    scores = net("Add", scores, net.input("m", 1, 1, S, S))
    graph = recognised(net, net("MatMul", net("Softmax", scores, axis=-1), v))
    params = only(graph, "FusedAttention").params
    assert params.softcap == pytest.approx(3.0) and params.scale == pytest.approx(0.5)
    assert_same(net, graph, feeds(net))


# ---- operators ---------------------------------------------------------------------------


def lifted(net: Net, outputs: tuple[str, ...]) -> tuple[TileGraph, Any]:
    graph = net.graph(*outputs)
    return graph, schedule_only(graph, AttentionOp())


FLAT = {"q_num_heads": H, "kv_num_heads": 2}


@pytest.mark.parametrize("attrs", [{}, {"is_causal": 1}, {"scale": 0.3, "softcap": 2.0}], ids=str)
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("mask", ["", "float", "bool"])
def test_the_attention_operator(attrs: dict[str, Any], flat: bool, mask: str) -> None:
    net = Net(23)
    if flat:
        q, k, v = (net.input(x, B, S, n * D) for x, n in (("q", H), ("k", 2), ("v", 2)))
        attrs = attrs | FLAT
    else:
        q, k, v = (net.input(x, B, n, S, D) for x, n in (("q", H), ("k", 2), ("v", 2)))
    given = feeds(net)
    operands = [q, k, v]
    if mask:
        dtype = DType.F32 if mask == "float" else DType.BOOL
        operands.append(net.input("m", B, 1, S, S, dtype=dtype))
        draw = normal(B, 1, S, S, seed=9)
        given["m"] = draw if mask == "float" else draw > -0.3
        if mask == "bool":
            given["m"][0, 0, 3] = False  # a query without keys
    graph, trace = lifted(net, (net("Attention", *operands, **attrs),))
    assert trace.applied() == {"attention-op": 1}, trace.misses()
    params = only(graph, "FusedAttention").params
    assert params.scale == pytest.approx(attrs.get("scale", 1 / sqrt(D)))
    assert params.kv_heads == 2 and (params.causal == "top") == ("is_causal" in attrs)
    assert_same(net, graph, given)


@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize(
    ("op", "form"), [("Attention", "heads"), ("Attention", "rows"), ("MultiHeadAttention", "rows")]
)
def test_past_and_present_of_an_attention_operator(op: str, past: bool, form: str) -> None:
    shared = H if op == "MultiHeadAttention" else 2
    net = Net(23)
    sizes = (("q", H), ("k", shared), ("v", shared))
    shapes = [(B, n, S, D) if form == "heads" else (B, S, n * D) for _, n in sizes]
    qkv = [net.input(x, *shape) for (x, _), shape in zip(sizes, shapes, strict=True)]
    caches = [net.input(f"past_{x}", B, shared, 3, D) for x in "kv"] if past else []
    if op == "Attention":
        attrs: dict[str, Any] = {"is_causal": 1, **(FLAT if form == "rows" else {})}
        results = net.many(op, 3, *qkv, "", *caches, **attrs)
    else:
        more = ["", "", "", *caches] if past else []
        results = net.many(op, 3, *qkv, *more, domain=MS, num_heads=H, unidirectional=1)
    graph, trace = lifted(net, results)
    assert trace.applied() == {"attention-op": 1}, trace.misses()
    assert ops(graph).count("Concat") == 2 * past
    order = "bottom" if past or op == "MultiHeadAttention" else "top"
    assert only(graph, "FusedAttention").params.causal == order
    assert_same(net, graph, feeds(net))


def test_keys_of_another_sequence_by_heads() -> None:
    net = Net(17)
    q, k, v = net.input("q", B, S, H * D), *(net.input(x, B, H, 7, D) for x in "kv")
    graph, trace = lifted(net, (net("MultiHeadAttention", q, k, v, domain=MS, num_heads=H),))
    assert trace.applied() == {"attention-op": 1}, trace.misses()
    assert_same(net, graph, feeds(net))


@pytest.mark.parametrize("counts", [(5, 5), (5, 3), (2, 4), (1, 0)])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("flat", [False, True])
def test_items_of_an_attention_may_have_fewer_keys(
    flat: bool, causal: int, counts: tuple[int, ...]
) -> None:
    net = Net(24)
    qkv = [net.input(x, B, 3 if x == "q" else S, n * D) if flat
           else net.input(x, B, n, 3 if x == "q" else S, D)
           for x, n in (("q", H), ("k", 2), ("v", 2))]  # fmt: skip
    attrs = {"is_causal": causal, **(FLAT if flat else {})}
    y = net("Attention", *qkv, "", "", "", net.ids("counts", B), **attrs)
    again = net("Attention", *qkv, "", "", "", "counts", **attrs)
    graph, trace = lifted(net, (y, again))
    assert trace.applied() == {"attention-op": 2}, trace.misses()
    assert ops(graph).count("Less") + ops(graph).count("LessOrEqual") == 1
    assert_same(net, graph, feeds(net) | {"counts": np.array(counts)})


def test_scores_read_outside_are_a_reason() -> None:
    net = Net(23)
    q, k, v = (net.input(x, B, H, S, D) for x in "qkv")
    y = net.many("Attention", 4, q, k, v)
    _, trace = lifted(net, (y[0], y[3]))
    assert reasons(trace, "attention-op") == {"its output of attention scores is used"}


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_a_scale_that_is_not_positive_is_a_reason(scale: float) -> None:
    net = Net(23)
    q, k, v = (net.input(x, B, H, S, D) for x in "qkv")
    _, trace = lifted(net, (net("Attention", q, k, v, scale=scale),))
    assert reasons(trace, "attention-op") == {f"its scale is {scale:g}"}


MASKS_OF_KEYS: dict[str, tuple[int | str, ...]] = {
    "fewer keys": (B, 1, S, 3), "one key": (S, 1), "fewer keys for all": (3,),
    "any number": (B, 1, S, "some"), "any keys of any item": ("items", 1, "rows", "some"),
    "any of each head": (H, "rows", "some"),
}  # fmt: skip


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BOOL])
@pytest.mark.parametrize("shape", MASKS_OF_KEYS)
def test_a_mask_of_fewer_keys_masks_the_others(shape: str, dtype: DType, past: bool) -> None:
    """Also where its extents are not known to be those of the scores."""
    check_mask(25, MASKS_OF_KEYS[shape], dtype, past, {"items": 1, "rows": S, "some": 4})


@pytest.mark.parametrize("items", [1, B])
def test_a_mask_of_unknown_extents_is_extended(items: int) -> None:
    """ONNX Runtime has no masks of fewer keys before opset 25."""
    sizes = {"items": items, "rows": S, "some": S}
    check_mask(23, ("items", 1, "rows", "some"), DType.F32, False, sizes)


def check_mask(
    opset: int, shape: tuple[int | str, ...], dtype: DType, past: bool, sizes: dict[str, int]
) -> None:
    net = Net(opset)
    qkv = [net.input(x, B, n, S, D) for x, n in (("q", H), ("k", 2), ("v", 2))]
    mask = net.input("m", *shape, dtype=dtype)
    caches = [net.input(f"past_{x}", B, 2, 3, D) for x in "kv"] if past else []
    y = net("Attention", *qkv, mask, *caches, is_causal=1)
    graph, trace = lifted(net, (y,))
    assert trace.applied() == {"attention-op": 1}, trace.misses()
    given = feeds_of(net, sizes)
    if dtype is DType.BOOL:
        given["m"] = given["m"] > -0.3
    assert_same(net, graph, given)


@pytest.mark.parametrize("shape", [(S, S + 1), (3, S, S)])
def test_a_mask_that_cannot_be_extended_is_a_reason(shape: tuple[int, ...]) -> None:
    operands = ["q", "k", "v", "m"]
    node = Node("Attention", tuple(operands), ("y",))
    specs = {x: TensorSpec(DType.F32, (B, H, S, D)) for x in (*operands[:3], "y")}
    specs["m"] = TensorSpec(DType.F32, shape)
    graph = TileGraph.of_nodes([node], operands, ["y"], {}, specs, 25)
    (reason,) = reasons(schedule_only(graph, AttentionOp()), "attention-op")
    assert "does not provably broadcast" in reason


def contributed(op: str, inputs: list[str], **attrs: Any) -> TileGraph:
    """One operator of com.microsoft over [2,5,16] tensors."""
    node = Node(op, tuple(inputs), ("y",), attrs, "com.microsoft")
    specs = {x: TensorSpec(DType.F32, (B, S, H * D)) for x in inputs if x}
    specs |= {"y": TensorSpec(DType.F32, (B, S, H * D))}
    specs |= {"m": TensorSpec(DType.F32, (1, H, S, S))} if "m" in inputs else {}
    specs |= {x: TensorSpec(DType.I32, (2 * B,)) for x in ("ends and starts",) if x in inputs}
    specs |= {"items": TensorSpec(DType.I32, (B, 1))} if "items" in inputs else {}
    return TileGraph.of_nodes([node], [x for x in inputs if x], ["y"], {}, specs, 17)


def test_multi_head_attention() -> None:
    inputs = ["q", "k", "v", "", "", "m"]
    graph = contributed("MultiHeadAttention", inputs, num_heads=H)
    trace = schedule_only(graph, AttentionOp())
    assert trace.applied() == {"attention-op": 1}, trace.misses()
    region = only(graph, "FusedAttention")
    arrays = [normal(B, S, H * D, seed=i) for i in range(3)] + [normal(1, H, S, S, seed=3)]
    node = helper.make_node(
        "MultiHeadAttention", inputs, ["y"], domain="com.microsoft", num_heads=H
    )
    infos = [helper.make_tensor_value_info(n, 1, a.shape)
             for n, a in zip("qkvm", arrays, strict=True)]  # fmt: skip
    out = [helper.make_tensor_value_info("y", 1, None)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    net = Net()
    net.model = onnx.helper.make_model(
        helper.make_graph([node], "g", infos, out), opset_imports=opsets, ir_version=8
    )
    want = net.run(dict(zip("qkvm", arrays, strict=True)))[0]
    got = region.params.reference([a.astype(np.float64) for a in arrays])[0]
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("ordered", "filtered"), [(0, -10000.0), (0, -2.0), (1, LOWEST)])
def test_key_counts_of_items(packed: bool, ordered: int, filtered: float) -> None:
    """Of packed sequences their places follow, which only other kernels read."""
    net = Net()
    qkv = [net.input(x, B, S, H * D) for x in "qkv"]
    counts = net.input("counts", 3 * B + 2 if packed else B, dtype=DType.I32)
    attrs = {"unidirectional": ordered, "mask_filter_value": filtered}
    y = net("MultiHeadAttention", *qkv, "", counts, domain=MS, num_heads=H, **attrs)
    graph, trace = lifted(net, (y,))
    assert trace.applied() == {"attention-op": 1}, trace.misses()
    numbers = [3, 5, *(0, S, 2 * S) * 2] if packed else [3, 5]
    assert_same(net, graph, feeds(net) | {"counts": np.array(numbers, np.int32)})


@pytest.mark.parametrize(
    ("op", "inputs", "reason"),
    [
        ("MultiHeadAttention", ["q", "k", "v", "b"], "it has a bias"),
        (
            "MultiHeadAttention", ["q", "k", "v", "", "ends and starts"],
            "its key counts are not one integer for each batch item",
        ),
        (
            "MultiHeadAttention", ["q", "k", "v", "", "items"],
            "its mask does not hold one number for each key",
        ),
        ("MultiHeadAttention", ["q"], "q, k and v are packed in one tensor"),
        ("MultiHeadAttention", ["q", *"kv", *[""] * 5, "n"], "it has a past_sequence_length"),
        ("MultiHeadAttention", ["q", *"kv", *[""] * 6, "c"], "it has a cache_indirection"),
        ("GroupQueryAttention", ["q", "k", "v"], "its item lengths are not given"),
        (
            "DecoderMaskedMultiHeadAttention", ["q", "k", "v"],
            f"{MS}::DecoderMaskedMultiHeadAttention: it appends to its own padded cache",
        ),
    ],
)  # fmt: skip
def test_contributed_operators_not_modelled_say_why(
    op: str, inputs: list[str], reason: str
) -> None:
    graph = contributed(op, inputs, num_heads=H)
    assert reasons(schedule_only(graph, AttentionOp()), "attention-op") == {reason}


@pytest.mark.parametrize("shape", [(H, 1, 1), (1, H, 1, 1)])
def test_a_factor_for_each_head_goes_into_the_queries(shape: tuple[int, ...]) -> None:
    """Cosine attention: heads learn how sharp they are."""
    net = Net()
    q, k, v = (net.input(x, "batch", H, "seq", D) for x in "qkv")
    scores = net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2]))
    scores = net("Add", net("Mul", net.weight(*shape), scores), net.input("b", 1, H, "seq", "seq"))
    graph = recognised(net, net("MatMul", net("Softmax", scores, axis=-1), v))
    assert ops(graph) == ["Mul", "FusedAttention"]
    given = {x: normal(B, H, S, D, seed=i) for i, x in enumerate("qkv")}
    assert_same(net, graph, {**given, "b": normal(1, H, S, S)})


def test_a_factor_for_each_key_is_none_for_each_head() -> None:
    net = Net()
    q, k, v = (net.input(x, "batch", H, S, D) for x in "qkv")
    scores = net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2]))
    scores = net("Mul", scores, net.weight(H, 1, S))
    graph = net.graph(net("MatMul", net("Softmax", scores, axis=-1), v))
    trace = schedule_only(graph, Attention())
    assert reasons(trace, "attention") == {"no product feeds the Softmax"}
