"""Products in the integer operators of ONNX Runtime, for models without custom ops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import Net, normal, session
from tracea_graph import Options, optimize

W, V = normal(160, 128, seed=2), normal(128, 144, seed=3)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    net = Net()
    product = net("MatMul", net.input("x", "n", 160), net.const(W))
    hidden = net("Relu", net("Add", product, net.const(normal(128))))
    last = net("Gemm", hidden, net.const(V.T), net.const(normal(144)), transB=1)
    return net.save(tmp_path / "m.onnx", last)


def written(model: Path, precision: str, data: bool, **more: object) -> tuple[list[str], float]:
    """The op types of a result, and its error relative to the norm of the outputs."""
    x = normal(30, 160, seed=5)
    given: dict[str, object] = {"max_error": 0.5, **more}
    if data:
        given["data"] = model.with_name("data.npz")
        np.savez(
            model.with_name("data.npz"), x=np.stack([normal(30, 160, seed=s) for s in range(9)])
        )
    out = model.with_name("out.onnx")
    options = Options(out, keep="all", custom_ops=False, precision=precision, **given)  # type: ignore[arg-type]
    report = optimize(model, options)
    assert report.library is None, report
    (found,), (wanted,) = (session(p).run(None, {"x": x}) for p in (out, model))
    error = float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
    return sorted({n.op_type for n in onnx.load(out).graph.node}), error


@pytest.mark.parametrize(
    ("precision", "data", "op", "most"),
    [
        ("int8", False, "MatMulInteger", 0.02),
        ("int8", True, "DequantizeLinear", 0.02),
        ("int4-weights", False, "MatMulNBits", 0.15),
        ("int4-weights", True, "MatMulNBits", 0.15),
    ],
)
def test_standard_operators_compute_integers(
    model: Path, precision: str, data: bool, op: str, most: float
) -> None:
    ops, error = written(model, precision, data)
    assert op in ops and 1e-4 < error < most


def test_what_is_too_coarse_stays(model: Path) -> None:
    ops, error = written(model, "int4-weights", False, max_error=1e-4)
    assert "MatMulNBits" not in ops and error < 1e-5


def test_a_metric_decides_what_stays(model: Path) -> None:
    """Predicted errors of max|y| say nothing of it."""
    metric = model.with_name("metric.py")
    metric.write_text("def f(found, wanted): return abs(found['y'] - wanted['y']).max() / 1e6")
    text = onnx.load(model)
    text.graph.node[-1].output[0] = text.graph.output[0].name = "y"
    onnx.save(text, model)
    ops, error = written(model, "int8", False, max_error=1e-5, metric=f"{metric}:f")
    assert "MatMulInteger" in ops and error > 1e-4
    ops, error = written(model, "int8", False, max_error=1e-12, metric=f"{metric}:f")
    assert "MatMulInteger" not in ops and error < 1e-5
