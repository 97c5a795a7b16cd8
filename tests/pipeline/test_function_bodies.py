"""Function bodies are verified as a user without the library runs them, fused by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.check.tiny_models import save
from tracea_graph import Options, api
from tracea_graph.commands.verify import verify_models
from tracea_graph.onnx_io import load
from tracea_graph.onnx_io.custom_op_inlining import custom_op_nodes
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.norm import Norm
from tracea_graph.passes import CLUSTERING

pytestmark = pytest.mark.compiler

TEXT = """g (float[N,32] x) => (float[N,64] y) {
    h = MatMul(x, w)  m = ReduceMean <axes = [1]> (h)  d = Sub(m, h)
    s = Mul(d, d)  t = ReduceMean <axes = [1]> (s)  e = Add(t, epsilon)  r = Sqrt(e)
    z = Div(d, r)  a = Mul(z, gamma)  y = Add(a, beta) }"""
OPTIONS = Options(
    target="cpu:scalar", keep="all", use_cache=False, skip=(*CLUSTERING, "gemm-norm")
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    w, gamma, beta = (
        np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        for shape in ((32, 64), (64,), (64,))
    )
    epsilon = np.array(1e-3, np.float32)
    return save(tmp_path, "m.onnx", TEXT, w=w, epsilon=epsilon, gamma=gamma, beta=beta)


@pytest.fixture
def negated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write squares in bodies such that ONNX Runtime 1.18 to 1.23 fuses them and loses a sign."""
    write = Norm.to_onnx

    def by_pow(
        norm: Norm, b: BodyBuilder, x: str, affine: Sequence[str], axis: int = -1, **_: bool
    ) -> str:
        return write(norm, b, x, affine, axis)

    monkeypatch.setattr(Norm, "to_onnx", by_pow)


def answers(model: Path, *, library: bool) -> np.ndarray:
    import onnxruntime as ort

    x = {"x": np.linspace(-1, 2, 160, dtype=np.float32).reshape(5, 32)}
    made = api.session(model) if library else ort.InferenceSession(model)
    return made.run(None, x)[0]


def calls(result: Path) -> str:
    return " ".join(call.op for call in custom_op_nodes(load(result)))


@pytest.mark.usefixtures("negated")
def test_a_body_that_onnx_runtime_breaks_is_not_published(model: Path) -> None:
    report = api.optimize(model, OPTIONS)
    (dropped,) = (group for group in report.groups if not group.kept)
    assert dropped.rule == "norm-prologue" and "N=1, without the library: it is" in dropped.reason
    assert "FusedNorm" not in calls(Path(report.output))
    for library in (True, False):
        found = answers(Path(report.output), library=library)
        np.testing.assert_allclose(found, answers(model, library=False), atol=1e-4)


@pytest.mark.usefixtures("negated")
def test_nobody_runs_bodies_that_are_not_written(model: Path) -> None:
    report = api.optimize(model, replace(OPTIONS, require_library=True))
    assert "FusedNorm" in calls(Path(report.output))


@pytest.mark.usefixtures("negated")
def test_verify_runs_bodies_too(model: Path) -> None:
    options = replace(OPTIONS, verify=False)
    report = api.optimize(model, options)
    assert "FusedNorm" in calls(Path(report.output))
    found = verify_models(model, Path(report.output), OPTIONS).verification
    assert found.status == "failed" and ", without the library: it is off" in found.sentence
