"""One library under the oldest and newer releases of onnxruntime, installed for the test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from runtime.support import Case, run_cases, run_worker

from tracea_graph.build import Library
from tracea_graph.config import TOLERANCE

NAMES = ("gemm_chain_37x72_layout0", "gemm_then_norm", "gemm_then_norm_empty", "attention_boolean")


def install(folder: Path, *packages: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*command, str(folder), *packages], check=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.17.3", "1.20.1", "1.23.2"])
def test_runs_on(
    version: str,
    cases: dict[str, Case],
    library: Library,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(tmp_path / "site", f"onnxruntime=={version}", "numpy==1.26.4")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    assert run_worker({"task": "version"}) == version
    some = [cases[name] for name in NAMES]
    answers = run_cases(some, library.path, library.domain, tmp_path, "avx512")
    for case in some:
        assert isinstance(answers[case.name], tuple), answers[case.name]
        for got, wanted in zip(answers[case.name], case.expected, strict=True):
            assert got.shape == wanted.shape
            limit = TOLERANCE.kernel_f32 * np.abs(wanted).max(initial=0)
            assert np.abs(got - wanted).max(initial=0) <= limit


@pytest.mark.slow
def test_an_older_runtime_gets_a_sentence(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", "onnxruntime==1.16.3", "numpy==1.26.4")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    text = run_worker({"task": "register", "library": str(library.path)})
    assert "needs ONNX Runtime 1.17 or later, this is 1.16.3" in text
