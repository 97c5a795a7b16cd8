"""Windows of ONNX's Attention: each form agrees with ONNX's own reference in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.graphs import (
    Array,
    Net,
    assert_same,
    evaluate,
    normal,
    only,
    ops,
    schedule_only,
)
from tracea_graph.ir import DType
from tracea_graph.ops.attention import UNLIMITED
from tracea_graph.passes.attention.attention_op import AttentionOp
from tracea_graph.ttg import TileGraph

H, SHARED, D, B, P = 4, 2, 4, 2, 3
WINDOWS: dict[str, Any] = {
    "left": {"left_window_size": 2},
    "right": {"right_window_size": 2},
    "both": {"left_window_size": 1, "right_window_size": 3},
    "own": {"left_window_size": 0, "right_window_size": 0},
    "causal left": {"left_window_size": 2, "is_causal": 1},
    "causal both": {"left_window_size": 2, "right_window_size": 4, "is_causal": 1},
    "ends at itself": {"left_window_size": 3, "right_window_size": 0},
    "wide": {"left_window_size": 1 << 40, "right_window_size": 1},
    "none": {"left_window_size": -1, "right_window_size": -1},
}


def attention(
    sizes: tuple[int, int], flat: bool = False, mask: str = "", past: bool = False,
    counts: bool = False, **attrs: Any,
) -> tuple[Net, tuple[str, ...]]:  # fmt: skip
    """Return a net of one operator with ``sizes`` queries and new keys, and its results."""
    net, (s, t) = Net(25), sizes
    counted = [("q", H, s), ("k", SHARED, t), ("v", SHARED, t)]
    qkv = [net.input(x, B, n, m * D) if flat else net.input(x, B, m, n, D)
           for x, m, n in counted]  # fmt: skip
    total = t + P * past
    of = {"float": (B, H, s, total), "bool": (1, 1, s, total), "row": (s, total)}
    kept = DType.BOOL if mask == "bool" else DType.F32
    masks = [net.input("m", *of[mask], dtype=kept)] if mask else [""]
    caches = [net.input(f"past_{x}", B, SHARED, P, D) for x in "kv"] if past else ["", ""]
    ends = [net.ids("counts", B)] if counts else []
    attrs |= {"q_num_heads": H, "kv_num_heads": SHARED} if flat else {}
    results = net.many("Attention", 3 if past else 1, *qkv, *masks, *caches, *ends, **attrs)
    return net, results


def feeds_of(net: Net) -> dict[str, Array]:
    made = dict[str, Array]()
    for i, (name, info) in enumerate(net.inputs.items()):
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        made[name] = normal(*shape, seed=i)
        if name == "counts":
            made[name] = np.array([5, 2])
        elif info.type.tensor_type.elem_type == DType.BOOL.onnx:
            made[name] = made[name] > -0.5
            made[name][..., 1, :] = False  # a query without keys
    return made


def agree(net: Net, graph: TileGraph) -> None:
    """What is written computes what the reference in float64 and ONNX Runtime do."""
    given = feeds_of(net)
    wide = {x: a.astype(np.float64) if a.dtype == np.float32 else a for x, a in given.items()}
    expected: Any = ReferenceEvaluator(net.model).run(None, wide)
    for found, right in zip(evaluate(graph, given), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-6)
    assert_same(net, graph, given)


FORMS: dict[str, Any] = {
    "square": {"sizes": (5, 5)},
    "flat": {"sizes": (5, 5), "flat": True},
    "few queries": {"sizes": (3, 7)},
    "few keys": {"sizes": (7, 3), "mask": "row"},
    "float mask": {"sizes": (5, 5), "mask": "float", "softcap": 2.0},
    "bool mask": {"sizes": (4, 4), "mask": "bool", "flat": True},
    "past": {"sizes": (3, 3), "past": True},
    "past, bool mask": {"sizes": (2, 2), "past": True, "mask": "bool"},
    "past, one token": {"sizes": (1, 1), "past": True, "flat": True, "scale": 0.3},
    "past, more keys": {"sizes": (2, 4), "past": True},
    "counts": {"sizes": (3, 6), "counts": True},
    "counts, one token": {"sizes": (1, 6), "counts": True, "flat": True},
    "counts, mask": {"sizes": (3, 6), "counts": True, "mask": "float"},
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("form", FORMS)
def test_windows_agree_with_the_reference(form: str, window: str) -> None:
    net, results = attention(**FORMS[form], **WINDOWS[window])
    graph = net.graph(*results)
    trace = schedule_only(graph, AttentionOp())
    assert trace.applied() == {"attention-op": 1}, trace.misses()
    agree(net, graph)


@pytest.mark.parametrize(
    ("form", "window", "order", "sides"),
    [
        ("square", "left", "none", (2, UNLIMITED)),
        ("square", "both", "none", (1, 3)),
        ("square", "wide", "none", (UNLIMITED, 1)),
        ("square", "causal both", "top", (2, 0)),
        ("few queries", "ends at itself", "top", (3, 0)),
        ("past", "causal left", "bottom", (2, 0)),
        ("past, bool mask", "right", "none", (UNLIMITED, 2)),
        ("past, one token", "none", "none", None),
    ],
)
def test_kernels_have_the_window(
    form: str, window: str, order: str, sides: tuple[int, int] | None
) -> None:
    net, results = attention(**FORMS[form], **WINDOWS[window])
    graph = net.graph(*results)
    schedule_only(graph, AttentionOp())
    params = only(graph, "FusedAttention").params
    assert (params.causal, params.window) == (order, sides)


def test_layers_share_the_mask_of_a_window() -> None:
    """Queries at the first of more keys: no kernel puts a window there."""
    net = Net(25)
    q, k, v = (net.input(x, B, H, 3 if x == "q" else 7, D) for x in "qkv")
    same, other = {"left_window_size": 1}, {"left_window_size": 2}
    results = tuple(net("Attention", q, k, v, **at) for at in (same, same, other))
    graph = net.graph(*results)
    schedule_only(graph, AttentionOp())
    assert ops(graph).count("GreaterOrEqual") == 2 and ops(graph).count("Range") == 2
    agree(net, graph)
