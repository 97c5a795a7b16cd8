"""What the tests of failing commands share: a good model, and what a refusal must look like."""

from __future__ import annotations

import re
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tracea_graph.cli import optimize_main
from tracea_graph.config import Environment
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu import library_build
from tracea_graph.kernels.cpu.emitter import CompilationUnit
from tracea_graph.kernels.cpu.library_build import build_library
from tracea_graph.kernels.program import NO_CONTENTS, LibraryContents, OpType
from tracea_graph.toolchain import find_compiler
from tracea_graph.toolchain.object_cache import ObjectCache

__all__ = ["COMMAND", "UNTIMED", "cache_with_runtime", "complaints", "content", "refused"]

UNTIMED = ("--keep", "all", "--no-verify")
COMMAND = (
    sys.executable,
    "-c",
    "import sys; from tracea_graph.cli import optimize_main; sys.exit(optimize_main())",
)
"""``tracea-optimize`` as a process of its own."""


@cache
def _runtime() -> bytes:
    """The object of the runtime, which every library has."""
    unit, shared = _runtime_unit(), ObjectCache(Environment().cache / "objects")
    key = library_build.object_key(find_compiler(), unit)
    if shared.get(key) is None:
        types = [OpType("FusedElementwise_a1", (DType.F32,), (DType.F32,))]
        with tempfile.TemporaryDirectory() as folder:
            build_library(LibraryContents(types), ("scalar",), Path(folder) / "l.so")
    found = shared.get(key)
    assert found is not None
    return found


def _runtime_unit() -> CompilationUnit:
    units = library_build._units(NO_CONTENTS, ("scalar",), library_build._NO_DOMAIN, False)
    return next(unit for unit in units if unit.symbol == "runtime")


def cache_with_runtime(folder: Path) -> Path:
    """A cache as if ``CXX`` had compiled the runtime, which takes seconds, and nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        named = find_compiler()
        patch.delenv("CXX", raising=False)
        data = _runtime()
    ObjectCache(folder / "objects").put(library_build.object_key(named, _runtime_unit()), data)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def complaints(err: str) -> str:
    """What a command wrote to stderr, without the lines that say which step it is at."""
    return re.sub(r"^ *\d+\.\d s  .*\n", "", err, flags=re.MULTILINE)


def refused(capsys: pytest.CaptureFixture[str], *args: str, code: int = 2) -> str:
    """The one line on stderr of a command that fails and changes nothing in this folder."""
    before = content(Path())
    assert optimize_main([*args]) == code
    assert content(Path()) == before
    out, err = capsys.readouterr()
    assert out == ""
    err = complaints(err)
    assert err.startswith("error: ") and err.count("\n") == 1
    assert "Traceback" not in err and "(a bug" not in err
    return err
