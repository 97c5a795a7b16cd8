"""End-to-end tests of a second, minimal backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.make import make
from tests.backends.conformance import CLOSE, Conformance, kernels_run, perceptron
from tests.backends.plain import PLAIN
from tracea_graph import Options, api, target
from tracea_graph.cli.main import main
from tracea_graph.onnx_io import backend_of, load
from tracea_graph.reason_codes import Code

pytestmark = pytest.mark.compiler
HERE = Options(target="plain:c", keep="all")
TOKENS = {
    name: np.ones((2, 9), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    backends: tuple[target.Backend, ...] = (*target.BACKENDS, PLAIN)
    monkeypatch.setattr(target, "BACKENDS", backends)


class TestPlain(Conformance):
    target = "plain:c"


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
    monkeypatch.setattr(PLAIN, "unmeasured", lambda levels: "this machine runs no plain C")
    report = api.optimize(perceptron(tmp_path / "m.onnx"), Options(target="plain:c", budget=20))
    assert (report.outcome, report.status) == ("improved", "passed")
    assert not report.timings and "this machine runs no plain C" in report.warnings
    assert {row.code for row in report.groups} == {Code.UNMEASURED}


def test_minilm_but_for_what_it_lacks(tmp_path: Path) -> None:
    report = api.optimize(make("minilm", tmp_path), HERE)
    assert (report.outcome, report.status) == ("improved", "passed")
    assert report.error is not None and report.error < CLOSE
    assert kernels_run(report, TOKENS) == report.kernels >= 60
    told = {row.reason.partition(" (at")[0] for row in report.rules if row.verdict == "missed"}
    assert told >= {"plain has no FusedAttention", "plain has no FusedEmbedding"}
