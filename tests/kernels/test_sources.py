"""The text of the CPU's kernels and runtime: golden files, and nothing the compiler warns of."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from tests.kernels.conformance import HEADERS
from tracea_graph.kernels.cpu.combined_compilation_units import _one
from tracea_graph.kernels.cpu.emitter import CompilationUnit, compilation_units, emit_unit
from tracea_graph.kernels.cpu.exported_functions import KERNELS
from tracea_graph.kernels.cpu.isa_levels import COMMON_FLAGS
from tracea_graph.toolchain.compilers import find_compiler

PARSED = ("-fsyntax-only",)
"""Instantiates templates, and warns of all but unused functions and unset variables."""
WARNINGS = ("-Wall", "-Wextra", "-Werror", f"-I{HEADERS.parent}")


def compile_text(
    text: str, flags: tuple[str, ...], folder: Path, to: tuple[str, ...] = ("-S",)
) -> None:
    (folder / "unit.cpp").write_text(text)
    command = (*flags, "-O0", *WARNINGS, *to, "unit.cpp", "-o", "/dev/null")
    find_compiler().run(command, folder)


@pytest.mark.parametrize(("kernel", "level"), [("conv", "avx512"), ("depthwise", "avx2")])
def test_golden(kernel: str, level: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{kernel}_{level}.cpp", emit_unit(kernel, level).text)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("level", "to"),
    [
        ("avx512bf16", PARSED),
        *(pytest.param(level, ("-S",), marks=pytest.mark.slow)
          for level in ("scalar", "avx2", "avx512", "avx512bf16", "amxbf16")),
    ],
)  # fmt: skip
def test_all_kernels_compile_without_a_warning(
    level: str, to: tuple[str, ...], tmp_path: Path
) -> None:
    """All of a level in one file; a level has the kernels of the one below that it lacks."""

    def flags(unit: CompilationUnit) -> tuple[str, ...]:
        return unit.flags

    every = sorted(compilation_units(KERNELS, (), (level,)), key=flags)
    for own, alike in groupby(every, flags):
        compile_text(_one(list(alike)).text, (*own, f"-I{HEADERS}"), tmp_path, to)


@pytest.mark.compiler
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_runtimes_compile_without_a_warning(backend: str, tmp_path: Path) -> None:
    folder = HEADERS.parent / backend
    loops = (folder / "runtime").glob("*_loops.cpp")
    for path in (folder / "runtime" / "runtime.cpp", *loops):
        compile_text(path.read_text(), (*COMMON_FLAGS, f"-I{folder}"), tmp_path)
