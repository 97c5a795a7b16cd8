"""Quantized models run on a GPU as a whole: shown on a test double of the CUDA driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.conformance import kernels_run
from tests.graphs import Net
from tracea_graph import Options, api

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("double_backend")]


def _bytes(net: Net, *shape: int, kind: Any = np.int8) -> str:
    low = 0 if kind is np.uint8 else -128
    made = np.random.default_rng(sum(shape)).integers(low, low + 256, shape)
    return net.const(made.astype(kind), kind)


def _through(net: Net, x: str, scale: float, zero: int, kind: Any = np.uint8) -> str:
    """Round to integers and back; scales are powers of two, so that all sums are exact."""
    both = net.const(np.float32(scale)), net.const(np.array(zero, kind), kind)
    return net("DequantizeLinear", net("QuantizeLinear", x, *both), *both)


def _filters(net: Net, *shape: int, scale: float = 2.0**-9) -> str:
    return net("DequantizeLinear", _bytes(net, *shape), net.const(np.float32(scale)))


def convolved(net: Net) -> str:
    """Build a stem, a pool, a depthwise and a grouped convolution, a residual and a classifier."""
    x = _through(net, net.input("x", "batch", 3, 14, 14), 2.0**-5, 120)
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    y = net("Relu", net("Conv", x, _filters(net, 16, 3, 3, 3), strides=[2, 2], **window))
    y = _through(net, net("MaxPool", _through(net, y, 2.0**-4, 0), **window), 2.0**-4, 0)
    z = net("Conv", y, _filters(net, 16, 1, 3, 3), group=16, **window)
    z = _through(net, net("Relu", z), 2.0**-4, 0)
    z = net("Conv", z, _filters(net, 16, 4, 3, 3), group=4, **window)
    z = _through(net, net("Add", _through(net, z, 2.0**-3, 128), y), 2.0**-3, 100)
    pooled = net("GlobalAveragePool", net("Relu", z))
    y = _through(net, net("Flatten", pooled), 2.0**-4, 3)
    return net("Gemm", y, _filters(net, 10, 16), transB=1)


def multiplied(net: Net) -> str:
    """Build two products of what is rounded in each run, one of a matrix with zero points; rows
    of a table of integers are added first."""
    x = net.input("x", "batch", 7, 48)
    places = net("Slice", np.arange(32)[None], np.array([0]),
                 net("Gather", net("Shape", x), np.array([1])), np.array([1]))  # fmt: skip
    rows = net("Gather", _bytes(net, 32, 48, kind=np.uint8), places)
    both = net.const(np.float32(2.0**-6)), net.const(np.array(120, np.uint8), np.uint8)
    y = net("Add", x, net("DequantizeLinear", rows, *both))
    for n, zeros in ((64, None), (40, _bytes(net, 40))):
        q, scale, zero = net.many("DynamicQuantizeLinear", 3, y)
        more = [zeros] if zeros else []
        w = _bytes(net, 48 if n == 64 else 64, n)
        sums = net("Cast", net("MatMulInteger", q, w, zero, *more), to=1)
        y = net("Relu", net("Mul", sums, net("Mul", scale, net.const(np.float32(2.0**-8)))))
    return net("MatMul", y, net.weight(40, 6))


@pytest.mark.parametrize("build", [convolved, multiplied])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_quantized_models_are_one_node(
    build: Callable[[Net], str], precision: str, tmp_path: Path
) -> None:
    net = Net()
    path = net.save(tmp_path / "m.onnx", build(net))
    exact = build is convolved and precision == "fp32"
    wanted = Options(
        target="double:sm_90", keep="all", precision=precision, max_error=None if exact else 3e-2
    )
    report = api.optimize(path, wanted)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert report.nodes_after == report.kernels == 1, report.rules
    shape = (2, 3, 14, 14) if build is convolved else (2, 7, 48)
    feed = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    assert kernels_run(report, feed) == 1


@pytest.mark.slow  # 392 rows in the host dialect
def test_many_rows_are_multiplied_by_warpgroups(tmp_path: Path) -> None:
    """Column sums, which depend on constants alone, correct zero points found in each run."""
    net = Net()
    q, scale, zero = net.many("DynamicQuantizeLinear", 3, net.input("x", "batch", 7, 48))
    sums = net("Cast", net("MatMulInteger", q, _bytes(net, 48, 64), zero), to=1)
    path = net.save(tmp_path / "m.onnx", net("Mul", sums, net("Mul", scale, np.float32(2.0**-8))))
    report = api.optimize(path, Options(target="double:sm_90", keep="all"))
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    feed = {"x": np.random.default_rng(0).standard_normal((56, 7, 48)).astype(np.float32)}
    assert kernels_run(report, feed) == 1
