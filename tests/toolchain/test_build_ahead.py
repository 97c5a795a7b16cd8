"""What every library has is compiled while a model is planned, once, and stops with the run."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.steps import one_step
from tracea_graph.config import Environment
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.backend import CPU
from tracea_graph.kernels.cpu.library_build import build_ahead, build_library
from tracea_graph.kernels.program import LibraryContents, OpType
from tracea_graph.pipeline.library_builder import LibraryBuilder
from tracea_graph.pipeline.result_assembly import Assembly
from tracea_graph.pipeline.step_timer import Deadline
from tracea_graph.target import HOST, target_of
from tracea_graph.ttg import TileGraph

pytestmark = pytest.mark.compiler
TYPES = [OpType("FusedElementwise_a1", (DType.F32,), (DType.F32,))]


def compiler(folder: Path, then: str) -> Environment:
    """An environment whose compiler notes what it is asked, and goes on with a line of shell."""
    script = folder / "cxx"
    lines = (
        "#!/bin/sh",
        '[ "$1" = --version ] && exec g++ --version',
        f'echo "$TMPDIR" >> {folder}/asked',
        then,
    )
    script.write_text("\n".join((*lines, "")))
    script.chmod(0o755)
    return replace(Environment(), cache=folder / "cache", compiler=str(script))


def asked(folder: Path) -> int:
    place = folder / "asked"
    return len(place.read_text().splitlines()) if place.exists() else 0


def test_the_build_finds_it(tmp_path: Path) -> None:
    env = compiler(tmp_path, 'exec g++ "$@" -O0')
    build_ahead(("scalar",), env, lambda: False)
    assert asked(tmp_path) == 1, "the runtime; plain C++ takes no intrinsics"
    chains = [one_step("relu")]
    made = build_library(
        LibraryContents(TYPES, (), chains), ("scalar",), tmp_path / "l.so", environment=env
    )
    assert made.compiled_units == 2, "the table and the chain"
    assert asked(tmp_path) == 1 + 2 + 1, "and the linker"


def test_the_build_finds_kernels_that_were_compiled_ahead(tmp_path: Path) -> None:
    env, chains = compiler(tmp_path, 'exec g++ "$@" -O0'), [one_step("relu")]
    build_ahead(("scalar",), env, lambda: False, LibraryContents((), ("copy",), chains))
    assert asked(tmp_path) == 3, "the runtime, the kernel and the chain"
    out = tmp_path / "l.so"
    made = build_library(
        LibraryContents(TYPES, ("copy",), chains), ("scalar",), out, environment=env
    )
    assert made.compiled_units == 1, "the table"


def test_nothing_starts_once_it_is_stopped(tmp_path: Path) -> None:
    build_ahead(("scalar",), compiler(tmp_path, "exit 1"), lambda: True)
    assert asked(tmp_path) == 0


def test_it_ends_with_the_run(tmp_path: Path) -> None:
    env = compiler(tmp_path, "sleep 1000")
    with LibraryBuilder(target_of(HOST, "fp32"), env) as libraries:
        libraries.start()
        libraries.start()
        while not asked(tmp_path):
            time.sleep(0.02)
        thread = libraries._ahead
    assert thread is not None and not thread.is_alive()


def assembly() -> Assembly:
    """A model without regions of its own, and one kernel."""
    made = Assembly(TileGraph((), (), (), {}, {}), CPU)
    made.kernels.add("copy")
    return made


def test_a_step_ends_with_the_kernel_that_is_being_compiled(tmp_path: Path) -> None:
    env = compiler(tmp_path, 'sleep 0.2; exec g++ "$@" -O0')
    libraries = LibraryBuilder(target_of(HOST, "fp32"), env)
    with libraries.compiling(assembly(), ("scalar",), Deadline()):
        while not asked(tmp_path):
            time.sleep(0.02)
    assert asked(tmp_path) == 1
    cached = [path for path in (tmp_path / "cache/objects").rglob("*") if path.is_file()]
    assert len(cached) == 1, "the runtime; the kernel was not begun"


def test_a_failing_step_kills_the_compiler(tmp_path: Path) -> None:
    env = compiler(tmp_path, "sleep 1000")
    libraries = LibraryBuilder(target_of(HOST, "fp32"), env)
    with (
        pytest.raises(KeyboardInterrupt),
        libraries.compiling(assembly(), ("scalar",), Deadline()),
    ):
        while not asked(tmp_path):
            time.sleep(0.02)
        raise KeyboardInterrupt
    assert not any("build_ahead" in thread.name for thread in threading.enumerate())
