"""Caches in fp16 and bf16 that grow by Concat: attention reads them as they are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.graphs import (
    Net,
    evaluate,
    loaded,
    normal,
    only,
    ops,
    optimized,
    reasons,
    relative_error,
    schedule_only,
)
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.passes.attention.attention import Attention
from tracea_graph.passes.attention.half_caches import HalfCaches
from tracea_graph.rewrite import DecisionTrace, Phase
from tracea_graph.ttg import TileGraph

H, G, D = 4, 2, 8
KINDS: dict[DType, Any] = {DType.F16: np.float16, DType.BF16: ml_dtypes.bfloat16}
MATCH = (Phase("match", (Attention(),)), Phase("half-caches", (HalfCaches(),)))


@dataclass(frozen=True)
class CachedAttention:
    """A decoder's attention; every field is a choice of its exporter.

    ``past`` is the type of the caches.  Rows are concatenated in float32, or as ``narrow`` ones.
    """

    past: tuple[DType, DType] = (DType.F16, DType.F16)
    rotated: bool = False
    grown: bool = True
    present: bool = True
    wide: bool = False
    counted: bool = False
    narrow: bool = False

    def build(self, net: Net) -> tuple[str, ...]:
        q = self.heads(net, net.input("q", "batch", "seq", H * D), H)
        caches = [self.cache(net, which) for which in (0, 1)]
        k, v = (self.repeated(net, cache[0]) for cache in caches)
        scores = net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2]))
        weights = net("Softmax", net("Mul", scores, D**-0.5), axis=-1)
        y = net("Transpose", net("MatMul", weights, v), perm=[0, 2, 1, 3])
        outputs = [net("Reshape", y, net.ints(0, 0, H * D), name="y")]
        return (*outputs, *(v for cache in caches for v in cache[1:]))

    def cache(self, net: Net, which: int) -> tuple[str, ...]:
        """The keys or values in float32, and their forms that are outputs."""
        name, kind = "kv"[which], self.past[which]
        past = net.input(f"past_{name}", "batch", G, "past", D, dtype=kind)
        if self.narrow:
            new = self.heads(net, net.input(name, "batch", "seq", G * D), G)
            new = net("Cast", net("Sin", new) if self.rotated else new, to=kind.onnx)
            whole = net("Concat", past, new, axis=2, name=f"present_{name}")
            return net("Cast", whole, to=DType.F32.onnx), whole
        past = net("Cast", past, to=DType.F32.onnx) if kind is not DType.F32 else past
        if not self.grown:
            return (past,)
        new = self.heads(net, net.input(name, "batch", "seq", G * D), G)
        if self.rotated:
            new = net("Mul", net("Sin", new), 2.0)
        whole = net("Concat", past, new, axis=2, name=f"whole_{name}")
        found = [whole]
        if self.present and kind is not DType.F32:
            found.append(net("Cast", whole, to=kind.onnx, name=f"present_{name}"))
        if self.wide:
            found.append(whole)
        if self.counted:
            found.append(net("Abs", whole))
        return tuple(found)

    def heads(self, net: Net, x: str, count: int) -> str:
        return net("Transpose", net("Reshape", x, net.ints(0, 0, count, D)), perm=[0, 2, 1, 3])

    def repeated(self, net: Net, x: str) -> str:
        """Heads as newer models repeat them for the queries that share them."""
        sizes = net("Shape", x)
        batch, rows = (net("Gather", sizes, net.ints(i), axis=0) for i in (0, 2))
        many = net.ints(H // G)
        wide = net("Concat", batch, net.ints(G), many, rows, net.ints(D), axis=0)
        flat = net("Concat", batch, net.ints(H), rows, net.ints(D), axis=0)
        lifted = net("Unsqueeze", x, net.ints(2))
        return net("Reshape", net("Expand", lifted, wide), flat)

    def feeds(self, rows: int, past: int) -> dict[str, Any]:
        given: dict[str, Any] = {"q": normal(2, rows, H * D, seed=9)}
        for which, name in enumerate("kv"):
            kind = KINDS.get(self.past[which], np.float32)
            given[f"past_{name}"] = normal(2, G, past, D, seed=which).astype(kind)
            if self.grown:
                given[name] = normal(2, rows, G * D, seed=which + 2)
        return given


PLAIN = CachedAttention()


def read(model: CachedAttention) -> tuple[Net, TileGraph, DecisionTrace]:
    net = Net()
    graph = loaded(net, *model.build(net))
    return net, graph, optimized(graph, MATCH)


def expected(net: Net, given: dict[str, Any]) -> list[Any]:
    """What ONNX Runtime computes, which takes no array in bf16, of caches in float32."""
    for node in net.model.graph.node:
        if node.op_type == "Cast":
            node.op_type = "Identity"
            del node.attribute[:]
    del net.model.graph.value_info[:]
    for info in (*net.model.graph.input, *net.model.graph.output):
        if info.type.tensor_type.elem_type in (DType.F16.onnx, DType.BF16.onnx):
            info.type.tensor_type.elem_type = DType.F32.onnx
    wide = {n: a if a.dtype.kind == "i" else np.asarray(a, np.float32) for n, a in given.items()}
    return net.run(wide)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows,past", [(1, 7), (5, 0), (3, 4)])
@pytest.mark.parametrize("rotated,narrow", [(False, False), (True, False), (True, True)])
def test_the_cache_grows_in_its_own_type(
    kind: DType, rows: int, past: int, rotated: bool, narrow: bool
) -> None:
    model = replace(PLAIN, past=(kind, kind), rotated=rotated, narrow=narrow)
    net, graph, trace = read(model)
    assert trace.applied() == {"attention": 1, "half-caches": 1}, trace.misses()
    graph.check()
    assert not {"Cast"} & set(ops(graph))
    assert graph.spec("present_k").dtype is kind
    attend = only(graph, "FusedAttention")
    assert attend.params.stored == kind.short
    assert attend.operands[1:3] == ("present_k", "present_v")
    given = model.feeds(rows, past)
    want = expected(net, given)
    for i, (found, right) in enumerate(zip(evaluate(graph, given), want, strict=True)):
        limit = {DType.F16: 1e-3, DType.BF16: 8e-3}[kind]
        assert relative_error(np.asarray(found, np.float32), right) < limit, i
    kept = np.asarray(evaluate(graph, given)[1])[:, :, :past]
    np.testing.assert_array_equal(kept, given["past_k"])


def test_programs_of_it_are_complete() -> None:
    """Every region is lowered: new rows of either layout, and attention."""
    for rotated in (False, True):
        _, graph, _ = read(replace(PLAIN, rotated=rotated))
        calls = [
            (call.op, call.dtype)
            for region in graph.regions()
            if region.fused
            for call in lower(graph, region).calls
        ]
        assert sorted(calls) == [("attention", "f32_by_f16")] + [("kv_append", "f16")] * 2


def test_layers_share_what_they_know_of_sizes() -> None:
    net = Net()
    first = PLAIN.build(net)
    rows = [net("Sin", PLAIN.heads(net, x, G)) for x in "kv"]
    both = [
        net("Concat", net("Cast", f"past_{x}", to=DType.F32.onnx), r, axis=2)
        for x, r in zip("kv", rows, strict=True)
    ]
    q = PLAIN.heads(net, first[0], H)
    scores = net("MatMul", q, net("Transpose", PLAIN.repeated(net, both[0]), perm=[0, 1, 3, 2]))
    y = net("MatMul", net("Softmax", scores, axis=-1), PLAIN.repeated(net, both[1]))
    kept = [net("Cast", v, to=DType.F16.onnx) for v in both]
    graph = loaded(net, *first, y, *kept)
    assert optimized(graph, MATCH).applied()["half-caches"] == 2
    assert ops(graph).count("ConstantOfShape") == 1


def test_caches_that_are_only_read() -> None:
    """Keys and values of an encoder, which a decoder gets in each step."""
    model = replace(PLAIN, grown=False)
    net, graph, trace = read(model)
    assert trace.applied() == {"attention": 1, "half-caches": 1}, trace.misses()
    assert only(graph, "FusedAttention").operands[1:3] == ("past_k", "past_v")
    assert "Cast" not in ops(graph)
    given = model.feeds(3, 6)
    (found,) = evaluate(graph, given)
    assert relative_error(np.asarray(found), expected(net, given)[0]) < 1e-5


def test_a_concatenation_of_other_rows_is_read_as_it_is() -> None:
    net = Net()
    k, v = (net.input(f"past_{x}", "batch", H, "past", D, dtype=DType.F16) for x in "kv")
    both = [net("Concat", x, x, axis=2) for x in (k, v)]
    wide = [net("Cast", x, to=DType.F32.onnx) for x in both]
    q = PLAIN.heads(net, net.input("q", "batch", "seq", H * D), H)
    scores = net("MatMul", q, net("Transpose", wide[0], perm=[0, 1, 3, 2]))
    graph = loaded(net, net("MatMul", net("Softmax", scores, axis=-1), wide[1]))
    assert optimized(graph, MATCH).applied() == {"attention": 1, "half-caches": 1}
    assert ops(graph) == ["Concat", "Concat", "FusedAttention"]


def test_a_cache_that_no_output_has() -> None:
    _, graph, trace = read(replace(PLAIN, present=False))
    assert trace.applied()["half-caches"] == 1
    assert "Concat" not in ops(graph)[:1]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (replace(PLAIN, past=(DType.F16, DType.BF16)), "its keys and values differ in type"),
        (replace(PLAIN, past=(DType.F16, DType.F32)), "its keys and values differ in type"),
        (replace(PLAIN, wide=True), "its cache is also an output in float32"),
        (replace(PLAIN, counted=True), "'whole_k' has other readers"),
    ],
)  # fmt: skip
def test_others_stay_and_say_why(model: CachedAttention, reason: str) -> None:
    _, graph, trace = read(model)
    assert trace.applied() == {"attention": 1}
    assert reasons(trace, "half-caches") == {reason}
    assert only(graph, "FusedAttention").params.stored == "f32"


def test_caches_in_float32_are_no_case_of_it() -> None:
    _, graph, trace = read(replace(PLAIN, past=(DType.F32, DType.F32)))
    assert trace.applied() == {"attention": 1} and not reasons(trace, "half-caches")
    assert ops(graph).count("Concat") >= 2


def test_bf16_does_not_round_what_is_stored_in_fp16() -> None:
    from tracea_graph.kernels.cpu.phases.lower_precision import AttentionBf16

    _, graph, _ = read(PLAIN)
    trace = schedule_only(graph, AttentionBf16())
    assert reasons(trace, "attention-bf16") == {
        "its keys and values are read as they are stored, in f16"
    }
