"""Caches in int8 that grow by Concat: attention reads their integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, evaluate, loaded, normal, only, ops, optimized, reasons
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.passes.attention.attention import Attention
from tracea_graph.passes.attention.byte_caches import ByteCaches
from tracea_graph.passes.decompose.decompose import Decompose
from tracea_graph.rewrite import DecisionTrace, Phase
from tracea_graph.ttg import TileGraph

H, G, D = 4, 2, 8
MATCH = (
    Phase("decompose", (Decompose(),)), Phase("match", (Attention(),)),
    Phase("byte-caches", (ByteCaches(),)),
)  # fmt: skip


def cached(
    net: Net, scale: Any, *, zero: int = 0, kind: DType = DType.I8, axis: int = 3, heads: int = G
) -> tuple[str, ...]:
    """A decoder's attention over caches of integers, which are outputs, too."""
    q = _heads(net, net.input("q", "batch", "seq", H * D), H)
    found, numbers = list[str](), list[str]()
    for name in "kv":
        past = net.input(f"past_{name}", "batch", heads, "past", D, dtype=kind)
        new = _heads(net, net.input(name, "batch", "seq", heads * D), heads)
        beside = [net.const(np.asarray(scale, np.float32))]
        beside.append(net.const(np.full(np.shape(scale), zero), _KINDS[kind]))
        rounded = net("QuantizeLinear", new, *beside, axis=axis)
        whole = net("Concat", past, rounded, axis=2, name=f"present_{name}")
        found.append(whole)
        numbers.append(net("DequantizeLinear", whole, *beside, axis=axis))
    k, v = (_repeated(net, x, heads) for x in numbers)
    scores = net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2]))
    weights = net("Softmax", net("Mul", scores, D**-0.5), axis=-1)
    y = net("Transpose", net("MatMul", weights, v), perm=[0, 2, 1, 3])
    return (net("Reshape", y, net.ints(0, 0, H * D), name="y"), *found)


_KINDS: dict[DType, type] = {DType.I8: np.int8, DType.U8: np.uint8}


def _heads(net: Net, x: str, count: int) -> str:
    return net("Transpose", net("Reshape", x, net.ints(0, 0, count, D)), perm=[0, 2, 1, 3])


def _repeated(net: Net, x: str, heads: int) -> str:
    if heads == H:
        return x
    sizes = net("Shape", x)
    batch, rows = (net("Gather", sizes, net.ints(i), axis=0) for i in (0, 2))
    wide = net("Concat", batch, net.ints(G), net.ints(H // G), rows, net.ints(D), axis=0)
    flat = net("Concat", batch, net.ints(H), rows, net.ints(D), axis=0)
    return net("Reshape", net("Expand", net("Unsqueeze", x, net.ints(2)), wide), flat)


def feeds(rows: int, past: int, heads: int = G, kind: DType = DType.I8) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    low = np.iinfo(_KINDS[kind]).min
    given: dict[str, Any] = {"q": normal(2, rows, H * D, seed=9)}
    for which, name in enumerate("kv"):
        integers = rng.integers(low, low + 256, (2, heads, past, D))
        given[f"past_{name}"] = integers.astype(_KINDS[kind])
        given[name] = normal(2, rows, heads * D, seed=which)
    return given


def read(**choices: Any) -> tuple[Net, TileGraph, DecisionTrace]:
    net = Net()
    graph = loaded(net, *cached(net, **choices))
    return net, graph, optimized(graph, MATCH)


COLUMNS = np.random.default_rng(1).uniform(0.005, 0.03, D)


@pytest.mark.parametrize("heads", [G, H])
@pytest.mark.parametrize(
    ("scale", "axis"), [(0.02, 3), (COLUMNS, 3), (COLUMNS[: D // 2], 1), (COLUMNS[:2], 1)]
)
@pytest.mark.parametrize(("rows", "past"), [(1, 7), (5, 0)])
def test_attention_reads_integers(scale: Any, axis: int, heads: int, rows: int, past: int) -> None:
    if axis == 1:
        scale = scale[:heads]
        if len(scale) < heads:
            scale = np.resize(scale, heads) * np.arange(1, heads + 1)
    net, graph, trace = read(scale=scale, axis=axis, heads=heads)
    assert trace.applied()["byte-caches"] == 1, trace.misses()
    attend = only(graph, "FusedAttention")
    assert attend.params.stored == "i8"
    assert attend.operands[1:3] == ("present_k", "present_v")
    assert "DequantizeLinear" not in ops(graph)
    given = feeds(rows, past, heads)
    found, wanted = evaluate(graph, given), net.run(given)
    for one, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, right, atol=1e-5)
    calls = [(call.op, call.dtype) for call in lower(graph, attend).calls]
    assert calls == [("attention", "f32_by_i8")]


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"scale": 0.02, "zero": 3}, "its keys or values have several scales, or a zero point"),
        ({"scale": COLUMNS, "zero": 3}, ""),
        ({"scale": 0.02, "kind": DType.U8}, ""),
        ({"scale": 1e-30},
         "a scale of its keys or values is zero, negative, infinite or no number"),
    ],
)  # fmt: skip
def test_others_stay_and_say_why(choices: dict[str, Any], reason: str) -> None:
    _, graph, trace = read(**choices)
    assert "byte-caches" not in trace.applied()
    assert reasons(trace, "byte-caches") == ({reason} if reason else set())
    assert only(graph, "FusedAttention").params.stored == "f32"
