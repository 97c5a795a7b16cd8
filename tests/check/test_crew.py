"""A crew's workers stay while they are of use, and are never trusted after a doubt."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from check.tiny_models import save

from tracea_graph.check.crew import Crew, fresh
from tracea_graph.errors import WorkerError

RELU = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"


def pid(crew: Crew, library: Path | None = None, **env: str) -> int:
    with crew.hire(library, env) as worker:
        return worker._process.pid


def test_a_worker_serves_again_and_forgets_between(tmp_path: Path) -> None:
    path, x = save(tmp_path, "m.onnx", RELU), np.ones((1, 4), np.float32)
    with Crew() as crew:
        with crew.hire(None, {}) as worker:
            worker.open("m", path)
            assert worker.run("m", {"x": x})["y"].shape == (1, 4)
        with crew.hire(None, {}) as again:
            assert again is worker
            with pytest.raises(WorkerError, match="'m'"):
                again.run("m", {"x": x})
    assert not worker.alive


def test_each_environment_has_its_own_and_a_library_is_known_by_its_file(tmp_path: Path) -> None:
    one, link, other = (tmp_path / f"{name}.so" for name in ("one", "link", "other"))
    one.write_bytes(b"1")
    os.link(one, link)
    shutil.copy(one, other)
    with Crew() as crew:
        plain, first = pid(crew), pid(crew, one)
        assert len({plain, first, pid(crew, one, TRACEA_ISA="scalar")}) == 3
        assert pid(crew, link) == first
        assert pid(crew, other) not in (plain, first)
        assert pid(crew) == plain


def test_a_dead_worker_is_replaced() -> None:
    with Crew() as crew:
        with pytest.raises(WorkerError, match="SIGKILL"), crew.hire(None, {}) as worker:
            os.kill(worker._process.pid, signal.SIGKILL)
            worker.clear()
        with crew.hire(None, {}) as another:
            assert another is not worker and another.alive


def test_only_those_that_served_before_are_doubted() -> None:
    with Crew() as crew:
        first = pid(crew)
        assert not crew.dismiss("all")
        assert pid(crew) == first
        assert not crew.dismiss("") and not crew.dismiss("dead")
        assert crew.dismiss("all")
        assert pid(crew) != first


def test_a_fresh_worker_is_gone_afterwards() -> None:
    with fresh(None, {}) as worker:
        assert worker.alive
    assert not worker.alive
