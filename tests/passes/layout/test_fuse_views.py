"""Data movement goes into who reads or writes the moved value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from tracea_graph.ir import DType, Expr, TensorSpec
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.passes.layout.fuse_views import FuseView, StridedCopy
from tracea_graph.passes.pointwise.elementwise import ElementwiseOp
from tracea_graph.rewrite import DecisionTrace
from tracea_graph.ttg import Region, TileGraph

HEADS, SIZE = 3, 8
FEEDS = {"x": normal(2, 5, 24), "y": normal(2, 3, 5, 8, seed=1)}
END = 2**31 - 1


def new() -> tuple[Net, str]:
    net = Net()
    return net, net.input("x", "batch", "seq", HEADS * SIZE)


def heads(net: Net, x: str) -> str:
    split = net("Reshape", x, net.ints(0, 0, HEADS, SIZE))
    return net("Transpose", split, perm=[0, 2, 1, 3])


def cut(net: Net, x: str, start: int, end: int, axis: int = -1, step: int = 1) -> str:
    return net("Slice", x, net.ints(start), net.ints(end), net.ints(axis), net.ints(step))


def only_producer(graph: TileGraph, value: str) -> Region:
    region = graph.producer(value)
    assert region is not None
    return region


def check(
    net: Net, *outputs: str, feeds: dict[str, Any] = FEEDS
) -> tuple[TileGraph, DecisionTrace]:
    graph = net.graph(*outputs)
    trace = optimized(graph)
    used = {k: v for k, v in feeds.items() if k in net.inputs}
    assert_same(net, graph, used)
    return graph, trace


# ---- reading through views ---------------------------------------------------------------


def test_a_transposed_operand_is_read_where_it_lies() -> None:
    net, x = new()
    graph, _ = check(net, net("Mul", heads(net, x), net.input("y", "batch", HEADS, "seq", SIZE)))
    region = only(graph, "FusedElementwise")
    assert ops(graph) == ["FusedElementwise"] and region.operands == ("x", "y")
    assert [m.op for m in region.params.maps[0].moves] == ["reshape", "transpose"]
    assert not region.params.maps[1]


def test_movement_on_its_own_is_one_copy() -> None:
    net, x = new()
    y = cut(net, net("Transpose", cut(net, x, 2, END, axis=2), perm=[2, 0, 1]), 0, END, 0, 2)
    graph, _ = check(net, y)
    assert ops(graph) == ["FusedElementwise"]
    assert only(graph, "FusedElementwise").params.moves_only


def test_what_only_changes_the_shape_is_left_alone() -> None:
    net, x = new()
    y = net("Unsqueeze", net("Reshape", x, net.ints(0, 0, HEADS, SIZE)), net.ints(0))
    graph, _ = check(net, y)
    assert ops(graph) == ["Reshape", "Unsqueeze"]


def test_every_reader_of_a_split_reads_its_own_part() -> None:
    net, x = new()
    a, b, c = net.many("Split", 3, x, net.ints(8, 8, 8), axis=2)
    graph, _ = check(net, net("Add", net("Mul", a, b), net("Exp", c)))
    assert ops(graph) == ["FusedElementwise"]
    assert set(only(graph, "FusedElementwise").operands) == {"x"}


def test_a_value_read_twice_through_different_views_is_computed_for_each() -> None:
    net, x = new()
    half = net("Neg", x)
    graph, _ = check(net, net("Add", cut(net, half, 0, 12), cut(net, half, 12, END)))
    assert ops(graph) == ["FusedElementwise"]


def test_one_index_of_an_axis() -> None:
    net, x = new()
    picked = net("Gather", x, net.const(-1, np.int64), axis=1)
    row = net("Gather", x, net.const([0], np.int64), axis=1)
    graph, _ = check(net, net("Tanh", picked), net("Relu", row))
    assert ops(graph) == ["FusedElementwise"] * 2


@pytest.mark.parametrize("index", [
    [1, 3, 5], [[0, 1], [2, 3]], [-1], [[[2]], [[6]]], np.arange(24).reshape(1, 24, 1, 1),
    np.arange(24).reshape(6, 4), np.arange(24).reshape(6, 4).T, np.arange(24).reshape(2, 12).T,
], ids=str)  # fmt: skip
@pytest.mark.parametrize("heads_first", [False, True])
def test_places_at_even_distances_are_a_view(index: Any, heads_first: bool) -> None:
    net, x = new()
    value = net("Transpose", x, perm=[0, 2, 1]) if heads_first else x
    picked = net("Gather", value, net.const(index, np.int64), axis=1 if heads_first else 2)
    graph, _ = check(net, net("Tanh", picked))
    assert ops(graph) == ["FusedElementwise"]


@pytest.mark.parametrize("index", [[22, 24], [-26, -25]])
def test_places_beyond_an_axis_are_left_to_onnx_runtime(index: list[int]) -> None:
    net, x = new()
    graph = net.graph(net("Tanh", net("Gather", x, net.const(index, np.int64), axis=2)))
    optimized(graph)
    assert "Gather" in ops(graph)


@pytest.mark.parametrize("index", [[1, 0], [0, 1, 3], [[0, 2], [1, 3]], [0, 0]], ids=str)
def test_other_places_are_none(index: Any) -> None:
    """In falling order, unevenly, twice, or a grid of some of an axis."""
    net, x = new()
    graph, _ = check(net, net("Tanh", net("Gather", x, net.const(index, np.int64), axis=2)))
    assert "Gather" in ops(graph)


@pytest.mark.parametrize("index", [[-1], [[1]], [[1, -2]], [[[0]]]])
def test_one_place_of_the_first_axes(index: list[object]) -> None:
    net, x = new()
    rows = net("Transpose", heads(net, x), perm=[1, 2, 0, 3])
    picked = net("GatherND", rows, net.const(index, np.int64))
    graph, _ = check(net, net("Mul", picked, 2.0))
    assert ops(graph) == ["FusedElementwise"]


def test_several_places_are_no_view() -> None:
    net, x = new()
    picked = net("GatherND", x, net.const([[0], [1]], np.int64))
    inner = net("GatherND", x, net.const([[0], [1]], np.int64), batch_dims=1)
    graph, _ = check(net, net("Relu", picked), net("Relu", inner))
    assert ops(graph).count("GatherND") == 2


def test_a_reshape_of_the_result_changes_only_its_shape() -> None:
    net, x = new()
    moved = net("Transpose", net("Relu", heads(net, x)), perm=[0, 2, 1, 3])
    graph, _ = check(net, net("Reshape", moved, net.ints(0, 0, HEADS * SIZE)))
    assert ops(graph) == ["FusedElementwise"]


def test_transpositions_that_undo_each_other_go() -> None:
    net, x = new()
    there = net("Transpose", x, perm=[0, 2, 1])
    graph, _ = check(net, net("Transpose", net("Relu", there), perm=[0, 2, 1]))
    assert only(graph, "FusedElementwise").params.maps == ()


def test_a_view_goes_through_a_broadcast() -> None:
    net, x = new()
    scaled = net("Mul", heads(net, x), net.weight(HEADS, 1, 1))
    back = net("Transpose", scaled, perm=[0, 2, 1, 3])
    graph, _ = check(net, net("Add", back, net.weight(1, HEADS, SIZE)))
    assert ops(graph) == ["FusedElementwise"]


def test_a_cheap_broadcast_value_is_computed_where_it_is_read() -> None:
    net, x = new()
    offset = net("Sub", 1.0, net.input("r", "seq", 1))
    graph, _ = check(net, net("Mul", x, offset), feeds=FEEDS | {"r": normal(5, 1, seed=4)})
    assert ops(graph) == ["FusedElementwise"]


def test_a_costly_broadcast_value_is_computed_once() -> None:
    net, x = new()
    e = net("Exp", net.input("r", "seq", 1), name="e")
    graph, trace = check(net, net("Mul", x, e), feeds=FEEDS | {"r": normal(5, 1, seed=4)})
    assert ops(graph) == ["FusedElementwise"] * 2
    assert "'e' is broadcast" in reasons(trace, "fuse-view")


def test_a_costly_value_with_other_readers_is_computed_once() -> None:
    net, x = new()
    e = net("Exp", x, name="e")
    graph, trace = check(net, net("Transpose", e, perm=[0, 2, 1]), net("Neg", e))
    assert "'e' has other readers" in reasons(trace, "fuse-view")
    assert ops(graph) == ["FusedElementwise"] * 2
    assert len(only_producer(graph, "e").results) == 2


def test_a_view_that_is_an_output_stays() -> None:
    net, x = new()
    t = net("Transpose", x, perm=[0, 2, 1])
    graph, _ = check(net, net("Relu", t), t)
    assert ops(graph) == ["FusedElementwise"] * 2


def test_what_no_strides_describe_is_moved_first() -> None:
    net = Net()
    x = net.input("x", "batch", 5, 24)
    merged = net("Reshape", net("Transpose", x, perm=[0, 2, 1]), net.ints(0, -1), name="m")
    graph, _ = check(net, net("Relu", net("Transpose", merged, perm=[1, 0])))
    assert ops(graph) == ["FusedElementwise"] * 2


@pytest.mark.parametrize("opset", [17, 21])
def test_bounds_that_are_computed_are_no_view(opset: int) -> None:
    net = Net(opset)
    x = net.input("x", "batch", "seq", 24)
    end = cut(net, net("Shape", x), 1, 2, axis=0)
    moved = net("Slice", net.input("r", 9, 24), net.ints(0), end, net.ints(0), net.ints(1))
    graph = net.graph(net("Relu", moved))
    optimized(graph)
    assert "Slice" in ops(graph)


def test_integers_are_not_moved() -> None:
    net = Net()
    graph = net.graph(net("Transpose", net.ids("i", 3, 4), perm=[1, 0]))
    optimized(graph)
    assert ops(graph) == ["Transpose"]


def test_products_read_transposed_operands_themselves() -> None:
    net, x = new()
    k = net("Transpose", net.input("y", "batch", "seq", 24), perm=[0, 2, 1])
    graph = net.graph(net("MatMul", x, k))
    trace = schedule_only(graph, StridedCopy())
    assert ops(graph) == ["Transpose", "MatMul"]
    assert reasons(trace, "strided-copy") == {
        "ONNX Runtime's MatMul reads a transposed matrix in place"
    }


def test_products_read_transposed_operands_behind_a_scale() -> None:
    net, x = new()
    k = net("Transpose", net.input("y", "batch", "seq", 24), perm=[0, 2, 1])
    graph = net.graph(net("MatMul", x, net("Mul", k, 0.5)))
    schedule_only(graph, ElementwiseOp())
    trace = schedule_only(graph, StridedCopy(), FuseView())
    assert ops(graph) == ["Transpose", "FusedElementwise", "MatMul"]
    assert reasons(trace, "fuse-view") == {
        "ONNX Runtime's MatMul reads a transposed matrix in place"
    }


# ---- concatenations ------------------------------------------------------------------------


def half_turned(net: Net, x: str) -> str:
    left, right = cut(net, x, 0, SIZE // 2), cut(net, x, SIZE // 2, END)
    return net("Concat", net("Neg", right), left, axis=-1)


def half_turned_split(net: Net, x: str) -> str:
    left, right = net.many("Split", 2, x, net.ints(SIZE // 2, SIZE // 2), axis=-1)
    return net("Concat", net("Neg", right), left, axis=-1)


def pairs_turned(net: Net, x: str) -> str:
    even, odd = cut(net, x, 0, END, step=2), cut(net, x, 1, END, step=2)
    last = net.ints(-1)
    parts = net("Unsqueeze", net("Neg", odd), last), net("Unsqueeze", even, last)
    return net("Reshape", net("Concat", *parts, axis=-1), net.ints(0, 0, 0, SIZE))


def pairs_gathered(net: Net, x: str) -> str:
    """As PyTorch exports ``x.reshape(…, -1, 2)`` with its last axis unbound."""
    pairs = net("Reshape", x, net.ints(0, 0, 0, -1, 2))
    even, odd = (net("Gather", pairs, net.const(i, np.int64), axis=-1) for i in (0, 1))
    last = net.ints(-1)
    parts = net("Unsqueeze", net("Neg", odd), last), net("Unsqueeze", even, last)
    return net("Reshape", net("Concat", *parts, axis=-1), net.ints(0, 0, 0, SIZE))


def rotary(net: Net, q: str, turn: Callable[[Net, str], str], *tables: int | str) -> str:
    dims = tables or (1, 1, "seq", SIZE)
    cos, sin = (net.input(name, *dims) for name in ("cos", "sin"))
    return net("Add", net("Mul", q, cos), net("Mul", turn(net, q), sin))


ROTARY_FEEDS = FEEDS | {
    "cos": normal(1, 1, 5, SIZE, seed=2), "sin": normal(1, 1, 5, SIZE, seed=3)
}  # fmt: skip


@pytest.mark.parametrize("turn", [half_turned, half_turned_split])
def test_rotary_embedding_is_one_region_over_the_projection(
    turn: Callable[[Net, str], str],
) -> None:
    net, x = new()
    graph, _ = check(net, rotary(net, heads(net, x), turn), feeds=ROTARY_FEEDS)
    assert ops(graph) == ["FusedConcat"]
    params = only(graph, "FusedConcat").params
    assert isinstance(params, ConcatParams) and len(params.parts) == 2
    assert set(only(graph, "FusedConcat").operands) == {"x", "cos", "sin"}


@pytest.mark.parametrize("turn", [pairs_turned, pairs_gathered])
def test_interleaved_rotary_embedding_reads_the_projection(
    turn: Callable[[Net, str], str],
) -> None:
    net, x = new()
    graph, _ = check(net, rotary(net, heads(net, x), turn), feeds=ROTARY_FEEDS)
    assert set(ops(graph)) == {"FusedConcat", "FusedElementwise"}
    assert all("x" in r.operands for r in graph.regions())


def test_rotary_embedding_writes_the_cache() -> None:
    net = Net()
    past = net.input("y", "batch", HEADS, 5, SIZE)
    k = rotary(net, heads(net, net.input("x", "batch", 5, 24)), half_turned, 1, 1, 5, SIZE)
    graph, _ = check(net, net("Concat", past, k, axis=2), feeds=ROTARY_FEEDS)
    assert ops(graph) == ["FusedConcat"]
    parts = only(graph, "FusedConcat").params.parts
    assert [type(p.params) for p in parts] == [ElementwiseParams, ConcatParams]


def test_parts_are_computed_where_they_belong() -> None:
    net, x = new()
    y = net("Concat", net("Relu", x), cut(net, x, 0, 5), net("Exp", x), axis=-1)
    graph, _ = check(net, y)
    assert ops(graph) == ["FusedConcat"]


@pytest.mark.parametrize("added", [False, True])
def test_an_expanded_part_needs_no_sizes(added: bool) -> None:
    """A class token in front of the patches, and positions added to both."""
    net = Net()
    x = net.input("x", "batch", 5, 24)
    sizes = net("Concat", net("Gather", net("Shape", x), net.ints(0)), net.ints(1, 24), axis=0)
    y = net("Concat", net("Expand", net.weight(1, 1, 24), sizes), x, axis=1)
    graph = loaded(net, net("Add", y, net.weight(6, 24)) if added else y)
    optimized(graph)
    assert_same(net, graph, {"x": normal(3, 5, 24)})
    assert ops(graph) == ["FusedConcat"]


def test_work_on_a_concatenation_is_done_part_by_part() -> None:
    net, x = new()
    both = net("Concat", net("Relu", x), cut(net, x, 0, 8), axis=-1)
    graph, trace = check(net, net("Mul", net("Tanh", both), net.weight(32)))
    assert ops(graph) == ["FusedConcat"] and trace.applied()["sink-concat"] == 1


def test_a_concatenation_others_read_is_made_once() -> None:
    net, x = new()
    e = net("Exp", x, name="e")
    both = net("Concat", e, x, axis=-1, name="both")
    graph, _ = check(net, net("Tanh", both), both)
    assert sorted(ops(graph)) == ["FusedConcat", "FusedConcat", "FusedElementwise"]
    assert only(graph, "FusedElementwise").results == ("e",)


def test_parts_of_an_unknown_size_are_not_pushed_through() -> None:
    net, x = new()
    other = net.input("z", "batch", "more", 24)
    both = net("Concat", x, other, net.input("t", "batch", 2, 24), axis=1)
    graph = net.graph(net("Tanh", both, name="y"))
    total = TensorSpec(DType.F32, ("batch", Expr("add", (Expr("add", ("seq", "more")), 2)), 24))
    graph.specs |= {both: total, "y": total}
    trace = optimized(graph)
    assert ops(graph) == ["FusedConcat", "FusedElementwise"]
    assert "a part's size is not known" in reasons(trace, "sink-concat")


def test_at_most_sixteen_parts() -> None:
    net, x = new()
    graph, trace = check(net, net("Concat", *[x] * 17, axis=-1))
    assert ops(graph) == ["Concat"]
    assert reasons(trace, "concat") == {"it has more than 16 parts"}


def test_integers_are_not_concatenated() -> None:
    net = Net()
    graph = net.graph(net("Concat", net.ids("i", 4), net.ids("j", 5), axis=0))
    optimized(graph)
    assert ops(graph) == ["Concat"]


# ---- movement that ends in merging axes -----------------------------------------------------


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    net = Net()
    y = net("DepthToSpace", net.input("x", "batch", 12, 3, 5), blocksize=2, mode=mode)
    graph, _ = check(net, net("Relu", y), feeds={"x": normal(2, 12, 3, 5)})
    assert set(ops(graph)) == {"FusedElementwise"}


@pytest.mark.parametrize(
    ("opset", "mode"), [(17, {}), (28, {"mode": "DCR"}), (28, {"mode": "CRD"})]
)
def test_space_to_depth(opset: int, mode: dict[str, str]) -> None:
    net = Net(opset)
    y = net("SpaceToDepth", net.input("x", "batch", 3, 4, 6), blocksize=2, **mode)
    graph, _ = check(net, y, feeds={"x": normal(2, 3, 4, 6)})
    assert ops(graph) == ["FusedElementwise"]


@pytest.mark.parametrize("repeats", [(1, 2, 3), (2, 1, 1), (1, 1, 4), (3, 3, 3)])
def test_tile(repeats: tuple[int, ...]) -> None:
    net = Net()
    graph, _ = check(net, net("Tile", net.input("x", 2, 5, 4), net.ints(*repeats)),
                     feeds={"x": normal(2, 5, 4)})  # fmt: skip
    assert ops(graph) == ["FusedElementwise"]


@pytest.mark.parametrize(
    ("how", "rounded"), [("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")]
)
def test_resize_by_whole_numbers(how: str, rounded: str) -> None:
    net = Net()
    x = net.input("x", 2, 3, 5, 4)
    scales = net.const([1, 1, 2, 3])
    attrs = {"mode": "nearest", "coordinate_transformation_mode": how, "nearest_mode": rounded}
    y = net("Resize", x, "", scales, **attrs)
    graph, _ = check(net, y, feeds={"x": normal(2, 3, 5, 4)})
    assert ops(graph) == ["FusedElementwise"]


@pytest.mark.parametrize(
    ("scales", "attrs"),
    [
        ((1, 1, 1.5, 2), {}),
        ((1, 1, 2, 2), {"nearest_mode": "ceil"}),
        ((1, 1, 2, 2), {"mode": "cubic", "exclude_outside": 1}),
        ((1, 1, 2, 2), {"coordinate_transformation_mode": "align_corners"}),
    ],
)
def test_other_resizing_stays(scales: tuple[float, ...], attrs: dict[str, str | int]) -> None:
    net = Net()
    x = net.input("x", "batch", 3, 4, 4)
    graph, _ = check(
        net, net("Resize", x, "", net.const(scales), **attrs), feeds={"x": normal(2, 3, 4, 4)}
    )
    assert ops(graph) == ["Resize"]


def test_a_reshape_whose_sizes_contradict_each_other_is_left_alone() -> None:
    """No such model runs, yet it is returned untouched."""
    net = Net()
    x = net.input("x", 8, 2, 12, 4)
    impossible = net("Reshape", x, net.ints(0, 2, 1, 12, 5))
    turned = net("Transpose", impossible, perm=[0, 2, 1, 3, 4])
    graph = loaded(net, net("Clip", turned, net.const(0.0), net.const(1.0)))
    optimized(graph)
    assert "Reshape" in [n.op for r in graph.regions() for n in r.nodes]


def test_flattened_maps_of_several_scales_lie_side_by_side() -> None:
    """As a detector puts the maps of its levels together: their sizes are multiples of one."""
    net = Net()
    x = net.input("x", "batch", 3, "height", "width")
    flat = [
        net("Reshape", net("Tile", x, net.ints(1, 1, n, n)), net.ints(0, 3, -1)) for n in (4, 2, 1)
    ]
    both = net("Concat", net("Relu", flat[0]), flat[1], net("Neg", flat[2]), axis=-1)
    graph = loaded(net, both)
    assert str(graph.spec(both)) == "f32[batch,3,((height*width)*21)]"
    optimized(graph)
    params = only(graph, "FusedConcat").params
    assert isinstance(params, ConcatParams) and len(params.parts) == 3
    assert not {"Reshape", "Neg", "Relu"} & {*ops(graph)}
    assert_same(net, graph, {"x": normal(2, 3, 2, 5)})


def test_a_sum_that_others_read_too_is_read_not_recomputed() -> None:
    net = Net()
    x, y = net.input("x", "batch", 5, 24), net.input("y", "batch", 5, 24)
    total = net("Add", x, y)
    feeds = {"x": normal(2, 5, 24), "y": normal(2, 5, 24, seed=1)}
    later = net("Mul", net("Transpose", total, perm=[0, 2, 1]), net.const(np.float32(3)))
    graph, _ = check(net, net("Softmax", total), later, feeds=feeds)
    sums = [r for r in graph.regions() if {"x", "y"} <= set(r.operands)]
    assert len(sums) == 1
