"""Trunks: what joins, what stays outside, and that nothing others need is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graphs import (
    Net,
    assert_same,
    evaluate,
    normal,
    only,
    ops,
    optimized,
    reasons,
    relative_error,
)
from tests.interpreter import run
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.onnx_io import load
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.region_subgraph import Subgraph
from tracea_graph.pipeline.result_assembly import assemble_result
from tracea_graph.rewrite import SchedulerLimits
from tracea_graph.target import backend_named
from tracea_graph.ttg import TileGraph

FEEDS = {"x": normal(2, 16, 9, 7)}


def new(*sizes: Any) -> tuple[Net, str]:
    net = Net()
    return net, net.input("x", "n", 16, *(sizes or (9, 7)))


def conv(net: Net, x: str, o: int, i: int = 16, k: int = 3) -> str:
    return net("Conv", x, net.weight(o, i, k, k), net.weight(o), pads=[k // 2] * 4)


def check(net: Net, graph: TileGraph, feeds: dict[str, Any], limit: float = 3e-5) -> None:
    """References and programs both compute what the original does."""
    assert_same(net, graph, feeds, limit)
    values = {n: w.array() for n, w in graph.weights.items()} | feeds
    for region in graph.regions():
        assert region.fused, region.op
        made = run(lower(graph, region), [values[v] for v in region.operands])
        values |= {v: np.asarray(a, np.float32) for v, a in zip(region.results, made, strict=True)}
    for value, want in zip(graph.outputs, evaluate(graph, feeds), strict=True):
        assert relative_error(values[value], want) < 1e-5


def test_a_residual_net_is_one_program() -> None:
    net, x = new()
    y = net("Relu", conv(net, x, 16))
    z = net("Relu", net("Add", conv(net, net("Relu", conv(net, y, 20)), 16, 20), y))
    pooled = net("Flatten", net("GlobalAveragePool", net("MaxPool", z, kernel_shape=[2, 2])))
    graph = net.graph(net("Gemm", pooled, net.weight(16, 5), net.weight(5)))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    check(net, graph, FEEDS)


def test_calls_of_a_program_know_the_nodes_they_compute() -> None:
    net, x = new()
    y = net("Relu", conv(net, x, 16), name="first")
    z = net("Relu", net("Add", conv(net, y, 16), y), name="second")
    graph = net.graph(z)
    optimized(graph)
    region = only(graph, "FusedRegion")
    (made,) = assemble_result(graph, backend_named("cpu")).placed
    named = [names for names in made.call_originals if names]
    assert len(made.program.calls) == len(made.call_originals)
    found = dict.fromkeys(n for names in named for n in names if n in ("first", "second"))
    assert list(found) == ["first", "second"]
    assert {n for names in named for n in names} <= set(made.originals)
    assert [step.nodes for step in Subgraph(graph, region).regions()] == list(region.step_nodes)


def test_values_others_read_leave_the_program() -> None:
    net, x = new()
    y = net("Relu", conv(net, x, 16))
    z = conv(net, y, 16)
    graph = net.graph(net("NonZero", y), net("Relu", conv(net, z, 16)), z)
    optimized(graph)
    region = only(graph, "FusedRegion")
    assert set(region.results) == {y, z, graph.outputs[1]}
    assert_same(net, graph, FEEDS, 3e-5)


def test_no_path_leaves_a_program_and_comes_back() -> None:
    net, x = new()
    y = conv(net, x, 16)
    other = net("CumSum", y, net.const(1, np.int64))
    graph = net.graph(conv(net, net("Add", conv(net, y, 16), other), 16))
    optimized(graph)
    assert Counter(ops(graph))["FusedRegion"] == 1 and "CumSum" in ops(graph)
    assert_same(net, graph, FEEDS, 3e-5)


def test_words_that_know_nothing_of_images_are_steps_between_convolutions() -> None:
    net, x = new()
    y = conv(net, x, 16)
    shares = net("Mul", y, net("Softmax", y, axis=1))
    rows = net("Softmax", net("Add", conv(net, shares, 16), net.mean(y, -1)), axis=-1)
    graph = net.graph(conv(net, net("Add", rows, y), 16))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    check(net, graph, FEEDS)


def test_squeeze_and_excite() -> None:
    net, x = new()
    y = conv(net, x, 24)
    s = net("Relu", net("Conv", net("GlobalAveragePool", y), net.weight(6, 24, 1, 1)))
    s = net("Sigmoid", net("Conv", s, net.weight(24, 6, 1, 1), net.weight(24)))
    graph = net.graph(conv(net, net("Mul", y, s), 16, 24))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    check(net, graph, FEEDS)


def test_split_concat_and_resize() -> None:
    net = Net()
    x = net.input("x", 2, 16, 9, 7)
    y = conv(net, x, 32)
    a, b = net.many("Split", 2, y, net.ints(16, 16), axis=1)
    c = conv(net, b, 16)
    joined = net("Concat", a, b, c, x, axis=1)
    small = conv(net, joined, 16, 64)
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    up = net("Resize", small, "", net.const([1, 1, 2, 2]), mode="nearest", **how)
    graph = net.graph(conv(net, up, 16))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    check(net, graph, FEEDS)


@pytest.mark.parametrize("channels", [5, 16])
def test_slices_of_channels_wherever_they_begin(channels: int) -> None:
    net, x = new()
    y = conv(net, x, 32)
    part = net("Slice", y, net.ints(channels), net.ints(2**60), net.ints(1))
    graph = net.graph(conv(net, part, 16, 32 - channels))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    check(net, graph, FEEDS)


def test_channels_last_norm_and_products() -> None:
    net, x = new()
    y = net("Transpose", conv(net, x, 16), perm=[0, 2, 3, 1])
    y = net("LayerNormalization", y, net.weight(16), net.weight(16), axis=-1)
    y = net("Relu", net("Add", net("MatMul", y, net.weight(16, 48)), net.weight(48)))
    y = net("Mul", net("MatMul", y, net.weight(48, 16)), net.weight(16))
    y = net("Add", x, net("Transpose", y, perm=[0, 3, 1, 2]))
    graph = net.graph(conv(net, y, 16))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    check(net, graph, FEEDS)


def test_a_norm_over_channels() -> None:
    net, x = new()
    y = conv(net, x, 16)
    centred = net("Sub", y, net.mean(y, 1))
    variance = net.mean(net("Pow", centred, 2.0), 1)
    normed = net("Div", centred, net("Sqrt", net("Add", variance, 1e-6)))
    y = net("Add", net("Mul", net.weight(16, 1, 1), normed), net.weight(16, 1, 1))
    graph = net.graph(conv(net, y, 16))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    check(net, graph, FEEDS)


@pytest.mark.parametrize("size", [(8, 8), (13, 6)])
def test_sizes_known_only_when_it_runs(size: tuple[int, int]) -> None:
    net, x = new("h", "w")
    y = net("Relu", conv(net, x, 16))
    y = net("Conv", y, net.weight(16, 16, 3, 3), pads=[1] * 4, strides=[2, 2])
    graph = net.graph(net("GlobalAveragePool", net("MaxPool", y, kernel_shape=[2, 2])))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    check(net, graph, {"x": normal(1, 16, *size)})


def test_a_frozen_convolution_splits_the_program() -> None:
    net, x = new()
    values = [x]
    for _ in range(5):
        values.append(net("Relu", conv(net, values[-1], 16)))
    graph = net.graph(values[-1])
    frozen = {net.nodes[4].output[0]: "it was wrong"}
    optimized(graph, limits=SchedulerLimits(frozen=frozen, min_gain_us=-np.inf, check=True))
    assert Counter(ops(graph))["FusedRegion"] == 2 and "Conv" in ops(graph)
    assert_same(net, graph, FEEDS, 3e-5)


def test_a_lone_convolution_is_no_program() -> None:
    net, x = new()
    graph = net.graph(net("Relu", conv(net, x, 16)))
    optimized(graph)
    assert ops(graph) == ["FusedConv"]
    check(net, graph, FEEDS)


@pytest.mark.parametrize("side", [2, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_a_transposed_convolution_without_overlap(side: int, bias: bool) -> None:
    net = Net()
    x = net.input("x", 2, 16, 9, 7)
    operands = [conv(net, x, 20), net.weight(20, 16, side, side), *([net.weight(16)] * bias)]
    up = net("ConvTranspose", *operands, strides=[side, side])
    graph = net.graph(conv(net, net("Relu", up), 16))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    check(net, graph, FEEDS)


@pytest.mark.parametrize(
    ("filters", "kernel", "attrs"),
    [
        (16, 4, {"strides": [2, 2], "pads": [1] * 4}),
        (24, 3, {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
        (32, 3, {"strides": [2, 2], "pads": [0, 0, 1, 1]}),
        (3, 5, {"strides": [2, 2], "pads": [2] * 4, "output_padding": [1, 1]}),
        (1, 4, {"strides": [2, 2], "pads": [1] * 4}),
        (16, 3, {"pads": [1] * 4}),
        (32, 4, {"strides": [2, 2], "pads": [1] * 4, "group": 2}),
        (20, 4, {"strides": [2, 2], "pads": [1] * 4, "group": 20}),
        (20, 2, {"strides": [2, 2]}),
        (16, 6, {"strides": [3, 3], "pads": [1, 2, 2, 1]}),
    ],
)
@pytest.mark.parametrize("rank", [1, 2])
def test_a_transposed_convolution_by_phases(
    filters: int, kernel: int, attrs: dict[str, Any], rank: int
) -> None:
    """Every phase is a convolution of its own taps; one or two axes, any number of filters."""
    net = Net()
    groups = attrs.get("group", 1)
    channels = filters if groups == filters else 32
    x = net.input("x", "n", channels, *(9, "w")[2 - rank :])
    own = {k: v[-rank:] if len(v) == 2 else [*v[:2][-rank:], *v[2:][-rank:]]
           for k, v in attrs.items() if k != "group"}  # fmt: skip
    weight = net.weight(channels, filters // groups, *(kernel,) * rank)
    up = net("ConvTranspose", x, weight, net.weight(filters), group=groups, **own)
    graph = net.graph(net("Relu", up))
    optimized(graph)
    assert ops(graph) == ["FusedRegion" if "strides" in attrs else "FusedConv"]
    check(net, graph, {"x": normal(2, channels, *(9, 7)[2 - rank :])})


@pytest.mark.parametrize(
    ("filters", "kernel", "strides", "pads", "groups"),
    [
        (16, (1, 5), (1, 2), (0, 2, 0, 1), 1), (16, (1, 6), (1, 2), (0, 2, 0, 2), 16),
        (2, (1, 6), (1, 2), (0, 2, 0, 2), 1), (16, (4, 3), (4, 1), (0, 1, 0, 1), 1),
        (20, (2, 3), (2, 3), (0, 0, 0, 0), 1), (3, (4, 6), (2, 3), (1, 1, 1, 2), 1),
    ],
)  # fmt: skip
def test_a_transposed_convolution_by_other_steps_down_than_across(
    filters: int, kernel: tuple[int, int], strides: tuple[int, int],
    pads: tuple[int, ...], groups: int,
) -> None:  # fmt: skip
    net = Net()
    x, weight = net.input("x", "n", 16, 7, 9), net.weight(16, filters // groups, *kernel)
    more = {"strides": [*strides], "pads": [*pads], "group": groups}
    graph = net.graph(net("Relu", net("ConvTranspose", x, weight, net.weight(filters), **more)))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    check(net, graph, {"x": normal(2, 16, 7, 9)})


@pytest.mark.parametrize(
    ("filters", "kernel", "attrs"),
    [
        (1, 4, {"strides": [2, 2], "pads": [1] * 4}),
        (3, 3, {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
        (2, 6, {"strides": [3, 3], "pads": [1, 2, 2, 1]}),
        (4, 3, {"strides": [2, 2], "pads": [0, 0, 1, 1]}),
        (1, 8, {"strides": [4, 4]}),
    ],
)
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("entry", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_a_transposed_convolution_to_few_channels_sums_what_taps_give(
    filters: int, kernel: int, attrs: dict[str, Any], rank: int, entry: bool, biased: bool
) -> None:
    """One convolution 1x1 whose filters are the taps, of plain or blocked values."""
    net = Net()
    x = net.input("x", "n", 20, *(9, 7)[2 - rank :])
    own = {k: v[-rank:] if len(v) == 2 else [*v[:2][-rank:], *v[2:][-rank:]]
           for k, v in attrs.items()}  # fmt: skip
    source = x if entry else net("Conv", x, net.weight(20, 20, *(1,) * rank))
    bias = (net.weight(filters),) if biased else ()
    up = net("ConvTranspose", source, net.weight(20, filters, *(kernel,) * rank), *bias, **own)
    graph = net.graph(net("Tanh", up))
    optimized(graph)
    (region,) = graph.regions()
    convs = [s.params for s in region.params.steps if isinstance(s.params, ConvParams)]
    assert convs[-1].window.kernel == (1,) * rank
    assert convs[-1].filters == filters * kernel**rank
    assert {c.layout.name for c in convs} == {"blocked"}
    check(net, graph, {"x": normal(2, 20, *(9, 7)[2 - rank :])})


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        (
            {"strides": [2, 2], "pads": [1, 1, 0, 0]},
            "its kernel, stride and padding give phases of unequal size",
        ),
        (
            {"strides": [3, 3], "output_padding": [1, 1]},
            "its windows do not cover the result, or padding cuts them",
        ),
        ({"strides": [2, 9]}, "its strides are too large"),
        ({"dilations": [2, 2]}, "its windows do not cover the result, or padding cuts them"),
        (
            {"output_shape": [18, 14], "strides": [2, 2]},
            "its output_shape or auto_pad sets the size of the result",
        ),
        ({"group": 4}, "its channels per group are not a multiple of the vector width"),
    ],
)
def test_other_transposed_convolutions_stay(attrs: dict[str, Any], reason: str) -> None:
    net, x = new()
    groups = attrs.get("group", 1)
    graph = net.graph(net("ConvTranspose", x, net.weight(16, 16 // groups, 2, 2), **attrs))
    trace = optimized(graph)
    assert ops(graph) == ["ConvTranspose"]
    assert reasons(trace, "conv-transpose") == {reason}


def test_a_window_larger_than_its_input_stays() -> None:
    net = Net()
    graph = net.graph(net("ConvTranspose", net.input("x", 1, 16, 1, 1), net.weight(16, 16, 4, 4)))
    trace = optimized(graph)
    assert ops(graph) == ["ConvTranspose"]
    assert reasons(trace, "conv-transpose") == {"its input is smaller than a window"}


@pytest.mark.parametrize(("axis", "rule"), [(1, "cluster-conv"), (3, "cluster")])
def test_the_channel_of_the_largest_number_ends_a_program(axis: int, rule: str) -> None:
    """What looks along positions is made behind it, in the same program."""
    net, x = new()
    scores = conv(net, net("Relu", conv(net, x, 16)), 21, k=1)
    big = net("Resize", scores, "", net.const(np.array([1, 1, 2, 2], np.float32)), mode="linear")
    graph = net.graph(net("ArgMax", big, axis=axis, keepdims=0))
    optimized(graph)
    assert only(graph, "FusedRegion").rule == rule
    check(net, graph, FEEDS)


def test_rows_after_a_conv_program_are_of_its_program() -> None:
    """Images, then one row a position: the Transpose between them is worth no kernel alone."""
    net, x = new()
    images = net("MaxPool", net("Relu", conv(net, x, 16)), kernel_shape=[2, 2], strides=[2, 2])
    rows = net("Transpose", net("Reshape", images, net.ints(0, 16, -1)), perm=[0, 2, 1])
    hidden = net("Relu", net("MatMul", rows, net.weight(16, 24)))
    graph = net.graph(net("MatMul", hidden, net.weight(24, 16)))
    optimized(graph)
    region = only(graph, "FusedRegion")
    assert region.rule == "cluster" and ops(graph) == ["FusedRegion"]
    check(net, graph, FEEDS)


@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.parametrize("batch", ["n", 1])
def test_what_repeats_along_rows_or_columns_lies_over_blocks(channels: int, batch: Any) -> None:
    """Attention by coordinates: a factor for each channel and row, and for each column."""
    net = Net()
    x = net.input("x", "n", 16, 9, 7)
    tall = net.input("tall", batch, channels, 9, 1)
    wide = net.input("wide", batch, channels, 1, 7)
    y = conv(net, x, channels)
    y = net("Mul", net("Mul", net("Tanh", y), net("Sigmoid", tall)), net("Sigmoid", wide))
    graph = net.graph(conv(net, y, 16, channels))
    optimized(graph)
    assert "FusedRegion" in ops(graph)
    (region,) = (r for r in graph.regions() if r.op == "FusedRegion")
    assert sum(isinstance(s.params, ConvParams) for s in region.params.steps) == 2
    count = 2 if batch == "n" else 1
    check(net, graph, FEEDS | {"tall": normal(count, channels, 9, 1, seed=1),
                               "wide": normal(count, channels, 1, 7, seed=2)})  # fmt: skip


@pytest.mark.parametrize(("channels", "bands"), [(16, 3), (20, 9)])
def test_batch_norm_of_bands_of_rows_is_a_step(channels: int, bands: int) -> None:
    net, x = new()
    y = conv(net, x, channels)
    seen = net("Reshape", y, net.ints(0, channels * bands, 9 // bands, 7))
    variance = net.const(np.abs(normal(channels * bands, seed=77)) + 0.5)
    figures = (*(net.weight(channels * bands) for _ in range(3)), variance)
    normed = net("BatchNormalization", seen, *figures)
    back = net("Reshape", normed, net.ints(0, channels, 9, 7))
    graph = net.graph(conv(net, net("Relu", back), 16, channels))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    check(net, graph, FEEDS)


def test_batch_norm_of_another_split_stays_what_it_is() -> None:
    net, x = new()
    y = conv(net, x, 16)
    seen = net("Reshape", y, net.ints(0, 48, 7, 3))  # columns are cut, too
    variance = net.const(np.abs(normal(48, seed=77)) + 0.5)
    normed = net("BatchNormalization", seen, *(net.weight(48) for _ in range(3)), variance)
    graph = net.graph(net("Reshape", normed, net.ints(0, 16, 9, 7)))
    optimized(graph)
    assert_same(net, graph, FEEDS)


def test_what_does_not_fit_keeps_no_others_apart(tmp_path: Path) -> None:
    """Four images an item: that their number divides is known outside the program alone."""
    net = Net()
    images = net("Reshape", net.input("x", "n", 4, 3, 8, 8), net.ints(-1, 3, 8, 8))
    made = net("Relu", conv(net, images, 16, i=3))
    rows = net("Reshape", made, net.ints(-1, 4, 1024))
    hidden = net("Relu", net("MatMul", rows, net.weight(1024, 24)))
    net.graph(net("MatMul", hidden, net.weight(24, 16)))
    (tmp_path / "m.onnx").write_bytes(net.model.SerializeToString())
    graph = load(tmp_path / "m.onnx").graph
    optimized(graph)
    assert only(graph, "FusedRegion").results == (graph.outputs[0],)
    assert_same(net, graph, {"x": normal(2, 4, 3, 8, 8)})
