"""Forked workers, which most tests use, are as started ones are."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.forked_workers import FORKING
from tests.tiny import product
from tracea_graph.check import worker_process
from tracea_graph.check.worker_process import Worker
from tracea_graph.errors import WorkerCrash

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is Linux's")


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "subprocess", FORKING)


def _line(worker: Worker) -> bytes:
    return Path(f"/proc/{worker._process.pid}/cmdline").read_bytes()


def test_it_runs_models_in_a_session_and_a_folder_like_a_started_one(tmp_path: Path) -> None:
    model = product(tmp_path / "m.onnx")
    with Worker() as worker:
        pid = worker._process.pid
        assert b"fork_server" in _line(worker)
        assert os.getsid(pid) == os.getpgid(pid) == pid
        assert Path(f"/proc/{pid}/cwd").resolve() == Path.cwd()
        assert worker.open("m", model).inputs
        assert worker._process.poll() is None
    assert not Path(f"/proc/{pid}").exists() and worker._process.poll() == -signal.SIGKILL


def test_its_death_is_told(tmp_path: Path) -> None:
    with Worker() as worker:
        os.kill(worker._process.pid, signal.SIGSEGV)
        with pytest.raises(WorkerCrash, match="SIGSEGV"):
            worker.open("m", product(tmp_path / "m.onnx"))


def test_it_gets_the_variables_it_was_given(tmp_path: Path) -> None:
    """Those that a process reads when it starts are a new process's, or another server's."""
    with Worker(env={"TRACEA_ISA": "no such level"}) as worker:
        assert b"fork_server" in _line(worker)
    for count in range(2):
        with Worker(env={"LD_LIBRARY_PATH": str(tmp_path)}) as worker:
            started = Path(f"/proc/{worker._process.pid}/environ").read_bytes()
            assert (b"fork_server" in _line(worker)) == (count > 0)
            assert worker.open("m", product(tmp_path / "m.onnx")).inputs
            assert f"LD_LIBRARY_PATH={tmp_path}".encode() in started or count == 0
    with Worker() as worker:
        assert b"fork_server" in _line(worker)
