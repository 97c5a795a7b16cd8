"""The header of the intrinsics, parsed once: it saves time, and nothing ever depends on it."""

from __future__ import annotations

import shutil
import subprocess
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.steps import one_step
from tracea_graph.config import Environment
from tracea_graph.errors import BuildError
from tracea_graph.ir import DType
from tracea_graph.kernels import chain_source
from tracea_graph.kernels.cpu import library_build
from tracea_graph.kernels.cpu.emitter import compilation_units
from tracea_graph.kernels.cpu.isa_levels import COMMON_FLAGS, X86, isa_of
from tracea_graph.kernels.cpu.library_build import build_library
from tracea_graph.kernels.cpu.precompiled_header import USES, header_flags, precompiled
from tracea_graph.kernels.program import LibraryContents, OpType
from tracea_graph.toolchain import Compiler, find_compiler
from tracea_graph.toolchain.object_cache import ObjectCache

CHAINS = [one_step(op) for op in ("relu", "neg", "abs")]
TYPES = [OpType("FusedElementwise_a1", (DType.F32,), (DType.F32,))]
LEVEL = "avx2"
PATIENT = 600.0
"""Seconds a compiler may take: a busy machine is no failure."""
UNITS = compilation_units((), CHAINS, (LEVEL,))
FLAGS = (*library_build._FLAGS, *header_flags(UNITS[0].flags))
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not shutil.which("g++"), reason="only gcc parses the header once"),
]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """g++, which notes in ``$ASKED`` what it is asked, and fails if that is ``$REFUSED``."""
    path = tmp_path_factory.mktemp("script") / "cxx"
    path.write_text(
        '#!/bin/sh\necho "$@" >> "${ASKED:-/dev/null}"\n'
        'for a; do [ "$a" = "$REFUSED" ] && { echo "no $a" >&2; exit 1; }; done\nexec g++ "$@"\n'
    )
    path.chmod(0o755)
    return path


def build(env: Environment, chains: int = USES, name: str = "l.so") -> bytes:
    out = env.cache.parent / name
    some = CHAINS[:chains]
    build_library(
        LibraryContents(TYPES, (), some), (LEVEL,), out, environment=env, seconds=PATIENT
    )
    return out.read_bytes()


def asked(env: Environment, word: str) -> int:
    """How often the compiler was given a word."""
    return (env.cache.parent / "log").read_text().split().count(word)


def entry(env: Environment) -> Path:
    """The precompiled header in a cache: by far the largest file."""
    return max((p for p in env.cache.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


@pytest.fixture(scope="module")
def known(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of all that the libraries need but their chains; the header is in it."""
    env = replace(
        Environment(), cache=tmp_path_factory.mktemp("known") / "cache", compiler=str(script)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASKED", str(env.cache.parent / "log"))
        build(env)
        build(env, 1)
    assert asked(env, "c++-header") == 1 and asked(env, "-include") == len(UNITS) == USES
    compiler = find_compiler(env)
    for unit in UNITS:
        key = library_build.object_key(compiler, unit)
        (env.cache / "objects" / key[:2] / key).unlink()
    return env.cache


@pytest.fixture
def env(script: Path, known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An environment with such a cache of its own."""
    shutil.copytree(known, tmp_path / "e" / "cache")
    monkeypatch.setenv("ASKED", str(tmp_path / "e" / "log"))
    return replace(Environment(), cache=tmp_path / "e" / "cache", compiler=str(script))


@pytest.fixture(scope="module")
def plain(
    script: Path, known: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[int, bytes]:
    """Libraries, by their count of chains, of a compiler that fails to parse a header alone."""
    folder = tmp_path_factory.mktemp("plain")
    env = replace(Environment(), cache=folder / "cache", compiler=str(script))
    shutil.copytree(known, env.cache)
    entry(env).unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASKED", str(folder / "log"))
        patch.setenv("REFUSED", "c++-header")
        made = {count: build(env, count) for count in (USES, 1)}
    assert asked(env, "c++-header") == 1 and not asked(env, "-include")
    return made


def test_it_is_private_and_libraries_are_the_same_in_every_byte(
    plain: Mapping[int, bytes], env: Environment
) -> None:
    assert entry(env).stat().st_mode & 0o077 == 0
    assert build(env, 1) == plain[1]
    assert build(env) == plain[USES]
    assert not asked(env, "c++-header") and asked(env, "-include") == len(UNITS)


@pytest.mark.parametrize("level", [X86.levels[1].name, X86.levels[-1].name])
def test_the_header_is_taken_without_a_word(level: str, tmp_path: Path) -> None:
    """gcc says so where a precompiled header does not fit; here that is an error."""
    flags, scheduled = (*COMMON_FLAGS, *isa_of(level).flags), chain_source.FLAGS
    compiler, cache = find_compiler(), ObjectCache(tmp_path / "cache")
    for place in ("made", "found"):
        folder = tmp_path / place
        header = precompiled(compiler, cache, flags, folder, PATIENT, make=place == "made")
        (folder / "unit.cpp").write_text(
            "#include <immintrin.h>\n__m256 twice(__m256 x) { return _mm256_add_ps(x, x); }\n"
        )
        strict = ("-Winvalid-pch", "-Werror", "-H", "-c", "unit.cpp")
        done = subprocess.run(
            [*compiler.command, *flags, *scheduled, *header, *strict],
            cwd=folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stderr.startswith(f"! {folder}")  # the mark of one that is taken
    assert header_flags((*flags, *scheduled)) == flags
    assert len({(tmp_path / p / "unit.o").read_bytes() for p in ("made", "found")}) == 1


def test_few_kernels_do_not_wait_for_it(plain: Mapping[int, bytes], env: Environment) -> None:
    entry(env).unlink()
    assert build(env, 1) == plain[1]
    assert not asked(env, "c++-header") and not asked(env, "-include")


def test_a_damaged_one_is_made_anew(plain: Mapping[int, bytes], env: Environment) -> None:
    path = entry(env)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert build(env) == plain[USES]
    assert asked(env, "c++-header") == 1 and entry(env) == path
    assert path.stat().st_size > len(whole) // 2


@pytest.mark.parametrize(
    "spoil",
    [lambda d: d[:-1] + bytes([d[-1] ^ 1]), lambda d: b""],
    ids=["changed", "empty"],
)
def test_a_damaged_one_is_not_taken(
    plain: Mapping[int, bytes], env: Environment, spoil: Callable[[bytes], bytes]
) -> None:
    path = entry(env)
    path.write_bytes(spoil(path.read_bytes()))
    assert build(env, 1) == plain[1]
    assert not asked(env, "-include")


@pytest.mark.parametrize("what", ["no header", "no stream", "of another level"])
def test_one_that_does_not_fit_is_passed_over(
    plain: Mapping[int, bytes], env: Environment, tmp_path: Path, what: str
) -> None:
    """Entries that are whole, but not what their key says."""
    path, data = entry(env), b"no stream"
    if what == "no header":
        data = zlib.compress(b"gpch no header")
    elif what == "of another level":
        stray = ObjectCache(tmp_path / "stray")
        precompiled(find_compiler(env), stray, ("-mavx512f",), tmp_path / "h", PATIENT)
        data = zlib.compress((tmp_path / "h" / "intrinsics.h.gch").read_bytes())
    ObjectCache(env.cache / "objects").put(path.name, data)
    assert build(env, 1) == plain[1]
    assert asked(env, "-include") == (what != "no stream")


def test_a_compiler_that_cannot_use_what_it_made(
    plain: Mapping[int, bytes], env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSED", "-include")
    assert build(env, 1) == plain[1]
    assert asked(env, "-include") == 1


def test_a_source_that_is_wrong_is_quoted(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSED", "-c")
    with pytest.raises(BuildError, match=r"did not compile: .* failed with exit code 1") as caught:
        build(env)
    assert caught.value.stderr == "no -c\n"


def test_a_full_disk_means_none(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device", str(path))

    compiler, cache = find_compiler(env), ObjectCache(env.cache / "objects")
    folder = env.cache.parent / "h"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert precompiled(compiler, cache, FLAGS, folder, PATIENT, make=False) == ()
        assert not list(folder.glob("*.gch"))
    assert precompiled(compiler, cache, FLAGS, folder, PATIENT, make=False)


def test_two_at_once(plain: Mapping[int, bytes], env: Environment) -> None:
    entry(env).unlink()
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda i: build(env, name=f"{i}.so"), range(2)))
    assert made == [plain[USES]] * 2
    assert 1 <= asked(env, "c++-header") <= 2 and entry(env).stat().st_size > 1 << 20


@pytest.mark.parametrize("identity", ["clang version 17.0.6", "Debian clang version 14.0.6"])
def test_other_compilers_parse_the_text(identity: str, tmp_path: Path) -> None:
    compiler = Compiler(("/nowhere/c++",), identity)
    assert precompiled(compiler, ObjectCache(tmp_path), (), tmp_path / "h", PATIENT) == ()
    assert not (tmp_path / "h").exists()
