"""Pooled workers are reused, and never trusted again after a doubt."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.check.tiny_models import save
from tracea_graph.check.worker_pool import WorkerPool, new_worker
from tracea_graph.errors import WorkerError

RELU = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"


def pid(worker_pool: WorkerPool, library: Path | None = None, **env: str) -> int:
    with worker_pool.acquire(library, env) as worker:
        return worker._process.pid


def test_a_worker_serves_again_and_forgets_between(tmp_path: Path) -> None:
    path, x = save(tmp_path, "m.onnx", RELU), np.ones((1, 4), np.float32)
    with WorkerPool() as worker_pool:
        with worker_pool.acquire(None, {}) as worker:
            worker.open("m", path)
            assert worker.run("m", {"x": x})["y"].shape == (1, 4)
        with worker_pool.acquire(None, {}) as again:
            assert again is worker
            with pytest.raises(WorkerError, match="'m'"):
                again.run("m", {"x": x})
    assert not worker.alive


def test_each_environment_has_its_own_and_a_library_is_known_by_its_file(tmp_path: Path) -> None:
    one, link, other = (tmp_path / f"{name}.so" for name in ("one", "link", "other"))
    one.write_bytes(b"1")
    os.link(one, link)
    shutil.copy(one, other)
    with WorkerPool() as worker_pool:
        plain, first = pid(worker_pool), pid(worker_pool, one)
        assert len({plain, first, pid(worker_pool, one, TRACEA_ISA="scalar")}) == 3
        assert pid(worker_pool, link) == first
        assert pid(worker_pool, other) not in (plain, first)
        assert pid(worker_pool) == plain


def test_a_dead_worker_is_replaced() -> None:
    with WorkerPool() as worker_pool:
        with pytest.raises(WorkerError, match="SIGKILL"), worker_pool.acquire(None, {}) as worker:
            os.kill(worker._process.pid, signal.SIGKILL)
            worker.clear()
        with worker_pool.acquire(None, {}) as another:
            assert another is not worker and another.alive


def test_only_those_that_served_before_are_doubted() -> None:
    with WorkerPool() as worker_pool:
        first = pid(worker_pool)
        assert not worker_pool.discard("all")
        assert pid(worker_pool) == first
        assert not worker_pool.discard("") and not worker_pool.discard("dead")
        assert worker_pool.discard("all")
        assert pid(worker_pool) != first


def test_a_fresh_worker_is_gone_afterwards() -> None:
    with new_worker(None, {}) as worker:
        assert worker.alive
    assert not worker.alive
