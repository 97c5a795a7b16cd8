"""Many models at once: one library, outcomes in order, and nobody pays for a neighbour."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import answers, error_between, product, transformer
from tracea_graph import Options, api
from tracea_graph.check.worker_process import SessionInfo, Worker
from tracea_graph.cli import optimize_main
from tracea_graph.errors import BuildError, ModelError, UsageError
from tracea_graph.kernels.cpu.backend import CpuBackend
from tracea_graph.kernels.program import LibraryContents
from tracea_graph.toolchain.library_artifact import Library

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
X = {"x": np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)}


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return [product(tmp_path / "a.onnx"), transformer(tmp_path), product(tmp_path / "b.onnx")]


def test_models_share_one_library_and_each_has_its_own_files(
    models: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    outcomes = list(api.optimize_many(models, Options(out, keep="all")))
    assert [o.source for o in outcomes] == models and not [o.error for o in outcomes if o.error]
    reports = [o.report for o in outcomes if o.report]
    assert all((r.outcome, r.status) == ("improved", "passed") for r in reports)
    assert len({r.domain for r in reports}) == 1
    stems = (f"{m.stem}.tracea" for m in models)
    assert {p.name for p in out.iterdir()} == {
        f"{stem}.{ending}" for stem in stems for ending in ("onnx", "so", "json")
    }
    assert len({p.stat().st_ino for p in out.glob("*.so")}) == 1
    found = api.session(reports[0].output).run(None, X)[0]
    assert error_between({"y": found}, answers(models[0], X)) < 1e-5


def test_a_later_result_leaves_its_neighbours_library_alone(
    models: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    list(api.optimize_many(models, Options(out, keep="all", verify=False)))
    before = (out / "b.tracea.so").read_bytes()
    api.optimize(models[0], Options(out, keep="all", verify=False))
    assert (out / "b.tracea.so").read_bytes() == before != (out / "a.tracea.so").read_bytes()
    api.session(out / "b.tracea.onnx")


def test_an_error_stops_only_its_model(models: list[Path], tmp_path: Path) -> None:
    models[1].write_bytes(models[1].read_bytes()[:99])
    options = Options(tmp_path / "out", keep="all", verify=False)
    good, bad, last = api.optimize_many(models, options)
    assert isinstance(bad.error, ModelError) and bad.report is None
    assert good.report and good.report.kernels and last.report and last.report.kernels


def test_a_kernel_that_cannot_be_emitted_stops_only_its_model(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the fault is: it ends the shared build, then that of the model that has it."""
    original = CpuBackend.build

    def build(backend: CpuBackend, contents: LibraryContents, *args: Any, **more: Any) -> Library:
        if "attention" in contents.kernels:
            raise KeyError("attention")
        return original(backend, contents, *args, **more)

    monkeypatch.setattr(CpuBackend, "build", build)
    options = Options(tmp_path / "out", keep="all", verify=False)
    good, bad, last = api.optimize_many(models, options)
    assert isinstance(bad.error, KeyError) and bad.report is None
    assert good.report and good.report.kernels and last.report and last.report.kernels


def test_without_a_compiler_every_model_says_so(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    options = Options(tmp_path / "out", keep="all", cache=tmp_path / "cache")
    outcomes = list(api.optimize_many(models, options))
    assert all(isinstance(outcome.error, BuildError) for outcome in outcomes)
    assert not (tmp_path / "out").exists()


def test_a_model_that_kills_its_worker_keeps_its_original_and_the_others_go_on(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Worker.open

    def open_or_die(
        worker: Worker, name: str, model: Path, *args: Any, **named: Any
    ) -> SessionInfo:
        mine = model.name == "a.tracea.onnx" or model.parent.name == "0"
        if mine and args and args[0] is not None:  # with a library
            os.kill(worker._process.pid, signal.SIGKILL)
        return opened(worker, name, model, *args, **named)

    monkeypatch.setattr(Worker, "open", open_or_die)
    outcomes = list(api.optimize_many(models, Options(tmp_path / "out", keep="all")))
    first, *others = (o.report for o in outcomes)
    assert first is not None and first.outcome == "kept original"
    assert "SIGKILL" in first.reason
    assert all(r is not None and (r.outcome, r.status) == ("improved", "passed") for r in others)


def test_real_inputs_lie_in_a_folder_under_the_models_names(
    models: list[Path], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    np.savez(data / "a.npz", **X)  # type: ignore[arg-type]
    options = Options(tmp_path / "out", keep="all", data=data)
    first, _, last = (outcome.report for outcome in api.optimize_many(models, options))
    assert first is not None and first.bindings == ("data[0]",)
    assert last is not None and last.bindings != ("data[0]",)


def test_results_must_not_meet(models: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    twin = product(other / "a.onnx")
    with pytest.raises(UsageError, match=r"are both written to .*a\.tracea\.onnx"):
        api.optimize_many([models[0], twin], Options(tmp_path / "out", keep="all"))
    assert not (tmp_path / "out").exists()


def test_the_command_line_takes_several(
    models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"{tmp_path / 'out'}{os.sep}"
    args = [*map(str, models), "-o", out, "--keep", "all", "--no-verify"]
    assert optimize_main(args) == 0
    assert capsys.readouterr().out.count("rewritten: ") == len(models)
    assert len(list((tmp_path / "out").glob("*.so"))) == len(models)
