"""End-to-end tests of a second, minimal backend."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from backends.plain import PLAIN
from graphs import Net, normal
from tiny import answers, error_between, fed_too

from models.make import make
from tracea_graph import Options, Report, api, target
from tracea_graph.check.worker import Worker
from tracea_graph.cli.main import main
from tracea_graph.onnx_io import backend_of, load
from tracea_graph.pipeline import planning
from tracea_graph.reasons import Code

pytestmark = pytest.mark.compiler
CLOSE = 1e-5
HERE = Options(target="plain:c", keep="all")
TOKENS = {
    name: np.ones((2, 9), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    backends: tuple[target.Backend, ...] = (*target.BACKENDS, PLAIN)
    monkeypatch.setattr(target, "BACKENDS", backends)


def saved(net: Net, result: str, path: Path) -> Path:
    net.graph(result)
    onnx.save(net.model, path)
    return path


def perceptron(path: Path) -> Path:
    net = Net()
    x = net("Gemm", net.input("x", "batch", 24), net.weight(24, 32), net.weight(32))
    x = net("LayerNormalization", net("Relu", x), net.weight(32), net.weight(32), axis=-1)
    x = net("Softmax", net("MatMul", net("Sin", x), net.weight(32, 10)), axis=-1)
    return saved(net, x, path)


def kernels_run(report: Report, feed: dict[str, np.ndarray]) -> int:
    """Count the nodes that ONNX Runtime ran as kernels of the library."""
    assert report.library is not None
    with Worker() as worker:
        worker.open("result", Path(report.output), Path(report.library))
        nodes = worker.profile("result", feed, runs=2)
    return sum(node.domain == report.domain for node in nodes)


def test_a_perceptron_runs_in_its_kernels(tmp_path: Path) -> None:
    path = perceptron(tmp_path / "m.onnx")
    report = api.optimize(path, HERE)
    assert (report.outcome, report.status, report.levels) == ("improved", "passed", ("c",))
    assert kernels_run(report, {"x": np.ones((3, 24), np.float32)}) == report.kernels == 3
    assert report.backend == backend_of(load(Path(report.output))) == PLAIN.name
    assert target.backend_named(report.backend) is PLAIN
    assert api.optimize(path, HERE).domain == report.domain  # overwrites its own earlier result


def test_what_it_lacks_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = perceptron(tmp_path / "m.onnx")
    assert main(["explain", str(path), "--target", "plain:c", "--node", "v3"]) == 0
    assert "plain has no sin" in capsys.readouterr().out


def test_it_is_timed_and_judged(tmp_path: Path) -> None:
    """Every kernel is timed against the nodes it replaces, whichever is faster."""
    report = api.optimize(perceptron(tmp_path / "m.onnx"), Options(target="plain:c", budget=20))
    assert report.status == "passed" and (report.timings or report.tried)
    assert report.groups and all(row.gains for row in report.groups)


def test_what_cannot_run_here_is_kept_untimed_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PLAIN, "unmeasured", lambda: "this machine runs no plain C", raising=True)
    report = api.optimize(perceptron(tmp_path / "m.onnx"), Options(target="plain:c", budget=20))
    assert (report.outcome, report.status) == ("improved", "passed")
    assert not report.timings and "this machine runs no plain C" in report.warnings
    assert {row.code for row in report.groups} == {Code.UNMEASURED}


def test_views_and_middle_axes(tmp_path: Path) -> None:
    """Test side-by-side heads, a transposed matrix, middle axes, masks and guards."""
    net = Net()
    x = net.input("x", "batch", 6, 32)
    heads = net("Transpose", net("Reshape", x, np.array([0, 0, 4, 8])), perm=[0, 2, 1, 3])
    scores = net("MatMul", heads, net("Transpose", heads, perm=[0, 1, 3, 2]))
    kept = net("Where", net("Less", scores, 0.5), net("Tanh", scores), net("Mul", scores, 2.0))
    logs = net("LogSoftmax", kept, axis=1)
    other = net("Gemm", net("Flatten", logs), net.weight(7, 144), net.weight(7), transB=1)
    path = saved(net, net("Clip", other, -2.0, 2.0), tmp_path / "m.onnx")
    report = api.optimize(path, HERE)
    assert (report.outcome, report.status) == ("improved", "passed")
    rules = {row.rule for row in report.rules if row.verdict == "applied"}
    assert rules >= {"matmul", "softmax", "gemm", "gemm-epilogue"}
    assert kernels_run(report, {"x": normal(3, 6, 32)}) == report.kernels


def test_weights_that_may_be_fed_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Default weights run the kernels; a different weight runs the original nodes."""
    monkeypatch.setattr(planning, "_WORTH", math.inf)  # keep a guard that gains nothing
    net = Net()
    x = net("Gemm", net.input("x", "batch", 64), net.weight(64, 48), net.weight(48))
    path = fed_too(saved(net, net("Relu", x), tmp_path / "m.onnx"))
    report = api.optimize(path, HERE)
    assert (report.outcome, report.status) == ("improved", "passed")
    feed = {"x": normal(3, 64)}
    name, held = next(iter(net.weights.items()))
    # one of the kernels is the guard
    for others, kernels in (({}, 2), ({name: held * np.float32(1.5)}, 1)):
        given = feed | others
        found = answers(Path(report.output), given, Path(str(report.library)))
        assert error_between(found, answers(path, given)) < CLOSE
        assert kernels_run(report, given) == kernels


def test_minilm_but_for_what_it_lacks(tmp_path: Path) -> None:
    report = api.optimize(make("minilm", tmp_path), HERE)
    assert (report.outcome, report.status) == ("improved", "passed")
    assert report.error is not None and report.error < CLOSE
    assert kernels_run(report, TOKENS) == report.kernels >= 60
    told = {row.reason.partition(" (at")[0] for row in report.rules if row.verdict == "missed"}
    assert told >= {"plain has no FusedAttention", "plain has no FusedEmbedding"}
