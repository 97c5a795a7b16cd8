"""Convolutions, what they absorb, and what must not be absorbed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from tests.graphs import (
    Net,
    assert_same,
    every_phase,
    normal,
    only,
    ops,
    optimized,
    reasons,
    schedule_only,
)
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.filters import LAYOUTS, DispatchFilters
from tracea_graph.kernels.cpu.phases.conv_bf16 import ConvBf16
from tracea_graph.kernels.cpu.phases.conv_int16 import ConvInt16
from tracea_graph.kernels.cpu.phases.conv_winograd import ConvWinograd
from tracea_graph.kernels.cpu.phases.pack_filters import PackFilters
from tracea_graph.passes.convolution import batch_norm, conv, pool
from tracea_graph.pipeline.result_assembly import assemble_result
from tracea_graph.rewrite import Proposal, RulePass
from tracea_graph.target import BACKENDS

LIFT = (RulePass(conv.CONV), RulePass(conv.CONV_PAD), batch_norm.ConvBatchNorm())
FUSE = (conv.ConvEpilogue(), RulePass(batch_norm.BATCH_NORM))
FEEDS = {"x": normal(2, 16, 9, 7)}


def new(channels: int = 16) -> tuple[Net, str]:
    net = Net()
    return net, net.input("x", "n", channels, 9, 7)


def convolve(net: Net, x: str, o: int, i: int, k: int = 3, bias: bool = True, **attrs: Any) -> str:
    operands = [x, net.weight(o, i, k, k), *([net.weight(o)] if bias else [])]
    attrs = {"pads": [k // 2] * 4} | attrs
    return net("Conv", *operands, **attrs)


def batch_norm(net: Net, x: str, channels: int, **attrs: Any) -> str:
    gamma, beta, mean = (net.weight(channels) for _ in range(3))
    variance = net.const(np.abs(normal(channels, seed=77)) + 0.5)
    return net("BatchNormalization", x, gamma, beta, mean, variance, **attrs)


# ---- lifting -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "attrs", "kernel", "pads"),
    [
        ((1, 1), {}, (1, 1), (0, 0, 0, 0)),
        ((1, 1), {"strides": [2, 2]}, (1, 1), (0, 0, 0, 0)),
        ((1, 5), {}, (1, 3), (0, 1, 0, 1)),
        ((9, 7), {"dilations": [9, 3], "pads": [9, 3, 9, 3]}, (1, 3), (0, 3, 0, 3)),
        ((9, 7), {"dilations": [12, 8], "pads": [12, 8, 12, 8]}, (1, 1), (0, 0, 0, 0)),
        ((2, 2), {"strides": [2, 2]}, (2, 2), (0, 0, 1, 1)),
        ((2, 2), {}, (3, 3), (1, 1, 1, 1)),
        ((3, 3), {"dilations": [4, 4], "pads": [5, 1, 8, 9]}, (2, 1), (5, 1, 4, 1)),
        ((4, 1), {"pads": [0, 3, 0, 0]}, (3, 1), (0, 1, 0, 0)),
        ((5, 6), {"pads": [0, 0, 0, 0], "strides": [3, 3]}, (3, 3), (0, 0, 0, 0)),
    ],
)
@pytest.mark.parametrize("layout", ["blocked", "first_layer", "depthwise", "plain"])
def test_taps_that_only_read_padding_go(
    size: tuple[int, int], attrs: dict[str, Any], kernel: Any, pads: Any, layout: str
) -> None:
    channels = 3 if layout == "first_layer" else 16
    net = Net()
    x = net.input("x", "n", channels, *size)
    group = {"depthwise": 16, "plain": 8}.get(layout, 1)
    operands = (x, net.weight(16, channels // group, 3, 3), net.weight(16))
    graph = net.graph(net("Conv", *operands, **({"pads": [1] * 4, "group": group} | attrs)))
    schedule_only(graph, *LIFT)
    schedule_only(graph, PackFilters())
    window = only(graph, "FusedConv").params.window
    assert (window.kernel, window.pads) == (kernel, pads)
    assert_same(net, graph, {"x": normal(2, channels, *size)})


def test_taps_are_taken_of_each_convolution_that_has_the_filters() -> None:
    net = Net()
    x, y = net.input("x", "n", 16, 1, 1), net.input("y", "n", 16, 6, 6)
    w = net.weight(16, 16, 3, 3)
    outs = [net("Conv", value, w, pads=[1] * 4) for value in (x, y)]
    graph = net.graph(*outs)
    schedule_only(graph, *LIFT)
    schedule_only(graph, PackFilters())
    kernels = {r.params.window.kernel for r in graph.regions() if r.op == "FusedConv"}
    assert kernels == {(1, 1), (3, 3)}
    assert_same(net, graph, {"x": normal(2, 16, 1, 1), "y": normal(2, 16, 6, 6)})


@pytest.mark.parametrize(
    ("layout", "channels", "filters", "attrs"),
    [
        ("blocked", 16, 20, {}),
        ("blocked", 16, 20, {"strides": [2, 1], "dilations": [1, 2], "pads": [0, 1, 2, 0]}),
        ("depthwise", 16, 16, {"group": 16}),
        ("blocked", 64, 32, {"group": 2}),
        ("blocked", 16, 32, {"group": 4}),
        ("blocked", 16, 16, {"group": 2}),
        ("blocked", 48, 48, {"group": 2}),
        ("blocked", 64, 32, {"group": 8, "strides": [2, 1]}),
        ("plain", 48, 48, {"group": 6 * 4}),
        ("plain", 24, 24, {"group": 3}),
        ("plain", 16, 32, {"group": 16}),
        ("first_layer", 3, 20, {}),
        ("blocked", 16, 20, {"auto_pad": "SAME_UPPER", "pads": [], "strides": [2, 2]}),
        ("blocked", 16, 20, {"auto_pad": "SAME_LOWER", "pads": [], "strides": [3, 2]}),
        ("blocked", 16, 20, {"auto_pad": "VALID", "pads": []}),
    ],
)
def test_every_layout(layout: str, channels: int, filters: int, attrs: dict[str, Any]) -> None:
    net, x = new(channels)
    attrs = {k: v for k, v in ({"pads": [1] * 4} | attrs).items() if v}
    group = attrs.get("group", 1)
    operands = (x, net.weight(filters, channels // group, 3, 3), net.weight(filters))
    graph = net.graph(net("Conv", *operands, **attrs))
    schedule_only(graph, *LIFT)
    schedule_only(graph, PackFilters())
    assert only(graph, "FusedConv").params.layout.name == layout
    assert_same(net, graph, {"x": normal(2, channels, 9, 7)})


def test_one_and_three_axes() -> None:
    net = Net()
    x, y = net.input("x", "n", 20, 31), net.input("y", "n", 3, 5, 6, 7)
    a = net("Conv", x, net.weight(16, 20, 3), pads=[1, 1], strides=[2])
    b = net("Conv", y, net.weight(4, 3, 2, 2, 2))
    graph = net.graph(a, b)
    schedule_only(graph, *LIFT)
    schedule_only(graph, PackFilters())
    assert [r.params.layout.name for r in graph.regions()] == ["blocked", "plain"]
    assert_same(net, graph, {"x": normal(2, 20, 31), "y": normal(2, 3, 5, 6, 7)})


def test_weights_stay_without_prepacking() -> None:
    net, x = new()
    graph = net.graph(convolve(net, x, 20, 16))
    weights = set(graph.weights)
    optimized(graph, every_phase(prepack=False))
    assert only(graph, "FusedConv").params.layout.name == "plain" and set(graph.weights) == weights


def test_filters_others_need_are_packed_at_load() -> None:
    """They are stored once, as those need them."""
    net = Net()
    x, y = net.input("x", "n", 64, 9, 7), net.input("y", 64, 64, 3, 3)
    shared = net.weight(64, 64, 3, 3)
    graph = net.graph(net("Conv", x, shared), net("Add", y, shared))
    schedule_only(graph, *LIFT)
    schedule_only(graph, PackFilters())
    region = only(graph, "FusedConv")
    packed = graph.weights[region.operands[1]]
    assert region.params.layout.name == "blocked"
    assert [n for n in packed.computed_by if shared in n.inputs] and shared in graph.weights
    feeds = {"x": normal(1, 64, 9, 7), "y": normal(64, 64, 3, 3, seed=1)}
    assert_same(net, graph, feeds)


def test_filters_that_are_computed_stay_as_they_are() -> None:
    net, x = new()
    w = net.input("w", 8, 16, 3, 3)
    graph = net.graph(net("Conv", x, w))
    trace = schedule_only(graph, *LIFT)
    assert reasons(trace, "conv") == {"the filters 'w' are not constant"}


def test_same_padding_of_unknown_sizes_is_refused() -> None:
    net = Net()
    x = net.input("x", "n", 16, "h", "w")
    w = net.weight(16, 16, 3, 3)
    one = net("Conv", x, w, auto_pad="SAME_UPPER")
    two = net("Conv", x, w, auto_pad="SAME_UPPER", strides=[2, 2])
    graph = net.graph(one, two)
    trace = schedule_only(graph, *LIFT)
    assert ops(graph).count("FusedConv") == 1
    assert reasons(trace, "conv") == {"its auto_pad depends on a size that is not known"}


# ---- padding in front --------------------------------------------------------------------


def test_zeros_in_front_become_padding() -> None:
    net, x = new()
    padded = net("Pad", x, net.ints(0, 0, 0, 1, 0, 0, 2, 0), 0.0)
    graph = net.graph(convolve(net, padded, 20, 16))
    schedule_only(graph, *LIFT)
    assert only(graph, "FusedConv").params.window.pads == (1, 2, 3, 1)
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize(
    ("pads", "value", "mode", "reason"),
    [
        ((0, 0, 1, 1, 0, 0, 1, 1), 1.0, "constant", "the padding is not zero"),
        (
            (0, 0, 1, 1, 0, 0, 1, 1),
            0.0,
            "reflect",
            "the padding repeats or mirrors elements instead of adding zeros",
        ),
        ((0, 0, -1, 1, 0, 0, 1, 1), 0.0, "constant", "batch or channels are padded"),
        ((0, 0, 1, 1, 1, 0, 1, 1), 0.0, "constant", "batch or channels are padded"),
    ],
)
def test_other_padding_stays(pads: Any, value: float, mode: str, reason: str) -> None:
    net, x = new()
    padded = net("Pad", x, net.ints(*pads), value, mode=mode)
    graph = net.graph(convolve(net, padded, 20, 16))
    trace = schedule_only(graph, *LIFT)
    assert "Pad" in ops(graph)
    assert any(reason in r for r in reasons(trace, "conv-pad"))


# ---- batch normalisation -----------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("channels", "filters", "group"), [(16, 20, 1), (16, 16, 16), (3, 20, 1)])
def test_batch_norm_behind_is_folded(channels: int, filters: int, group: int, bias: bool) -> None:
    net, x = new(channels)
    y = convolve(net, x, filters, channels // group, bias=bias, group=group)
    graph = net.graph(batch_norm(net, y, filters, epsilon=1e-3))
    schedule_only(graph, *LIFT)
    assert ops(graph) == ["FusedConv"]
    assert_same(net, graph, {"x": normal(2, channels, 9, 7)})


@pytest.mark.parametrize("group", [1, 2, 4, 16])
def test_batch_norm_in_front_is_folded_where_nothing_is_padded(group: int) -> None:
    net, x = new()
    y = convolve(net, batch_norm(net, x, 16), 16, 16 // group, pads=[0] * 4, group=group)
    graph = net.graph(y)
    schedule_only(graph, *LIFT)
    assert ops(graph) == ["FusedConv"]
    assert_same(net, graph, FEEDS)


def test_batch_norm_before_padding_stays_in_front() -> None:
    net, x = new()
    graph = net.graph(convolve(net, batch_norm(net, x, 16), 20, 16))
    trace = schedule_only(graph, *LIFT)
    assert ops(graph) == ["BatchNormalization", "FusedConv"]
    assert reasons(trace, "conv-batch-norm") == {
        "the convolution pads, and the norm's shift does not apply to padding"
    }
    optimized(graph)
    assert "BatchNormalization" not in ops(graph)
    assert_same(net, graph, FEEDS)


def test_batch_norm_of_a_value_others_read_is_not_folded() -> None:
    net, x = new()
    y = convolve(net, x, 16, 16)
    graph = net.graph(batch_norm(net, y, 16), net("Abs", y))
    trace = schedule_only(graph, *LIFT)
    assert any("other readers" in r for r in reasons(trace, "conv-batch-norm"))
    optimized(graph)
    assert_same(net, graph, FEEDS)


def test_filters_shared_by_two_norms_are_folded_twice() -> None:
    net, x = new()
    w = net.weight(16, 16, 3, 3)
    first = batch_norm(net, net("Conv", x, w, pads=[1] * 4), 16)
    graph = net.graph(batch_norm(net, net("Conv", first, w, pads=[1] * 4), 16))
    schedule_only(graph, *LIFT)
    assert ops(graph) == ["FusedConv"] * 2
    assert len({r.operands[1] for r in graph.regions()}) == 2
    assert_same(net, graph, FEEDS)


# ---- epilogues ---------------------------------------------------------------------------


def test_activation_residual_and_channel_operands() -> None:
    net, x = new()
    y = net("PRelu", convolve(net, x, 16, 16), net.weight(16, 1, 1))
    y = net("Mul", net("Add", x, y), net.weight(1, 16, 1, 1))
    graph = net.graph(net("Relu", net("Add", y, 0.5)))
    schedule_only(graph, *LIFT)
    schedule_only(graph, *FUSE)
    region = only(graph, "FusedConv")
    assert region.params.epilogue.operands == ("full", "row", "full", "row")
    assert_same(net, graph, FEEDS)


def test_a_value_others_read_keeps_its_epilogue_apart() -> None:
    net, x = new()
    y = convolve(net, x, 16, 16)
    graph = net.graph(net("Relu", y), y)
    schedule_only(graph, *LIFT)
    trace = schedule_only(graph, *FUSE)
    assert ops(graph) == ["FusedConv", "Relu"]
    assert any("other readers" in r for r in reasons(trace, "conv-epilogue"))


def test_one_number_per_position_is_no_epilogue() -> None:
    net, x = new()
    graph = net.graph(net("Mul", convolve(net, x, 16, 16), net.weight(1, 1, 9, 7)))
    schedule_only(graph, *LIFT)
    trace = schedule_only(graph, *FUSE)
    assert any("nor one value per channel" in r for r in reasons(trace, "conv-epilogue"))


def test_winograd_only_where_it_is_exact_mathematics() -> None:
    net, x = new()
    graph = net.graph(
        convolve(net, x, 32, 16), convolve(net, x, 32, 16, pads=[1, 1, 1, 0]),
        convolve(net, x, 32, 16, strides=[2, 2]), convolve(net, x, 32, 16, dilations=[2, 2]),
    )  # fmt: skip
    schedule_only(graph, *LIFT)
    schedule_only(graph, PackFilters())
    schedule_only(graph, ConvWinograd())
    layouts = [r.params.layout.name for r in graph.regions()]
    assert [name.startswith("winograd") for name in layouts] == [True, False, False, False]
    assert_same(net, graph, FEEDS, 3e-5)


def test_transformed_filters_are_not_stored() -> None:
    net, x = new()
    graph = net.graph(convolve(net, x, 32, 16))
    schedule_only(graph, *LIFT)
    schedule_only(graph, PackFilters())
    schedule_only(graph, ConvWinograd())
    assembly = assemble_result(graph, BACKENDS[0])
    stored = {v: w.nbytes for v, w in assembly.weights().items()}
    assert stored == {"w0_blocked": 32 * 16 * 9 * 4, "w1": 32 * 4}
    *made, last = assembly.nodes("d")
    assert made[-1].outputs == last.inputs[1:2] and made[0].inputs == ("w0_blocked",)


def test_filters_of_open_sizes_stay_as_they_are_too() -> None:
    net = Net()
    x = net.input("x", "n", 16, "h", "w")
    graph = net.graph(net("Relu", convolve(net, x, 32, 16)))
    schedule_only(graph, *LIFT)
    schedule_only(graph, PackFilters())
    schedule_only(graph, ConvWinograd())
    schedule_only(graph, *FUSE)
    (region,) = graph.regions()
    assert isinstance(region.params.layout, DispatchFilters) and region.params.epilogue
    assert region.operands[-1] == "w0_blocked" and region.operands[1].startswith("w0_winograd")
    feeds = {"x": normal(2, 16, 3, 5)}
    assert_same(net, graph, feeds, 3e-5)


@pytest.mark.parametrize(
    ("rule", "direct", "transforms"),
    [
        (ConvWinograd(), "blocked", ["winograd2", "winograd4"]),
        (ConvBf16(), "vnni2", ["winograd2_vnni2"]),
        (ConvInt16(), "int16", ["winograd2_int16"]),
    ],
    ids=["float32", "bf16", "int16"],
)
@pytest.mark.parametrize("height", [9, "h"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_one_rule_for_either_way(
    rule: Any, direct: str, transforms: list[str], height: int | str, kernel: int
) -> None:
    """Filters are kept both ways where sizes are open and there is a transform."""
    net = Net()
    graph = net.graph(convolve(net, net.input("x", "n", 16, height, 7), 32, 16, kernel))
    schedule_only(graph, *LIFT)
    schedule_only(graph, PackFilters())
    (region,) = graph.regions()
    found = [p for p in rule.propose(graph, region) if isinstance(p, Proposal)]
    made = {}
    for proposal in found:
        (new,) = proposal.new
        either = isinstance(new.params.layout, DispatchFilters)
        made[new.params.layout.name] = either
        weights = graph.weights | proposal.weights
        direct_shape = LAYOUTS[direct].shape((32, 16, kernel, kernel))
        kept = [weights[v].shape == direct_shape for v in new.operands[1:]]
        assert any(kept) == (either or new.params.layout.name == direct)
        assert len(new.operands) == new.params.operands
    fixed = {} if direct == "blocked" else {direct: False}
    assert made == fixed | (dict.fromkeys(transforms, height == "h") if kernel == 3 else {})


HALF = np.array([0.5], np.float32)


def test_filters_made_from_one_number_are_still_made_at_load() -> None:
    net, x = new()
    filled = net("ConstantOfShape", net.ints(200, 16, 3, 3), value=numpy_helper.from_array(HALF))
    graph = net.graph(net("Conv", x, filled, pads=[1] * 4))
    schedule_only(graph, *LIFT)
    schedule_only(graph, PackFilters())
    assembly = assemble_result(graph, BACKENDS[0])
    assert sum(w.nbytes for w in assembly.weights().values()) == 4 * 8
    assert assembly.nodes("d")[0].op == "ConstantOfShape"


# ---- pools -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("MaxPool", {"kernel_shape": [2, 3], "dilations": [2, 1]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}),
        ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("AveragePool", {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("AveragePool", {"kernel_shape": [9, 7]}),
        ("GlobalAveragePool", {}),
        ("GlobalMaxPool", {}),
        ("ReduceMean", {"axes": [2, 3]}),
        ("ReduceMean", {"axes": [-1, -2], "keepdims": 0}),
    ],
)
def test_pools(op: str, attrs: dict[str, Any]) -> None:
    net, x = new()
    graph = net.graph(net(op, x, **attrs))
    schedule_only(graph, RulePass(pool.POOL))
    assert ops(graph) == ["FusedPool"]
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize("behind", [True, False])
def test_a_maximum_of_all_a_convolution_made_is_a_pool(behind: bool) -> None:
    """Else it may be that of a softmax that is spelled out."""
    net, x = new()
    channels = net.inputs[x].type.tensor_type.shape.dim[1].dim_value
    y = net("Relu", net("Conv", x, net.weight(8, channels, 1, 1)) if behind else x)
    graph = net.graph(net("ReduceMax", y, axes=[2, 3], keepdims=0))
    schedule_only(graph, RulePass(conv.CONV), RulePass(pool.POOL))
    assert ("FusedPool" in ops(graph)) == behind
    assert_same(net, graph, FEEDS)


def test_a_window_larger_than_everything_is_everything() -> None:
    net, x = new()
    attrs = {"kernel_shape": [64, 64], "strides": [64, 64], "ceil_mode": 1}
    graph = net.graph(net("AveragePool", x, **attrs, count_include_pad=1))
    schedule_only(graph, RulePass(pool.POOL))
    assert only(graph, "FusedPool").params.window is None
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_a_window_that_starts_in_the_padding_keeps_a_pool(op: str) -> None:
    net = Net()
    x = net.input("x", 1, 4, 2)
    attrs = {"kernel_shape": [2], "pads": [0, 1], "strides": [3], "ceil_mode": 1}
    trace = schedule_only(net.graph(net(op, x, **attrs)), RulePass(pool.POOL))
    assert reasons(trace, "pool") == {"its last window starts in the padding"}


def test_a_window_that_may_step_over_everything_keeps_a_pool() -> None:
    net = Net()
    x = net.input("x", 1, 4, "h", "w")
    attrs = {"kernel_shape": [1, 2], "dilations": [1, 2], "pads": [0, 1, 0, 1]}
    trace = schedule_only(net.graph(net("MaxPool", x, **attrs)), RulePass(pool.POOL))
    assert reasons(trace, "pool") == {"a dilated window may miss the whole image"}


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_a_dilated_window_padded_by_its_taps_keeps_a_pool(op: str) -> None:
    """As ONNX Runtime does, whose result is smaller than ONNX says."""
    net = Net()
    x = net.input("x", 1, 4, 11, 13)
    attrs = {"kernel_shape": [3, 3], "dilations": [2, 1], "auto_pad": "SAME_LOWER"}
    graph = net.graph(net(op, x, **attrs))
    trace = schedule_only(graph, RulePass(pool.POOL))
    assert reasons(trace, "pool") == {"ONNX Runtime's auto_pad of pools leaves dilations out"}


@pytest.mark.parametrize("op", ["Flatten", "Reshape", "Squeeze"])
def test_what_flattens_a_pool_goes_with_it(op: str) -> None:
    net, x = new()
    y = net("GlobalAveragePool", x)
    rest = {"Flatten": (), "Reshape": (net.ints(0, -1),), "Squeeze": (net.ints(2, 3),)}[op]
    graph = net.graph(net(op, y, *rest))
    schedule_only(graph, RulePass(pool.POOL), RulePass(pool.POOL_FLATTEN))
    assert ops(graph) == ["FusedPool"]
    assert_same(net, graph, FEEDS)


@pytest.mark.parametrize(("axis", "op"), [(-2, "Squeeze"), (3, "Squeeze"), (2, "Reshape")])
def test_lines_pooled_as_images_of_one_line_stay_lines(axis: int, op: str) -> None:
    net = Net()
    x = net.input("x", "n", 20, "t")
    pooled = net("ReduceMean", net("Unsqueeze", x, net.ints(axis)), axes=[-1, -2], keepdims=1)
    graph = net.graph(net(op, pooled, net.ints(-2) if op == "Squeeze" else net.ints(0, 20, 1)))
    schedule_only(graph, RulePass(pool.POOL), RulePass(pool.POOL_UNSQUEEZE))
    assert ops(graph) == ["FusedPool"]
    assert_same(net, graph, {"x": normal(3, 20, 13)})


@pytest.mark.parametrize("what", ["image", "line"])
def test_an_image_that_is_read_elsewhere_or_batches_of_images_keep_their_unsqueeze(
    what: str,
) -> None:
    net = Net()
    x = net.input("x", 2, 20, 7)
    image = net("Unsqueeze", x, net.ints(2 if what == "image" else 1))
    y = net("Squeeze", net("GlobalAveragePool", image), net.ints(2))
    graph = net.graph(y, net("Relu", image)) if what == "image" else net.graph(y)
    schedule_only(graph, RulePass(pool.POOL), RulePass(pool.POOL_UNSQUEEZE))
    assert "Unsqueeze" in ops(graph)


def test_indices_of_a_pool_keep_it() -> None:
    net, x = new()
    y, where = net.many("MaxPool", 2, x, kernel_shape=[2, 2])
    graph = net.graph(y, where)
    trace = schedule_only(graph, RulePass(pool.POOL))
    assert reasons(trace, "pool") == {"its output of indices is used"}
    assert DType.F32 is graph.spec(y).dtype
