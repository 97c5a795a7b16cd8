"""Products go to bf16 where that was asked for, and stay exact where it was not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.graphs import Net, evaluate, every_phase, loaded, normal
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.panels import pack_vnni2, unpack_bf16x2, unpack_vnni2
from tracea_graph.ops.attention import FEW_QUERIES, AttentionParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.rewrite import DecisionTrace, SchedulerLimits, schedule_rewrites
from tracea_graph.ttg import Region, TileGraph

RNG = np.random.default_rng(0)


def net(k: int = 6, n: int = 20, opset: int = 17) -> TileGraph:
    net = Net(opset)
    w = RNG.standard_normal((k, n)).astype(np.float32)
    return net.graph(net("Relu", net("MatMul", net.input("x", "rows", k), net.const(w))))


def planned(
    graph: TileGraph, precision: str, limits: SchedulerLimits | None = None, tiles: bool = False
) -> tuple[Region, DecisionTrace]:
    limits = limits or SchedulerLimits(min_gain_us=float("-inf"))
    trace = schedule_rewrites(
        graph, every_phase(precision=precision, tiles=tiles), lambda g, r: 1.0, limits
    )
    (region,) = graph.regions()
    return region, trace


@pytest.mark.parametrize(
    ("precision", "layout"),
    [("fp32", "panels"), ("bf16", "vnni2"), ("bf16-weights", "weight_only_bf16")],
)
def test_the_layout_follows_the_precision(precision: str, layout: str) -> None:
    graph = net()
    region, _ = planned(graph, precision)
    assert isinstance(region.params, GemmParams) and region.params.layout.name == layout
    weight = graph.weights[region.operands[1]]
    stored = weight.array()
    assert weight.dtype is (DType.F32 if precision == "fp32" else DType.BF16)
    assert stored.shape == weight.shape and stored.nbytes == weight.nbytes


@pytest.mark.parametrize("k", [6, 7])
def test_integers_take_scales_along(k: int) -> None:
    graph = net(k)
    region, _ = planned(graph, "int16")
    assert isinstance(region.params, GemmParams) and region.params.layout.name == "int16"
    for name, dtype in ((region.operands[1], DType.I16), (region.operands[-1], DType.F32)):
        weight = graph.weights[name]
        stored = weight.array()
        assert weight.dtype is dtype
        assert stored.shape == weight.shape and stored.nbytes == weight.nbytes


@pytest.mark.parametrize(("tiles", "layout"), [(False, "int16"), (True, "bf16x2")])
def test_what_bf16_is_barred_from_goes_to_integers_or_sums(tiles: bool, layout: str) -> None:
    graph = net()
    excluded = {"gemm-bf16": {graph.outputs[0]: "it was wrong"}}
    limits = SchedulerLimits(min_gain_us=float("-inf"), excluded=excluded)
    region, trace = planned(graph, "bf16", limits, tiles)
    assert isinstance(region.params, GemmParams) and region.params.layout.name == layout
    assert ("gemm-bf16", "it was wrong") in trace.misses()


@pytest.mark.parametrize("k", [6, 64])
def test_sums_of_two_lie_in_turns(k: int) -> None:
    graph = net(k)
    exact = np.asarray(graph.weights["w0"].array())
    region, _ = planned(graph, "bf16x2")
    assert isinstance(region.params, GemmParams) and region.params.layout.name == "bf16x2"
    weight = graph.weights[region.operands[1]]
    stored = weight.array()
    assert stored.shape == weight.shape and stored.nbytes == weight.nbytes
    upper, lower = unpack_bf16x2(stored, k, 20)
    np.testing.assert_allclose(upper + lower, exact, rtol=2**-16)


def test_sums_of_two_want_an_opset_with_bf16() -> None:
    graph = net(opset=12)
    region, trace = planned(graph, "bf16x2")
    assert region.params.layout.name == "panels"
    assert ("gemm-bf16x2", "opset 12 has no bf16; 13 is the first") in trace.misses()


@pytest.mark.parametrize(
    ("precision", "layout"), [("bf16", "block_sparse_vnni2"), ("bf16-weights", "block_sparse")]
)
def test_stored_blocks_are_rounded_too(precision: str, layout: str) -> None:
    made = Net()
    matrix = normal(64, 64)
    matrix[16:48] = 0
    graph = made.graph(made("MatMul", made.input("x", "batch", 64), made.const(matrix)))
    region, _ = planned(graph, precision)
    assert isinstance(region.params, GemmParams) and region.params.layout.name == layout
    assert graph.weights[region.operands[1]].array().size == 32 * 64


def test_the_matrix_is_rounded_once() -> None:
    graph = net(7, 20)
    exact = graph.weights["w0"].array()
    region, _ = planned(graph, "bf16")
    stored = graph.weights[region.operands[1]].array()
    np.testing.assert_array_equal(stored, pack_vnni2(exact))
    np.testing.assert_array_equal(
        unpack_vnni2(stored, 7, 20), exact.astype(ml_dtypes.bfloat16).astype(np.float32)
    )


def test_an_odd_depth_has_no_mixed_form() -> None:
    region, trace = planned(net(7, 20), "bf16-weights")
    assert region.params.layout.name == "panels"
    assert ("gemm-bf16", "K = 7 is odd") in trace.misses()


def test_a_barred_product_keeps_its_exact_form() -> None:
    graph = net()
    result = graph.outputs[0]
    excluded = {rule: {result: "it was wrong"} for rule in ("gemm-bf16", "gemm-int16")}
    limits = SchedulerLimits(min_gain_us=float("-inf"), excluded=excluded)
    region, trace = planned(graph, "bf16", limits)
    assert region.op == "FusedGemm" and region.params.layout.name == "panels"
    assert ("gemm-bf16", "it was wrong") in trace.misses()


def cached(queries: int | str) -> TileGraph:
    """Attention over a cache: keys and values of before, and one product's columns behind them."""
    net = Net()
    q, new = (net("MatMul", net.input(n, 1, queries, 6), net.weight(6, 8)) for n in "xy")
    split = net.ints(0, 0, 2, 4)
    q, new = (net("Transpose", net("Reshape", v, split), perm=[0, 2, 1, 3]) for v in (q, new))
    kept = [net.input(n, 1, 2, "past", 4) for n in ("keys", "values")]
    k, v = (net("Concat", old, new, axis=2) for old in kept)
    scores = net(
        "MatMul", net("Mul", q, net.const(np.float32(0.5))), net("Transpose", k, perm=[0, 1, 3, 2])
    )
    y = net("MatMul", net("Softmax", scores, axis=-1), v)
    return loaded(net, y, k, v)


@pytest.mark.parametrize("queries", ["rows", FEW_QUERIES + 1, FEW_QUERIES])
def test_a_cache_is_rounded_for_many_queries(queries: int | str) -> None:
    graph = cached(queries)
    limits = SchedulerLimits(min_gain_us=float("-inf"))
    trace = schedule_rewrites(graph, every_phase(precision="bf16"), lambda g, r: 1.0, limits)
    every = [r.params for r in graph.regions()]
    every += [step.params for p in every if isinstance(p, RegionParams) for step in p.steps]
    (attention,) = (p for p in every if isinstance(p, AttentionParams))
    few = queries == FEW_QUERIES
    assert (attention.in_bf16, attention.whole) == (not few, not few)
    said = [reason for rule, reason in trace.misses() if rule == "attention-bf16"]
    assert said == (
        ["with 4 queries, rounding the keys takes longer than it saves"] if few else []
    )


def test_rows_and_columns_in_bytes() -> None:
    """The parts of a merged product share the integers of x."""
    made = Net()
    x = made.input("x", 5, 64)
    parts = [made("MatMul", x, made.const(normal(64, 64, seed=i))) for i in range(2)]
    parts[1] = made("Add", parts[1], made.const(normal(64)))
    sums = made("Sub", made("MatMul", parts[0], made.const(normal(64, 64))), parts[1])
    graph = made.graph(sums, *parts)
    feed = {"x": normal(5, 64, seed=9)}
    exact = evaluate(graph, feed)
    limits = SchedulerLimits(min_gain_us=float("-inf"), skip=frozenset({"cluster"}))
    schedule_rewrites(graph, every_phase(precision="int8"), lambda g, r: 1.0, limits)
    assert sorted(r.op for r in graph.regions()) == [
        *["FusedGemm"] * 3,
        *["FusedQuantizeRows"] * 2,
    ]
    products = [r for r in graph.regions() if r.op == "FusedGemm"]
    assert all(r.params.layout.name == "int8" for r in products)
    assert len({r.operands[0] for r in products}) == 2
    for found, wanted in zip(evaluate(graph, feed), exact, strict=True):
        error = abs(found - wanted).max() / abs(wanted).max()
        assert 1e-4 < error < 2e-2


def test_what_bytes_are_barred_from_goes_up() -> None:
    for tiles, bf16, layout in (
        (False, True, "int16"), (True, True, "vnni2"), (False, False, "panels"),
    ):  # fmt: skip
        graph = net()
        excluded = {"gemm-int8": {graph.outputs[0]: "it was wrong"}}
        limits = SchedulerLimits(min_gain_us=float("-inf"), excluded=excluded)
        phases = every_phase(precision="int8", tiles=tiles, bf16=bf16)
        schedule_rewrites(graph, phases, lambda g, r: 1.0, limits)
        (region,) = graph.regions()
        assert region.params.layout.name == layout
