"""Libraries under every release line of onnxruntime and of Python, installed for the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.conftest import built, kernels_for
from tests.runtime.support import Case, run_cases, run_worker
from tracea_graph.config import TOLERANCE
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.toolchain import Library

NAMES = ("gemm_chain_37x72_layout0", "gemm_then_norm", "gemm_then_norm_empty", "attention_boolean")


RUNTIMES = ("1.17.3", "1.20.1", "1.23.2", "newest")
PYTHONS = ("3.11", "3.12", "3.13")
NO_WHEEL = {("1.17.3", "3.13")}
"""Releases that are older than that Python."""


def install(folder: Path, *packages: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*command, str(folder), *packages], check=True, timeout=300)


def interpreter(version: str) -> str:
    """A Python of a version, wherever it is installed.  Skips where there is none."""
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(roots.glob(f"{version}.*/bin/python"))]
    for path in filter(None, found):
        said = subprocess.run([path, "-c", "import venv, ensurepip, sys; print(sys.version)"],
                              capture_output=True, text=True, check=False)  # fmt: skip
        if said.stdout.startswith(version):
            return str(path)
    pytest.skip(f"there is no Python {version} here")


def environment(folder: Path, python: str, *packages: str) -> str:
    """The Python of a fresh environment with these packages."""
    subprocess.run([interpreter(python), "-m", "venv", folder], check=True, timeout=600)
    command = [folder / "bin/python", "-m", "pip", "install", "--quiet", *packages]
    subprocess.run(command, check=True, timeout=600)
    return str(folder / "bin/python")


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("version", RUNTIMES)
def test_runs_on(
    version: str,
    python: str,
    cases: dict[str, Case],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if (version, python) in NO_WHEEL:
        pytest.skip(f"onnxruntime {version} has no wheel for Python {python}")
    wanted = "onnxruntime" if version == "newest" else f"onnxruntime=={version}"
    numpy = "numpy<2" if version == "1.17.3" else "numpy"
    monkeypatch.setattr(sys, "executable", environment(tmp_path / "env", python, wanted, numpy))
    found = run_worker({"task": "version"})
    assert version in ("newest", found)
    some = [cases[name] for name in NAMES]
    for isa in host_levels():
        (tmp_path / isa).mkdir()
        library = built(some, kernels_for(some), isa, tmp_path / f"{isa}.so")
        answers = run_cases(some, library.path, library.domain, tmp_path / isa, isa)
        for case in some:
            assert isinstance(answers[case.name], tuple), answers[case.name]
            for got, wanted_y in zip(answers[case.name], case.expected, strict=True):
                assert got.shape == wanted_y.shape
                limit = TOLERANCE.kernel_f32 * np.abs(wanted_y).max(initial=0)
                assert np.abs(got - wanted_y).max(initial=0) <= limit


@pytest.mark.slow
def test_an_older_runtime_gets_a_sentence(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", "onnxruntime==1.16.3", "numpy==1.26.4")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    text = run_worker({"task": "register", "library": str(library.path)})
    assert "needs ONNX Runtime 1.17 or later, this is 1.16.3" in text
