"""On request, convolutions of a float32 model become those of integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import (
    Net,
    assert_same,
    evaluate,
    every_phase,
    normal,
    ops,
    optimized,
    reasons,
    relative_error,
    schedule_only,
    session,
)
from tests.halves import in_double
from tests.highest import highest_level
from tests.passes.quantized.test_conv import WINDOWS, conv
from tracea_graph import Options, api
from tracea_graph.ir import DType
from tracea_graph.ops.int8_matmul import MAX_DEPTH
from tracea_graph.passes.quantized.calibrated_rounding import CalibratedRounding
from tracea_graph.passes.quantized.conv_int8 import CONV_INT8, READ_ROUNDED, ConvInt8
from tracea_graph.passes.quantized.dequantize_past_views import QUANTIZE_FIRST
from tracea_graph.rewrite import RulePass
from tracea_graph.ttg import TileGraph

FEEDS = {"x": normal(2, 12, 9, 7)}
STEP = {"x": CalibratedRounding(0.0, scale=9 / 255, zero=128)}


def rounded_well(graph: TileGraph, feeds: dict[str, Any], exact: Any, most: float = 0.02) -> None:
    """It was rounded, but not to other numbers."""
    (found,) = evaluate(graph, feeds)
    assert 1e-5 < relative_error(np.asarray(found), exact) < most


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("calibrated", [STEP, {}], ids=["static", "dynamic"])
def test_windows(name: str, calibrated: dict[str, CalibratedRounding]) -> None:
    net, attrs = Net(), WINDOWS[name]
    side, depth = attrs.get("kernel", 1), 12 // attrs.get("group", 1)
    w = net.const(normal(24, depth, side, side, seed=3))
    y = conv(net, net.input("x", "n", 12, 9, 7), w, net.const(normal(24, seed=4)), **attrs)
    graph = net.graph(y)
    (exact,) = net.run(FEEDS)
    trace = optimized(graph, every_phase(precision="int8", calibrated=calibrated))
    assert trace.applied()[CONV_INT8] == trace.applied()["pack-integers"] == 1
    rounded_well(graph, FEEDS, exact)


@pytest.mark.parametrize("calibrated", [STEP, {}], ids=["static", "dynamic"])
def test_lines(calibrated: dict[str, CalibratedRounding]) -> None:
    net = Net(opset=21)
    graph = net.graph(net("Conv", net.input("x", "n", 12, 30), net.weight(8, 12, 3), pads=[1, 1]))
    feeds = {"x": normal(2, 12, 30)}
    (exact,) = net.run(feeds)
    assert schedule_only(graph, ConvInt8(calibrated)).applied() == {CONV_INT8: 1}
    rounded_well(graph, feeds, exact)


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11])
@pytest.mark.parametrize("calibrated", [STEP, {}], ids=["static", "dynamic"])
def test_opsets_without_a_scale_for_each_filter(
    calibrated: dict[str, CalibratedRounding], opset: int
) -> None:
    net, w = (
        Net(opset=opset),
        normal(24, 12, 3, 3, seed=3) * np.geomspace(0.01, 1, 24)[:, None, None, None],
    )
    y = net("Conv", net.input("x", "n", 12, 9, 7), net.const(w), net.const(normal(24, seed=4)))
    y = net("Relu", y)
    graph = net.graph(y)
    (exact,) = net.run(FEEDS)
    trace = optimized(graph, every_phase(precision="int8", calibrated=calibrated))
    found = trace.applied()
    way = CONV_INT8 if opset < 11 else "quantized-conv" if calibrated else "conv-integer"
    assert found[CONV_INT8] == found[way] == found["pack-integers"] == 1
    rounded_well(graph, FEEDS, exact)
    assert_same(net, graph, FEEDS, limit=0.03)


@pytest.mark.compiler
@pytest.mark.parametrize(("opset", "calibrated"), [(9, True), (9, False), (7, True), (7, False)])
def test_a_net_of_an_old_opset_runs_in_integers(
    opset: int, calibrated: bool, tmp_path: Path
) -> None:
    """With the library and by bodies, held against float64."""
    net = Net(opset=opset)
    net.graph(residual(net, net.input("x", "n", 3, 17, 15)))
    onnx.save(net.model, tmp_path / "m.onnx")
    feeds = {"x": normal(2, 3, 17, 15)}
    np.savez(tmp_path / "d.npz", **feeds)
    data = tmp_path / "d.npz" if calibrated else None
    options = Options(tmp_path / "out", keep="all", precision="int8", data=data, max_error=0.05)
    with highest_level():
        report = api.optimize(tmp_path / "m.onnx", options)
    assert report.status == "passed" and all(group.kept for group in report.groups)
    made = onnx.load(str(report.output))
    assert "Conv" not in {node.op_type for node in made.graph.node}
    (exact,) = in_double(net.model, feeds)
    for library in (report.library, None):
        (found,) = session(str(report.output), library).run(None, feeds)
        assert 1e-5 < relative_error(found, exact) < 0.05


def residual(net: Net, x: str) -> str:
    """A net of two residual blocks behind a pool."""
    stem = net("Conv", x, net.weight(16, 3, 3, 3), net.const(normal(16)), pads=[1] * 4)
    y = net("MaxPool", net("Relu", stem), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for _ in range(2):
        h = net("Relu", net("Conv", y, net.const(normal(24, 16, 1, 1) / 6)))
        h = net("Conv", h, net.const(normal(24, 1, 3, 3) / 3), pads=[1] * 4, group=24)
        low = net("Clip", h, min=0.0, max=6.0) if net.opset < 11 else net("Clip", h, 0.0, 6.0)
        h = net("Conv", low, net.const(normal(16, 24, 1, 1) / 6))
        y = net("Relu", net("Add", h, y))
    return net("Flatten", net("GlobalAveragePool", y))


def test_a_net_stays_in_bytes_between_convolutions() -> None:
    """Also where sums read what convolutions read, and behind the pool."""
    net = Net()
    graph = net.graph(residual(net, net.input("x", "n", 3, 17, 15)))
    feeds = {"x": normal(2, 3, 17, 15)}
    (exact,) = net.run(feeds)
    read = [r.operands[0] for r in graph.regions() if r.op == "Conv"]
    calibrated = {v: CalibratedRounding(0.0, scale=20 / 255, zero=0) for v in read}
    trace = optimized(graph, every_phase(precision="int8", calibrated=calibrated | STEP))
    found = trace.applied()
    assert (found[CONV_INT8], found["read-rounded"], found["quantize-first"]) == (7, 2, 1)
    (program,) = (r for r in graph.regions() if r.op == "FusedRegion")
    steps = [type(step.params).__name__ for step in program.params.steps]
    assert steps == ["ConvIntegerParams", "PoolParams", *["ConvIntegerParams"] * 6, "ReduceParams"]
    specs = program.params.infer_all([graph.spec(v) for v in program.operands])
    inside = specs[program.params.inputs : -2]  # the last convolution feeds a mean of numbers
    assert {spec.dtype for spec in inside} == {DType.U8}
    rounded_well(graph, feeds, exact, 0.08)


def test_what_is_lost_is_added_to_the_bias() -> None:
    net = Net(opset=21)
    y = net("Conv", net.input("x", "n", 12, 9, 7), net.weight(24, 12, 1, 1))
    graph, more = net.graph(y), normal(24, seed=9)
    (exact,) = net.run(FEEDS)
    for chosen in (STEP, {}):
        own = graph.copy()
        schedule_only(own, ConvInt8({**chosen, y: CalibratedRounding(0.0, correction=more)}))
        (found,) = evaluate(own, FEEDS)
        assert relative_error(np.asarray(found), exact + more[:, None, None]) < 0.02


@pytest.mark.parametrize("attrs", [{"auto_pad": "VALID"}, {"pads": [0, 1, 2, 0]}, {}])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_zeros_around_an_image_are_padding(attrs: dict[str, Any], value: float) -> None:
    net = Net()
    x = net("Pad", net.input("x", "n", 12, 9, 7), net.ints(0, 0, 1, 2, 0, 0, 0, 3), value)
    y = net("Conv", x, net.weight(24, 12, 3, 3), strides=[2, 1], **attrs)
    graph = net.graph(y)
    (exact,) = net.run(FEEDS)
    zero = value == 0.0
    calibrated = STEP if zero else {x: STEP["x"]}
    optimized(graph, every_phase(precision="int8", calibrated=calibrated))
    assert any("Pad" in {n.op for n in r.nodes} for r in graph.regions()) != zero
    rounded_well(graph, FEEDS, exact)


def test_activations_and_gates_of_images_stay_last() -> None:
    net = Net()
    h = net("Conv", net.input("x", "n", 12, 9, 7), net.weight(16, 12, 1, 1), name="one")
    h = net("Mul", h, net("Sigmoid", h))
    gate = net("Conv", net("GlobalAveragePool", h), net.weight(16, 16, 1, 1))
    h = net("Conv", net("Mul", h, net("Sigmoid", gate)), net.const(normal(16, 16, 1, 1) / 9))
    graph = net.graph(net("Flatten", net("GlobalAveragePool", h)))
    (exact,) = net.run(FEEDS)
    read = {r.operands[0] for r in graph.regions() if r.op == "Conv"} - {"x"}
    calibrated = dict.fromkeys(read, CalibratedRounding(0.0, scale=20 / 255, zero=20))
    optimized(graph, every_phase(precision="int8", calibrated=calibrated | STEP))
    (program,) = (r for r in graph.regions() if r.op == "FusedRegion")
    steps = {type(step.params).__name__ for step in program.params.steps}
    assert steps == {"ConvIntegerParams", "ReduceParams", "ElementwiseParams"}
    rounded_well(graph, FEEDS, exact, 0.15)


def test_a_filter_of_zeros() -> None:
    net, w = Net(), normal(24, 12, 1, 1)
    w[5] = 0
    y = net("Conv", net.input("x", "n", 12, 9, 7), net.const(w), net.const(normal(24)))
    graph = net.graph(y)
    (exact,) = net.run(FEEDS)
    trace = optimized(graph, every_phase(precision="int8", calibrated=STEP))
    assert trace.applied()[CONV_INT8] == trace.applied()["quantized-conv"] == 1
    (found,) = evaluate(graph, FEEDS)
    np.testing.assert_allclose(found[:, 5], exact[:, 5], rtol=1e-6)
    rounded_well(graph, FEEDS, exact)


RANGE = "a filter has non-finite, very small or very large numbers"


@pytest.mark.parametrize(
    ("value", "reason"),
    [(np.nan, RANGE), (np.inf, RANGE), (1e30, RANGE), (1e-30, RANGE)],
)
def test_filters_without_a_scale_stay(value: float, reason: str) -> None:
    net, w = Net(), normal(24, 12, 1, 1)
    w[5] = value
    graph = net.graph(net("Conv", net.input("x", "n", 12, 9, 7), net.const(w)))
    assert reasons(schedule_only(graph, ConvInt8(STEP)), CONV_INT8) == {reason}
    assert ops(graph) == ["Conv"]


def test_other_convolutions_stay() -> None:
    net = Net()
    x = net.input("x", "n", 12, 9, 7)
    w = net.input("w", 24, 12, 1, 1)
    graph = net.graph(net("Conv", x, w))
    assert reasons(schedule_only(graph, ConvInt8()), CONV_INT8) == {"'w' is not constant"}
    standard, own = "without custom ops, it needs operators that come with opset", STEP
    for opset, calibrated, custom_ops, why in (
        (9, own, False, f"{standard} 10"), (10, {}, False, f"{standard} 11"),
    ):  # fmt: skip
        old = Net(opset=opset)
        graph = old.graph(old("Conv", old.input("x", "n", 12, 9, 7), old.weight(24, 12, 1, 1)))
        rule = ConvInt8(calibrated, custom_ops)
        (found,) = reasons(schedule_only(graph, rule), CONV_INT8)
        assert found.startswith(why)
    deep, channels = Net(), MAX_DEPTH + 1
    zeros = deep.const(np.zeros((2, channels, 1, 1), np.float32))
    graph = deep.graph(deep("Conv", deep.input("x", 1, channels, 1, 1), zeros))
    why = "its sums may not fit 32 bits"
    assert reasons(schedule_only(graph, ConvInt8()), CONV_INT8) == {why}
    quantized = Net()
    y = conv(quantized, quantized.input("x", "n", 12, 9, 7), quantized.input("b", 24, 12, 1, 1))
    graph = quantized.graph(y)
    assert schedule_only(graph, ConvInt8(STEP)).applied() == {}


def test_only_what_convolutions_round_is_read_rounded() -> None:
    net = Net()
    x = net.input("x", "n", 12, 9, 7)
    y = net("Add", net("Conv", x, net.weight(12, 12, 1, 1)), x)
    z = net("Add", y, x)
    graph = net.graph(z)
    schedule_only(graph, ConvInt8(STEP))
    assert schedule_only(graph, RulePass(READ_ROUNDED)).applied() == {"read-rounded": 2}
    reads = [r.operands for r in graph.regions() if r.op == "Add"]
    assert [r[1] for r in reads] == ["x_rounded"] * 2 and y in reads[1]
    plain = net.graph(z)
    assert schedule_only(plain, RulePass(READ_ROUNDED)).applied() == {}


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_the_largest_of_integers(kind: Any) -> None:
    net = Net(opset=21)
    pool = net("MaxPool", net.input("x", "n", 12, 9, 7), kernel_shape=[3, 3], strides=[2, 1])
    zero = net.const(np.array(3), kind)
    graph = net.graph(net("QuantizeLinear", pool, net.const(np.float32(0.02)), zero))
    assert schedule_only(graph, RulePass(QUANTIZE_FIRST)).applied() == {"quantize-first": 1}
    assert ops(graph) == ["QuantizeLinear", "MaxPool"]
    assert_same(net, graph, FEEDS, limit=1e-30)


@pytest.mark.parametrize("scale", [0.0, -0.5, np.nan, np.inf])
def test_scales_that_do_not_keep_the_order(scale: float) -> None:
    net = Net(opset=21)
    pool = net("MaxPool", net.input("x", "n", 12, 9, 7), kernel_shape=[3, 3])
    zero = net.const(np.array(3), np.uint8)
    graph = net.graph(net("QuantizeLinear", pool, net.const(np.float32(scale)), zero))
    assert schedule_only(graph, RulePass(QUANTIZE_FIRST)).applied() == {}
