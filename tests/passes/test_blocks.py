"""Transformer blocks: one program, whose values are in bf16 where their readers round them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graphs import (
    Net,
    assert_same,
    every_phase,
    loaded,
    normal,
    ops,
    optimized,
    relative_error,
)
from tests.interpreter import check_lifetimes, run
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.kernels.program import Program
from tracea_graph.rewrite import SchedulerLimits, schedule_rewrites
from tracea_graph.ttg import TileGraph

WIDTH, HEADS = 16, 2
FEEDS = {"x": normal(2, 5, WIDTH)}


def attention(net: Net, x: str) -> str:
    def heads(order: list[int]) -> str:
        projected = net("Add", net("MatMul", x, net.weight(WIDTH, WIDTH)), net.weight(WIDTH))
        parted = net("Reshape", projected, net.ints(0, 0, HEADS, WIDTH // HEADS))
        return net("Transpose", parted, perm=order)

    q, k, v = heads([0, 2, 1, 3]), heads([0, 2, 3, 1]), heads([0, 2, 1, 3])
    scale = net.const(np.float32(0.35))
    shares = net("Softmax", net("Mul", net("MatMul", q, k), scale), axis=-1)
    y = net("Transpose", net("MatMul", shares, v), perm=[0, 2, 1, 3])
    return net("Reshape", y, net.ints(0, 0, WIDTH))


def norm(net: Net, x: str) -> str:
    return net("LayerNormalization", x, net.weight(WIDTH), net.weight(WIDTH), axis=-1)


def block(net: Net, x: str) -> str:
    out = net("MatMul", attention(net, x), net.weight(WIDTH, WIDTH))
    y = norm(net, net("Add", out, x))
    hidden = net("Relu", net("MatMul", y, net.weight(WIDTH, 48)))
    return norm(net, net("Add", net("MatMul", hidden, net.weight(48, WIDTH)), y))


def two_blocks() -> tuple[Net, TileGraph]:
    net = Net()
    x = net.input("x", "batch", "sequence", WIDTH)
    return net, net.graph(block(net, block(net, x)))


def program_of(graph: TileGraph) -> Program:
    (region,) = graph.regions()
    assert region.op == "FusedRegion"
    return lower(graph, region)


def results(graph: TileGraph, program: Program) -> Any:
    (region,) = graph.regions()
    values = {n: w.array() for n, w in graph.weights.items()} | FEEDS
    check_lifetimes(program)
    return run(program, [values[v] for v in region.operands])[0]


def in_bf16(graph: TileGraph) -> TileGraph:
    limits = SchedulerLimits(min_gain_us=float("-inf"))
    schedule_rewrites(graph, every_phase(precision="bf16"), lambda g, r: 1.0, limits)
    return graph


def test_blocks_in_a_row_are_one_program() -> None:
    net, graph = two_blocks()
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    assert_same(net, graph, FEEDS, 3e-5)


def test_what_products_read_is_rounded_by_the_step_that_makes_it() -> None:
    _, graph = two_blocks()
    program = program_of(in_bf16(graph))
    kernels = Counter(call.name for call in program.calls)
    # only what comes from outside is rounded by a call of its own
    assert kernels == {"round_bf16": 1, "gemm_bf16": 8, "attention_bf16": 2, "norm": 4}
    written = [v for call in program.calls for v in call.views[-1:] if v is not None]
    halves = [v for v in written if v.buffer.kind == "temp"]
    halves = [v for v in halves if program.temps[v.buffer.index].dtype is DType.BF16]
    assert len(halves) >= 2 * 4  # projections, attention, hidden layer, both norms but the last


def test_a_program_in_bf16_computes_what_its_steps_say() -> None:
    _, exact = two_blocks()
    optimized(exact)
    _, graph = two_blocks()
    program = program_of(in_bf16(graph))
    (region,) = graph.regions()
    values = {n: np.asarray(w.array(), np.float64) for n, w in graph.weights.items()} | FEEDS
    (want,) = region.params.reference([values[v] for v in region.operands])
    got = results(graph, program)
    assert relative_error(got, want) < 1e-6
    assert 0 < relative_error(got, results(exact, program_of(exact))) < 3e-2


def test_what_leaves_the_program_is_float32() -> None:
    net = Net()
    x = net.input("x", "batch", "sequence", WIDTH)
    y = net("Relu", net("MatMul", x, net.weight(WIDTH, WIDTH)))
    graph = in_bf16(net.graph(y, net("Relu", net("MatMul", y, net.weight(WIDTH, WIDTH)))))
    program = program_of(graph)
    assert [spec.dtype for spec in program.outputs] == [DType.F32, DType.F32]
    first, second = (c for c in program.calls if c.name == "gemm_bf16")
    assert first.chain is not None and first.chain.result_types == (DType.F32, DType.BF16)
    assert second.chain is not None and second.chain.result_types == (DType.F32,)


@pytest.mark.parametrize("precision", ["fp32", "bf16-weights"])
def test_attention_stays_exact_where_only_weights_are_rounded(precision: str) -> None:
    _, graph = two_blocks()
    limits = SchedulerLimits(min_gain_us=float("-inf"))
    schedule_rewrites(graph, every_phase(precision=precision), lambda g, r: 1.0, limits)
    kernels = {call.name for call in program_of(graph).calls}
    assert "attention" in kernels and not kernels & {"attention_bf16", "round_bf16"}


def softmax(net: Net, x: str) -> str:
    return net("Softmax", x, axis=-1)


def pooled(net: Net, x: str) -> str:
    return net.mean(x, 1)


def recurrent(net: Net, x: str) -> str:
    turned = net("Transpose", x, perm=[1, 0, 2])
    w, r = net.const(0.3 * normal(1, 4 * WIDTH, WIDTH)), net.const(0.3 * normal(1, 64, WIDTH))
    y = net.many("LSTM", 3, turned, w, r, hidden_size=WIDTH)[0]
    return net("Transpose", net("Squeeze", y, net.ints(1)), perm=[1, 0, 2])


def products(net: Net, x: str) -> str:
    return net("MatMul", net("Softmax", net("MatMul", x, net("Transpose", x, perm=[0, 2, 1]))), x)


def parts(net: Net, x: str) -> str:
    a, b = net.many("Split", 2, x, net.ints(6, 10), axis=-1)
    return net("Concat", net("Neg", b), a, axis=-1)


@pytest.mark.parametrize("middle", [softmax, recurrent, products, parts])
def test_whatever_runs_is_a_step(middle: Callable[[Net, str], str]) -> None:
    """No word is left out: what lies between two products, and what follows the last."""
    net = Net()
    x = net.input("x", "batch", "sequence", WIDTH)
    y = net("Relu", net("MatMul", middle(net, net("MatMul", x, net.weight(WIDTH, WIDTH))),
                        net.weight(WIDTH, WIDTH)))  # fmt: skip
    graph = net.graph(pooled(net, y), softmax(net, y))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    assert_same(net, graph, FEEDS, 3e-5)
    program = program_of(graph)
    (region,) = graph.regions()
    values = {n: w.array() for n, w in graph.weights.items()} | FEEDS
    check_lifetimes(program)
    made = run(program, [values[v] for v in region.operands])
    for got, want in zip(made, net.run(FEEDS), strict=True):
        assert relative_error(got, want) < 1e-5


def test_patches_of_an_image_and_their_attention_are_one_program() -> None:
    net = Net()
    x = net.input("image", "batch", 3, 8, 8)
    patches = net("Conv", x, net.weight(WIDTH, 3, 4, 4), net.weight(WIDTH), strides=[4, 4])
    rows = net("Transpose", net("Reshape", patches, net.ints(0, WIDTH, 4)), perm=[0, 2, 1])
    graph = net.graph(block(net, net("Add", rows, net.weight(1, 4, WIDTH))))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    assert_same(net, graph, {"image": normal(2, 3, 8, 8)}, 3e-5)


def test_a_size_taken_of_what_blocks_read_does_not_part_them() -> None:
    """A mask as long as the first values: its way there is no program's."""
    net = Net()
    ids = net.ids("ids", "batch", "sequence")
    x = net("Gather", net.weight(20, WIDTH), ids)
    mask = net(
        "CumSum", net("Expand", net.weight(1, 1, 1), net("Shape", x)), net.const(1, np.int64)
    )
    y = net("Relu", net("MatMul", norm(net, x), net.weight(WIDTH, WIDTH)))
    y = net("Add", net("MatMul", y, net.weight(WIDTH, WIDTH)), net("Relu", mask))
    graph = loaded(net, net("Relu", net("MatMul", y, net.weight(WIDTH, WIDTH))))
    optimized(graph)
    assert ops(graph).count("FusedRegion") == 1
    assert "CumSum" in ops(graph) and "FusedGemm" not in ops(graph)


def test_heads_that_are_flattened_for_a_product_are_written_side_by_side() -> None:
    """Rows of all items in one matrix: the shapes around the product go, and the parting too."""
    net = Net()
    x = net.input("x", "batch", "sequence", WIDTH)
    attention(net, x)
    parted = net.nodes.pop().input[0]
    rows = net("Reshape", parted, net.ints(-1, WIDTH))
    out = net("Gemm", rows, net.weight(WIDTH, WIDTH), net.weight(WIDTH))
    sizes = net("Concat", net("Slice", net("Shape", x), net.ints(0), net.ints(2)),
                net.ints(WIDTH), axis=0)  # fmt: skip
    graph = net.graph(norm(net, net("Add", net("Reshape", out, sizes), x)))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    assert_same(net, graph, FEEDS, 3e-5)


def test_heads_others_read_stay_apart() -> None:
    net = Net()
    x = net.input("x", "batch", "sequence", WIDTH)
    y = attention(net, x)
    parted = net.nodes[-1].input[0]
    rows = net("Reshape", y, net.ints(-1, WIDTH))
    out = net("Gemm", rows, net.weight(WIDTH, WIDTH), net.weight(WIDTH))
    graph = net.graph(net("Relu", out), net("Neg", parted))
    optimized(graph)
    assert_same(net, graph, FEEDS, 3e-5)


def test_the_largest_score_of_a_head_is_a_step() -> None:
    net = Net(20)
    x = net.input("x", "batch", "seq", 32)
    y = net("Gelu", net("MatMul", x, net.weight(32, 64)))
    scores = net("MatMul", y, net.weight(64, 100))
    graph = net.graph(net("ArgMax", scores, axis=-1, keepdims=0))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    assert [type(s.params).__name__ for s in graph.regions()[0].params.steps][-1] == "ArgParams"
    feeds = {"x": normal(2, 5, 32)}
    assert_same(net, graph, feeds)


def with_normed_heads(net: Net, x: str) -> str:
    """Queries and keys are normalised head by head: their heads are told apart for it."""

    def heads(order: list[int], normed: bool) -> str:
        parted = net("Reshape", net("MatMul", x, net.weight(WIDTH, WIDTH)),
                     net.ints(0, 0, HEADS, WIDTH // HEADS))  # fmt: skip
        if normed:
            width = WIDTH // HEADS
            parted = net("LayerNormalization", parted, net.weight(width), net.weight(width))
        return net("Transpose", parted, perm=order)

    q, k = heads([0, 2, 1, 3], True), heads([0, 2, 3, 1], True)
    shares = net("Softmax", net("Mul", net("MatMul", q, k), 0.35), axis=-1)
    y = net("Transpose", net("MatMul", shares, heads([0, 2, 1, 3], False)), perm=[0, 2, 1, 3])
    return net("MatMul", net("Reshape", y, net.ints(0, 0, WIDTH)), net.weight(WIDTH, WIDTH))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_another_shape_between_steps_is_another_view(precision: str) -> None:
    net = Net()
    x = net.input("x", "batch", "sequence", WIDTH)
    graph = net.graph(net("Relu", net("Add", with_normed_heads(net, x), x)))
    limits = SchedulerLimits(min_gain_us=float("-inf"))
    schedule_rewrites(graph, every_phase(precision=precision), lambda g, r: 1.0, limits)
    program = program_of(graph)
    kernels = {call.name for call in program.calls}
    assert not kernels & {"copy", "elementwise"}
    assert_same(net, graph, FEEDS, 3e-5 if precision == "fp32" else 3e-2)
    assert relative_error(results(graph, program), net.run(FEEDS)[0]) < 3e-2


def test_another_shape_that_others_read_is_written() -> None:
    """It leaves the program: those outside cannot see through a view."""
    net = Net()
    x = net.input("x", "batch", "sequence", WIDTH)
    parted = net("Reshape", net("Relu", net("MatMul", x, net.weight(WIDTH, WIDTH))),
                 net.ints(0, 0, HEADS, WIDTH // HEADS))  # fmt: skip
    normed = net("LayerNormalization", parted, net.weight(WIDTH // HEADS))
    flat = net("Reshape", normed, net.ints(0, 0, WIDTH))
    graph = net.graph(net("Relu", net("MatMul", flat, net.weight(WIDTH, WIDTH))), parted)
    optimized(graph)
    assert_same(net, graph, FEEDS, 3e-5)
    regions = [r for r in graph.regions() if r.op == "FusedRegion"]
    assert len(regions) == 1 and parted in regions[0].results
    values = {n: w.array() for n, w in graph.weights.items()} | FEEDS
    program = lower(graph, regions[0])
    check_lifetimes(program)
    made = run(program, [values[v] for v in regions[0].operands])
    expected = dict(zip(graph.outputs, net.run(FEEDS), strict=True))
    for value, got in zip(regions[0].results, made, strict=True):
        assert relative_error(got, expected[value]) < 1e-5


def test_rows_that_are_turned_around_between_images_and_blocks_are_turned() -> None:
    """A map over a blocked value is no chain over its blocks."""
    net = Net()
    x = net.input("image", "batch", WIDTH, 4, 4)
    y = net("Conv", x, net.weight(WIDTH, WIDTH, 3, 3), pads=[1, 1, 1, 1])
    turned = net("Slice", y, net.ints(-1), net.ints(-9), net.ints(3), net.ints(-1))
    graph = net.graph(net("Relu", net("MatMul", turned, net.weight(4, 4))))
    optimized(graph)
    feeds = {"image": normal(2, WIDTH, 4, 4)}
    assert_same(net, graph, feeds, 3e-5)
    for region in graph.regions():
        program = lower(graph, region)
        values = {n: w.array() for n, w in graph.weights.items()} | feeds
        if set(region.operands) <= set(values):
            assert relative_error(run(program, [values[v] for v in region.operands])[0],
                                  net.run(feeds)[0]) < 1e-5  # fmt: skip
