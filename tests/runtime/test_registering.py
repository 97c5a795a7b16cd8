"""A library is loaded with its first session and unloaded with the last, and leaves nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.runtime.support import Case, model, run_worker
from tracea_graph.toolchain import Library

EMPTY = 'extern "C" void* RegisterCustomOps(void*, const void*) { return nullptr; }'
FEW, MANY = 2_000, 10_000
LIMIT = 100.0
"""Bytes a registration: the domain and the op types of a small library are some kilobytes."""

counts = pytest.mark.parametrize("times", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


def growth(library: Path, times: int) -> float:
    found = run_worker({"task": "registrations", "library": str(library), "times": times})
    assert isinstance(found, float)
    return found


@counts
def test_registrations_take_no_memory(times: int, library: Library, tmp_path: Path) -> None:
    """Measured against a library that does nothing: ONNX Runtime itself keeps nothing."""
    empty = tmp_path / "empty.so"
    (tmp_path / "empty.cpp").write_text(EMPTY)
    command = ["g++", "-shared", "-fPIC", "-o", empty, tmp_path / "empty.cpp"]
    subprocess.run(command, check=True)
    assert growth(empty, times) < LIMIT
    assert growth(library.path, times) < LIMIT


def test_registrations_leave_no_file_open(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEA_PROFILE", str(tmp_path / "profile"))
    job = {"task": "files", "library": str(library.path), "times": 20}
    assert run_worker(job) == 0


@counts
def test_libraries_that_come_and_go_under_threads_answer_the_same(
    times: int, library: Library, cases: dict[str, Case], tmp_path: Path
) -> None:
    case = cases["gemm_then_norm"]
    onnx.save(model(case.program, library.domain), tmp_path / "model.onnx")
    np.savez(tmp_path / "feeds.npz", **{f"x{i}": x for i, x in enumerate(case.feeds)})
    job = {
        "task": "comings_and_goings", "library": str(library.path), "folder": str(tmp_path),
        "times": times // 10,
    }  # fmt: skip
    assert run_worker(job) is True
