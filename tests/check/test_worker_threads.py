"""Threads of a session keep to cores of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.check.tiny_models import save
from tracea_graph.check.worker_main import thread_affinities
from tracea_graph.check.worker_process import Worker

ALONE = {p: str(p) for p in range(4)}
NEIGHBOURS = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}
HALVES = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}


@pytest.mark.parametrize(
    ("siblings", "mine", "threads", "wanted"),
    [
        (ALONE, {0, 1, 2, 3}, 1, ""),
        (ALONE, {0, 1, 2, 3}, 2, "2"),
        (ALONE, {0, 1, 2, 3}, 4, "2;3;4"),
        (ALONE, {0, 1, 2, 3}, 5, ""),
        (ALONE, {1, 3}, 2, "4"),
        (NEIGHBOURS, {0, 1, 2, 3}, 2, "3,4"),
        (NEIGHBOURS, {0, 1, 2, 3}, 3, ""),
        (NEIGHBOURS, {0, 2, 3}, 2, "3,4"),
        (HALVES, {0, 1, 2, 3}, 2, "2,4"),
        ({}, {0, 1}, 2, "2"),
    ],
)
def test_a_core_for_each_thread(
    siblings: dict[int, str], mine: set[int], threads: int, wanted: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for processor, text in siblings.items():
        (tmp_path / str(processor)).write_text(text + "\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: mine)
    assert thread_affinities(threads, f"{tmp_path}/{{}}") == wanted


@pytest.mark.skipif(not thread_affinities(2), reason="a second thread needs a second core")
def test_a_session_keeps_its_threads_there(tmp_path: Path) -> None:
    path = save(tmp_path, "m.onnx", "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    with Worker() as worker:
        worker.open("m", path, threads=2)
        wanted = frozenset(int(p) - 1 for p in thread_affinities(2).split(","))
        late = time.monotonic() + 30  # a thread moves by itself, once it runs
        while wanted not in _allowed(worker._process.pid) and time.monotonic() < late:
            time.sleep(0.01)
        assert wanted in _allowed(worker._process.pid)


def _allowed(process: int) -> set[frozenset[int]]:
    """Where each thread of a process may run."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return {frozenset(os.sched_getaffinity(int(task.name))) for task in tasks}
