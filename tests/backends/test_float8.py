"""Matmuls of 8-bit floats in whole models, on the driver's double."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.backends.conformance import kernels_run
from tests.graphs import Net, reasons
from tracea_graph import Options, Report, api, target
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu import float8_rounding
from tracea_graph.kernels.gpu.float8_rounding import FLOAT8_FACTORS
from tracea_graph.pipeline.planning import Planner

pytestmark = pytest.mark.compiler
HERE = Options(target="double:sm_90", keep="all", precision="fp8", max_error=0.1)
E4M3, E5M2 = (np.dtype(t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
ROWS = 33
FP16 = 2e-3
"""What such a layer loses in fp16, at most."""


@pytest.fixture(autouse=True)
def few_rows(double_backend: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        float8_rounding, "_LEAST_ROWS", ROWS
    )  # a GPU's many rows take minutes here


def _layer(net: Net, rows: int | str, depth: int = 64) -> str:
    x = net.input("x", rows, depth)
    hidden = net("Tanh", net("Add", net("MatMul", x, net.weight(depth, 80)), net.weight(80)))
    y = net("Add", net("MatMul", hidden, net.weight(80, depth)), net.weight(depth))
    y = net("Add", y, x)
    return net("LayerNormalization", y, net.weight(depth), net.weight(depth), axis=-1)


def _optimized(folder: Path, options: Options, rows: int | str = ROWS, depth: int = 64) -> Report:
    net = Net()
    return api.optimize(net.save(folder / "m.onnx", _layer(net, rows, depth)), options)


def _applied(report: Report) -> int:
    """Return how many matmuls were rounded."""
    return sum(rule.count for rule in report.rules if rule.rule == FLOAT8_FACTORS)


def test_a_layer_of_many_rows(tmp_path: Path) -> None:
    report = _optimized(tmp_path, HERE)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.nodes_after == report.kernels == 1
    assert _applied(report) == 2
    assert FP16 < (report.error or 0) < 0.1


@pytest.mark.slow
def test_what_is_too_coarse_stays_in_fp16(tmp_path: Path) -> None:
    report = _optimized(tmp_path, replace(HERE, max_error=4 * FP16))
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert 1e-5 < (report.error or 0) < 4 * FP16
    assert any("dropped float8-factors" in said for said in report.warnings)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "depth"), [(ROWS - 1, 64), (ROWS, 72)])
def test_few_rows_and_odd_depths_stay_in_fp16(tmp_path: Path, rows: int, depth: int) -> None:
    report = _optimized(tmp_path, HERE, rows, depth)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert _applied(report) == (depth == 72)


def test_precisions_of_targets() -> None:
    assert target.resolve_precision("cuda:sm_90", "fp8")[0] == "fp8"
    found, notes = target.resolve_precision("cuda:sm_80", "fp8")
    assert found == "fp16" and "sm_80 has no instructions for this type" in notes[0]
    found, notes = target.resolve_precision("host", "fp8")
    assert found == "fp32" and "nothing is computed in fp8" in notes[0]


def _quantized(net: Net, x: str, scale: float, kind: np.dtype = E4M3) -> str:
    both = net.const(np.float32(scale)), net.const(np.zeros((), kind), kind)
    return net("DequantizeLinear", net("QuantizeLinear", x, *both), *both)


def _stored(net: Net, k: int, n: int, columns: bool) -> str:
    """A matrix of codes with a scale, or one for each column."""
    codes = (np.random.default_rng(k).standard_normal((k, n)) * 64).astype(E4M3)
    scales = 2.0 ** -(8 + np.arange(n) % 3) if columns else np.float32(2.0**-9)
    return net("DequantizeLinear", net.const(codes, E4M3), net.const(scales), axis=1)


def _quantized_layer(net: Net) -> str:
    """Two products, as quantizers write them, an activation, biases and a residual.

    Numbers between them are e5m2, the others e4m3.
    """
    x = net.input("x", "rows", 48)
    seen = _quantized(net, x, 2.0**-6)
    hidden = net("Add", net("MatMul", seen, _stored(net, 48, 80, True)), net.weight(80))
    seen = _quantized(net, net("Relu", hidden), 2.0**-5, E5M2)
    y = net("Gemm", seen, _stored(net, 80, 48, False), net.weight(48))
    return net("Add", y, x)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_graphs_that_are_quantized_in_8_bit_floats(tmp_path: Path, precision: str) -> None:
    net = Net(opset=19)
    path = net.save(tmp_path / "m.onnx", _quantized_layer(net))
    options = Options(
        target="double:sm_90",
        keep="all",
        precision=precision,
        max_error=None if precision == "fp32" else 3e-2,
    )
    report = api.optimize(path, options)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.nodes_after == report.kernels == 1, report.rules
    feed = {"x": np.random.default_rng(0).standard_normal((7, 48)).astype(np.float32)}
    assert kernels_run(report, feed) == 1


def _layer_by_rows(net: Net, form: str) -> str:
    """A norm whose rows are quantized by their largest magnitudes, a product and an activation."""
    x = net.input("x", "rows", 48)
    y = net("LayerNormalization", x, net.weight(48), net.weight(48), axis=-1)
    high = net("ReduceMax", net("Abs", y), net.const(np.array([-1]), np.int64), keepdims=1)
    scales = net("Div", high, net.const(np.float32(448)))
    if form == "blocks":
        more = {"axis": -1, "block_size": 48}
        q = net("QuantizeLinear", y, scales, output_dtype=DType.F8E4M3FN.onnx, **more)
        seen = net("DequantizeLinear", q, scales, **more)
    else:
        q = net("Cast", net("Div", y, scales), to=DType.F8E4M3FN.onnx)
        seen = net("Mul", net("Cast", q, to=DType.F32.onnx), scales)
    y = net("Add", net("MatMul", seen, _stored(net, 48, 80, True)), net.weight(80))
    return net("Relu", y)


@pytest.mark.parametrize("form", ["blocks", "casts"])
def test_graphs_whose_rows_have_scales(tmp_path: Path, form: str) -> None:
    net = Net(opset=21)
    path = net.save(tmp_path / "m.onnx", _layer_by_rows(net, form))
    options = Options(target="double:sm_90", keep="all", precision="fp16", max_error=3e-2)
    report = api.optimize(path, options)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.nodes_after == report.kernels == 1, report.rules
    feed = {"x": np.random.default_rng(0).standard_normal((7, 48)).astype(np.float32)}
    assert kernels_run(report, feed) == 1


@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_89"])
def test_older_gpus_leave_them_alone(name: str) -> None:
    net = Net(opset=19)
    graph = net.graph(_quantized_layer(net))
    planner = Planner(graph, Options(target=name, keep="all"), {"rows": 7})
    plan = planner.plan()
    said = reasons(plan.trace, "quantized-gemm")
    refused = "only GPUs from sm_89 on have instructions for products of 8-bit floats" in said
    assert refused is (name == "cuda:sm_80")
    left = [n.op for r in plan.graph.regions() if not r.fused for n in r.nodes]
    assert left.count("QuantizeLinear") == (2 if refused else 0)
