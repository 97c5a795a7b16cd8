"""Compilers, the object cache and the packaging of libraries."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.support import cache_with_runtime
from tests.steps import one_step
from tracea_graph.config import Environment
from tracea_graph.errors import BuildError
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.combined_compilation_units import combined_units
from tracea_graph.kernels.cpu.emitter import compilation_units
from tracea_graph.kernels.cpu.library_build import build_library, domain_of, manifest
from tracea_graph.kernels.program import LibraryContents, OpType
from tracea_graph.kernels.runtime import public_header
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.toolchain import Compiler, find_compiler
from tracea_graph.toolchain.compilers import run_command
from tracea_graph.toolchain.object_cache import ObjectCache, sha256_of_parts, write_atomically

RELU = Chain(("full",), (Step("relu", (0,)),), (1,))
ADD = Chain(("full", "row"), (Step("add", (0, 1)),), (2,))
A = OpType("FusedNorm_a1", (DType.F32, DType.F32), (DType.F32,))
B = OpType("FusedGemm_b2", (DType.F32,) * 3, (DType.F32, DType.F32))
SCALAR = ("scalar",)
KERNELS = ("gemm", "norm")


@pytest.fixture
def private(tmp_path: Path) -> Environment:
    """An environment with a cache of its own."""
    return replace(Environment(), cache=tmp_path / "cache")


def with_compiler(environment: Environment, folder: Path, script: str) -> Environment:
    """An environment whose CXX is a shell script."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return replace(environment, compiler=str(path))


def test_order_changes_nothing(tmp_path: Path) -> None:
    one = build_library(
        LibraryContents([A, B], KERNELS, [RELU, ADD]), ("scalar", "avx2"), tmp_path / "one.so"
    )
    two = build_library(
        LibraryContents([B, A], KERNELS, [ADD, RELU]), ("avx2", "scalar"), tmp_path / "two.so"
    )
    assert one.path.read_bytes() == two.path.read_bytes()
    assert (
        one.domain
        == two.domain
        == domain_of(manifest(LibraryContents([A, B], KERNELS, [ADD, RELU]), ("scalar", "avx2")))
    )
    assert two.compiled_units == 0


def test_the_domain_depends_on_types_chains_and_levels() -> None:
    variants = [
        manifest(LibraryContents([A], KERNELS, [RELU]), SCALAR),
        manifest(LibraryContents([A, B], KERNELS, [RELU]), SCALAR),
        manifest(LibraryContents([A], KERNELS[:1], [RELU]), SCALAR),
        manifest(LibraryContents([A], KERNELS, [ADD]), SCALAR),
        manifest(LibraryContents([A], KERNELS, [RELU]), ("scalar", "avx2")),
        manifest(LibraryContents([replace(A, outputs=(DType.I64,))], KERNELS, [RELU]), SCALAR),
    ]
    domains = [domain_of(m) for m in variants]
    assert len(set(domains)) == len(domains)
    assert all(re.fullmatch(r"tracea\.[0-9a-f]{10}", d) for d in domains)


def test_a_library_exports_its_interfaces_and_needs_an_old_libc(tmp_path: Path) -> None:
    built = build_library(
        LibraryContents([A], KERNELS, [RELU]), ("scalar", "avx2", "avx512"), tmp_path / "l.so"
    )
    table = subprocess.run(["objdump", "-T", built.path], capture_output=True, text=True).stdout
    exported = [row.split()[-1] for row in table.splitlines() if ".text" in row]
    versions = [tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", table)]
    declared = re.findall(r"\b(tracea_\w+)\(", public_header("tracea.h").split("Dense views")[0])
    assert set(exported) == {"RegisterCustomOps", *declared} - {"tracea_matrix"}
    assert max(versions) <= (2, 17)
    assert "GLIBCXX" not in table
    needed = subprocess.run(["objdump", "-p", built.path], capture_output=True, text=True).stdout
    assert set(re.findall(r"NEEDED\s+(\S+)", needed)) <= {
        "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2",
    }  # fmt: skip
    data = built.path.read_bytes()
    assert str(Path.cwd()).encode() not in data
    assert b"tracea-build-" not in data


def test_damaged_objects_are_rebuilt(tmp_path: Path) -> None:
    private = replace(Environment(), cache=cache_with_runtime(tmp_path / "cache"))
    (runtime,) = (p for p in private.cache.rglob("*") if p.is_file())
    first = build_library(
        LibraryContents([A], KERNELS, []), SCALAR, tmp_path / "a.so", environment=private
    )
    objects = [p for p in private.cache.rglob("*") if p.is_file() and p != runtime]
    assert first.compiled_units == len(objects) >= 3
    objects[0].write_bytes(objects[0].read_bytes()[:-1])
    again = build_library(
        LibraryContents([A], KERNELS, []), SCALAR, tmp_path / "b.so", environment=private
    )
    assert again.compiled_units == 1
    assert again.sha256 == first.sha256


def test_the_cache_is_private(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "new" / "objects")
    assert cache.get(sha256_of_parts("x")) is None
    cache.put(sha256_of_parts("x"), b"data")
    assert cache.get(sha256_of_parts("x")) == b"data"
    for path in (cache.root, *cache.root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_an_unwritable_cache_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="TRACEA_CACHE"):
        ObjectCache(tmp_path / "file").put(sha256_of_parts("x"), b"data")


def test_files_are_written_whole(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()  # cannot be replaced by a file
    with pytest.raises(OSError):
        write_atomically(target, b"data")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_files_are_for_those_whom_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "out", b"data", mode=0o755)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700


def test_digests_tell_apart_how_text_is_cut() -> None:
    assert sha256_of_parts("ab", "c") != sha256_of_parts("a", "bc")


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, private: Environment) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuildError, match="No C\\+\\+ compiler was found"):
        find_compiler(replace(private, compiler=None))


def test_cxx_may_hold_arguments(private: Environment) -> None:
    compiler = find_compiler(replace(private, compiler="g++ -DEXTRA=1"))
    assert compiler.command == ("g++", "-DEXTRA=1")
    assert compiler.family == "gcc"


@pytest.mark.parametrize(
    ("command", "family"),
    [
        (("python", "-m", "ziglang", "c++"), "zig"),
        (("/opt/zig/zig", "c++", "-target", "x86_64-linux-gnu.2.17"), "zig"),
        (("/usr/bin/clang++",), "clang"),
    ],
)
def test_zig_is_known_by_its_command(command: tuple[str, ...], family: str) -> None:
    """It says that it is clang, but its linker takes fewer flags."""
    assert Compiler(command, "clang version 22.1.8").family == family


def test_a_missing_cxx_is_not_passed_over(private: Environment) -> None:
    with pytest.raises(BuildError, match="could not be started"):
        find_compiler(replace(private, compiler="/nowhere/c++"))


def test_a_failing_compiler_is_quoted(private: Environment, tmp_path: Path) -> None:
    script = (
        'case "$1" in --version) echo fake 1.0;; *) echo "as: error: oh dear" >&2; exit 3;; esac'
    )
    with pytest.raises(BuildError, match=r"exit code 3: as: error: oh dear\.") as caught:
        build_library(
            LibraryContents([A], KERNELS, []),
            SCALAR,
            tmp_path / "l.so",
            environment=with_compiler(private, tmp_path, script),
        )
    assert "oh dear" in caught.value.stderr
    assert "unit.cpp" in caught.value.command
    assert not (tmp_path / "l.so").exists()


def test_tools_are_found_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, ``gcc`` finds no linker, though the shell and Python find all programs."""
    env = shutil.which("env")
    monkeypatch.delenv("PATH")
    assert env and f"PATH={os.defpath}" in run_command((env,), tmp_path, 60).splitlines()


@pytest.mark.parametrize(
    "script",
    ["sleep 1000", 'case "$1" in --version) echo fake 1.0;; *) sleep 1000 & wait;; esac'],
)
def test_a_hanging_compiler_is_stopped(script: str, private: Environment, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(BuildError, match="took longer than"):
        build_library(
            LibraryContents([A], KERNELS, []),
            SCALAR,
            tmp_path / "l.so",
            environment=with_compiler(private, tmp_path, script),
            seconds=0.5,
        )
    assert time.monotonic() - start < 500, "what it started is waited for"


def test_an_unknown_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="scalar, avx2, avxvnni, avx512"):
        build_library(LibraryContents([A], KERNELS, []), ("neon",), tmp_path / "l.so")


def test_the_table_is_as_it_was(golden: Callable[[str, str], None]) -> None:
    from tracea_graph.kernels.cpu.library_table import table_source

    golden(
        "table.cpp",
        table_source(
            "tracea.0123456789", LibraryContents([B, A], KERNELS, [ADD, RELU]), ("avx2", "scalar")
        ),
    )


def test_quick_libraries_hold_the_same_kernels_in_fewer_files(tmp_path: Path) -> None:
    chains = [RELU, ADD, *(one_step(op) for op in ("exp", "tanh", "erf", "sqrt", "neg", "abs"))]
    levels = ("scalar", "avx2")
    slow = compilation_units(KERNELS, chains, levels)
    quick = combined_units(slow)
    assert len(quick) == len(slow) - len(levels) * (len(chains) - 1)
    for source in slow:
        holders = [q for q in quick if f" {source.symbol}(" in q.text]
        assert len(holders) == 1 and "-O1" in holders[0].flags
    private = replace(Environment(), cache=cache_with_runtime(tmp_path / "cache"))
    built = build_library(
        LibraryContents([A], KERNELS, chains),
        levels,
        tmp_path / "q.so",
        environment=private,
        quick=True,
    )
    assert built.compiled_units == len(quick) + 1, "the table, and not the runtime"
    assert built.manifest == manifest(LibraryContents([A], KERNELS, chains), levels, quick=True)
    assert built.domain == domain_of(built.manifest)
    assert built.domain != domain_of(manifest(LibraryContents([A], KERNELS, chains), levels))


def test_quick_libraries_share_the_objects_of_kernels() -> None:
    """Whatever other kernels and chains they hold."""
    one, other = (
        {unit.text for unit in combined_units(compilation_units(held, chains, SCALAR))}
        for held, chains in ((KERNELS, [RELU, ADD]), ((*KERNELS, "softmax", "copy"), [RELU]))
    )
    assert len(one & other) == len(KERNELS) == len(one) - 1


def test_a_chain_more_compiles_little_anew() -> None:
    steps = [(Step("relu", (0,)), Step("mul", (1, float(i)))) for i in range(70)]
    chains = [Chain(("full",), two, (2,)) for two in steps]
    before = {source.text for source in combined_units(compilation_units((), chains[:-1], SCALAR))}
    after = [source.text for source in combined_units(compilation_units((), chains, SCALAR))]
    assert 4 <= len(after) < 10 and len(set(after) - before) == 1
