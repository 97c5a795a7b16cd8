"""Guards (``TRACEA_DEBUG``) find kernels that do what they must not; time limits end runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tracea_graph.commands.build_kernel_library import KernelLibrary, build_kernels
from tracea_graph.kernels.cpu import emitter

ROOT = Path(__file__).resolve().parents[2]
HOST = """
import sys
import numpy as np
from pathlib import Path
from tracea_graph.native_library import KernelError, NativeLibrary, view
kernels = NativeLibrary(Path(sys.argv[1]))
kernels.set_threads(1)
x, y = np.arange(33, dtype=np.float32).reshape(3, 11), np.empty((3, 11), np.float32)
try:
    kernels.norm(view(x), None, None, view(y))
    print(abs(y.mean(1)).max() < 1e-5)
except KernelError as error:
    print(error)
"""
LAST = "t->y[(t->rows - 1) * t->y_stride + t->cols"
DEFECTS = {
    "none": ("", "True"),
    "writes before": ("t->y[-1] = 1.0f;", "Call 0, norm, wrote 4 bytes before output 0."),
    "writes behind": (
        f"{LAST}] = 1.0f;", "call 0, norm, of norm touched memory behind output 0."
    ),
    "reads behind": (
        f"{LAST} - 1] = t->x[(t->rows - 1) * t->x_stride + t->cols];",
        "call 0, norm, of norm touched memory behind input 0.",
    ),
    "writes an input": (
        "const_cast<float*>(t->x)[0] = 1.0f;", "call 0, norm, of norm wrote input 0."
    ),
}  # fmt: skip


def broken(monkeypatch: pytest.MonkeyPatch, folder: Path, before: str, after: str) -> Path:
    """A library for norms of which a kernel does something else as well."""
    render = emitter.render

    def rendered(template: str, **parameters: object) -> str:
        text = render(template, **parameters)
        return text.replace("{ rows<true>(t); }", f"{{ {before} {after} }}")

    monkeypatch.setattr(emitter, "render", rendered)
    return build_kernels(("norm",), folder, levels=("scalar",)).path


def output_of(library: Path, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", HOST, library], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, check=False,
    )  # fmt: skip
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found_and_its_call_named(
    defect: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, words = DEFECTS[defect]
    library = broken(monkeypatch, tmp_path, "rows<true>(t);", code)
    assert words in output_of(library, TRACEA_DEBUG="guard")


def test_what_no_call_writes_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = broken(monkeypatch, tmp_path, "", "")
    said = output_of(library, TRACEA_DEBUG="guard")
    assert "No call wrote element 0 of output 0" in said


def test_a_run_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = "__builtin_ia32_rdtsc()"
    wait = f"const auto start = {now}; while ({now} - start < 1e9) {{}}"
    library = broken(monkeypatch, tmp_path, "rows<true>(t);", wait)
    said = output_of(library, TRACEA_TIMEOUT="0.01")
    assert (
        "The run took longer than TRACEA_TIMEOUT, 0.01 s: it was stopped at call 0, norm" in said
    )
    assert output_of(library, TRACEA_TIMEOUT="60").strip() == "True"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TRACEA_BARRIERS", "yes", "TRACEA_BARRIERS is 'yes', but must be 1."),
        ("TRACEA_DEBUG", "all", "TRACEA_DEBUG is 'all', but must be guard."),
        ("TRACEA_GROUPS", "0-3/x", "TRACEA_GROUPS is '0-3/x', but must be lists of processors"),
        ("TRACEA_PROCESSORS", "0", "TRACEA_PROCESSORS is '0', but must be a number from 1 to"),
        ("TRACEA_PROCESSORS", "two", "TRACEA_PROCESSORS is 'two', but must be"),
        ("TRACEA_TIMEOUT", "-1", "TRACEA_TIMEOUT is '-1', but must be a number"),
        ("TRACEA_TIMEOUT", "1s", "TRACEA_TIMEOUT is '1s'"),
    ],
)
def test_values_that_mean_nothing_are_refused(
    built: KernelLibrary, name: str, value: str, words: str
) -> None:
    assert words in output_of(built.path, **{name: value})
