"""Values and constants of 16-bit integers become the numbers that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, ops, reasons, schedule_only
from tracea_graph.onnx_io import load
from tracea_graph.passes.convolution.conv import CONV
from tracea_graph.passes.matmul.gemm import Gemm
from tracea_graph.passes.quantized.wide_round_trips import WIDE_ROUND_TRIP
from tracea_graph.rewrite import RulePass


def rounded(net: Net, x: str, zero: Any, scale: Any = 2e-4) -> tuple[str, str]:
    """A value rounded to the type of ``zero``: its integers and its numbers."""
    beside = net.const(np.asarray(scale, np.float32)), net.const(zero, zero.dtype.type)
    q = net("QuantizeLinear", x, *beside)
    return q, net("DequantizeLinear", q, *beside)


@pytest.mark.parametrize("zero", [np.uint16(30000), np.int16(-7)])
def test_numbers_are_rounded_in_float32(zero: Any) -> None:
    net = Net(opset=21)
    _, y = rounded(net, net.input("x", "n", 300), zero)
    graph = net.graph(net("Neg", y))
    assert schedule_only(graph, RulePass(WIDE_ROUND_TRIP)).applied() == {"wide-round-trip": 1}
    assert ops(graph) == ["FusedElementwise", "Neg"]
    x = 8 * normal(4, 300)  # beyond both ends of the range
    x[0, :5] = 1e30, -1e30, np.inf, -np.inf, 0
    assert_same(net, graph, {"x": x}, limit=1e-9)


def test_integers_with_another_reader_are_made_as_well() -> None:
    net = Net(opset=21)
    q, y = rounded(net, net.input("x", "n", 3), np.uint16(30000))
    graph = net.graph(q, y)
    assert schedule_only(graph, RulePass(WIDE_ROUND_TRIP)).applied() == {"wide-round-trip": 1}
    assert sorted(ops(graph)) == ["FusedElementwise", "QuantizeLinear"]
    assert_same(net, graph, {"x": normal(2, 3)}, limit=1e-9)


def test_bytes_and_several_scales_stay() -> None:
    several = "its scales or zero points are not one number each"
    for zero, scale, why in (
        (np.uint8(3), 0.1, ""),
        (np.full(3, 5, np.uint16), [0.1] * 3, several),
        (np.uint16(3), np.nan, several),
    ):
        net = Net(opset=21)
        _, y = rounded(net, net.input("x", "n", 3), zero, scale)
        trace = schedule_only(net.graph(net("Neg", y)), RulePass(WIDE_ROUND_TRIP))
        assert not trace.applied()
        assert reasons(trace, "wide-round-trip") == ({why} if why else set())


@pytest.mark.parametrize("form", ["one", "columns", "blocks", "rows"])
@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_products_read_matrices_of_16_bits_as_numbers(
    form: str, dtype: type, tmp_path: Path
) -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "one": (),
        "columns": (24,),
        "blocks": (3, 24),
        "rows": (90,),
    }
    attrs = {"columns": {"axis": 1}, "blocks": {"axis": 0, "block_size": 32}, "rows": {"axis": 0}}
    rng, shape = np.random.default_rng(1), shapes[form]
    span = np.iinfo(dtype)
    numbers = rng.integers(span.min, span.max, (90, 24)).astype(dtype)
    scales = rng.uniform(1e-5, 1e-4, shape).astype(np.float32)
    zeros = rng.integers(0, 99, shape).astype(dtype)
    net = Net(opset=21)
    beside = net.const(scales), net.const(zeros, dtype)
    w = net("DequantizeLinear", net.const(numbers, dtype), *beside, **attrs.get(form, {}))
    graph = load(net.save(tmp_path / "m.onnx", net("MatMul", net.input("x", "n", 90), w))).graph
    assert schedule_only(graph, Gemm()).applied()["gemm"] == 1
    assert_same(net, graph, {"x": normal(5, 90)})


@pytest.mark.parametrize(("activation", "applied"), [(np.uint16, True), (np.uint8, False)])
def test_filters_of_images_of_16_bits_are_numbers(
    activation: type, applied: bool, tmp_path: Path
) -> None:
    net = Net(opset=21)
    _, x = rounded(net, net.input("x", 1, 6, 9, 9), activation(100), 0.01)
    filters = np.random.default_rng(1).integers(-99, 99, (16, 6, 3, 3)).astype(np.int8)
    scales = np.random.default_rng(2).uniform(0.001, 0.01, 16).astype(np.float32)
    w = net("DequantizeLinear", net.const(filters, np.int8), net.const(scales), axis=0)
    graph = load(net.save(tmp_path / "m.onnx", net("Conv", x, w))).graph
    found = schedule_only(graph, RulePass(CONV)).applied()
    assert found == ({"conv": 1} if applied else {})
    assert_same(net, graph, {"x": normal(1, 6, 9, 9)}, limit=1e-5 if applied else 0.05)
