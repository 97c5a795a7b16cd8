"""What goes wrong around a run: disks, caches, compilers, kernels, a second run at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.support import COMMAND, UNTIMED, cache_with_runtime, complaints, content
from tests.tiny import ROOT, answers, error_between, product
from tracea_graph import Options, api, optimize
from tracea_graph.check import reference_outputs
from tracea_graph.cli import optimize_main
from tracea_graph.errors import BuildError
from tracea_graph.kernels.cpu.library_build import build_library
from tracea_graph.pipeline.candidate_models import BuiltModel, CandidateBuilder
from tracea_graph.reason_codes import Code
from tracea_graph.toolchain.object_cache import ObjectCache

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
X = {"x": np.random.default_rng(5).standard_normal((4, 32), np.float32)}
CLOSE = 1e-5
SCALAR = (*UNTIMED, "--target", "cpu:scalar")
"""For what is compiled anew: one level."""


def right(result: Path, original: Path) -> bool:
    """True if a result computes its original's function, with its library and without."""
    library = result.with_suffix(".so")
    ways = (None, library) if library.exists() else (None,)
    expected = answers(original, X, level="off")
    return all(error_between(answers(result, X, way), expected) < CLOSE for way in ways)


def compiler(folder: Path, *lines: str) -> str:
    """A C++ compiler that first runs a few lines of shell in the folder of a source.

    It optimizes nothing, which takes a fifth of the time.
    """
    script = folder / "cxx"
    script.write_text("\n".join(("#!/bin/sh", *lines, 'exec g++ "$@" -O0', "")))
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def quick(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """For caches of a test's own: what is compiled anew is compiled quickly."""
    monkeypatch.setenv("CXX", compiler(tmp_path_factory.mktemp("compiler")))


# ---- the disk ----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place))
    try:
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("mounting a file system takes rights this user lacks")
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    yield place
    subprocess.run(("umount", "-l", str(place)), check=True)


def test_a_full_disk_keeps_the_earlier_result(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = product(tmp_path / "m.onnx")
    out = ["-o", str(small_disk / "out.onnx")]
    assert optimize_main([str(model), *out, *UNTIMED, "-q", "--no-custom-ops"]) == 0
    before = content(small_disk)
    large = product(tmp_path / "large.onnx", 32, 4000)
    assert optimize_main([str(large), *out, *UNTIMED, "-q"]) == 2
    said = capsys.readouterr().err
    assert "cannot write" in said and "No space left on device" in said and said.count("\n") == 1
    assert content(small_disk) == before
    assert right(small_disk / "out.onnx", model)


def test_a_full_temporary_folder_is_named(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    large = product(tmp_path / "large.onnx", 64, 4000)
    assert optimize_main([str(large), *UNTIMED, "-q", "--target", "cpu:scalar"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: cannot write to {small_disk}: No space left on device")
    assert not list(small_disk.iterdir())


@pytest.mark.usefixtures("quick")
def test_a_full_cache_is_named(small_disk: Path, home: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(250 << 10))
    done = subprocess.run(
        [*COMMAND, home / "good.onnx", *SCALAR, "--cache", small_disk / "cache"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert "set TRACEA_CACHE or --cache to a folder of your own" in done.stderr
    assert complaints(done.stderr).count("\n") == 1
    assert {p.name for p in home.iterdir() if p.name != "disk"} == {"good.onnx"}


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder with a good model that nobody can write to, not even root."""
    folder = tmp_path / "in"
    folder.mkdir()
    mounted = False
    if os.geteuid() == 0:
        mounted = not subprocess.run(
            ("mount", "-t", "tmpfs", "none", str(folder)), capture_output=True, check=False
        ).returncode
        if not mounted:
            pytest.skip("root writes anywhere, and mounting is forbidden")
    product(folder / "good.onnx")
    if mounted:
        subprocess.run(("mount", "-o", "remount,ro", str(folder)), check=True)
    folder_mode = folder.stat().st_mode
    if not mounted:
        folder.chmod(0o555)
    yield folder
    if mounted:
        subprocess.run(("umount", "-l", str(folder)), check=True)
    else:
        folder.chmod(folder_mode)


def test_a_read_only_input_folder(
    read_only: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(read_only / "good.onnx")
    assert optimize_main([model, "-o", str(tmp_path / "out.onnx"), *UNTIMED, "-q"]) == 0
    assert right(tmp_path / "out.onnx", read_only / "good.onnx")
    assert optimize_main([model, *UNTIMED, "-q"]) == 2
    assert "is not writable; choose another with -o" in capsys.readouterr().err
    assert [path.name for path in read_only.iterdir()] == ["good.onnx"]


# ---- the cache ---------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_a_damaged_cache_costs_time_only(home: Path) -> None:
    args = ["good.onnx", *SCALAR, "-q", "--cache", "cache"]
    assert optimize_main(args) == 0
    library = Path("good.tracea.so").read_bytes()
    objects = sorted(p for p in Path("cache").rglob("*") if p.is_file())
    one, other, third, fourth, *_ = (p.read_bytes() for p in objects)
    objects[0].unlink()
    objects[1].write_bytes(other[: len(other) // 2])
    objects[2].write_bytes(os.urandom(len(third)))
    objects[3].write_bytes(fourth[:32] + one[32:])
    assert optimize_main(args) == 0
    assert Path("good.tracea.so").read_bytes() == library


@pytest.mark.usefixtures("quick")
def test_a_cache_that_vanishes_meanwhile(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry is gone, and its folder too, when it is looked for and when it is stored."""
    put = ObjectCache.put

    def vanishing(cache: ObjectCache, key: str, data: bytes) -> None:
        shutil.rmtree("cache", ignore_errors=True)
        put(cache, key, data)

    monkeypatch.setattr(ObjectCache, "put", vanishing)
    assert optimize_main(["good.onnx", *SCALAR, "-q", "--cache", "cache"]) == 0
    assert right(home / "good.tracea.onnx", home / "good.onnx")


@pytest.mark.usefixtures("quick")
def test_a_tuning_cache_of_garbage_is_left_aside(home: Path) -> None:
    cache = cache_with_runtime(home / "cache")
    few = ("--budget", "2", "--target", "cpu:scalar")
    args = ["good.onnx", "--keep", "faster", *few, "-q", "--cache", str(cache)]
    assert optimize_main(args) == 0
    stores = [p for p in cache.rglob("*") if p.is_file() and p.read_bytes()[:6] == b"SQLite"]
    assert stores
    for path in stores:
        path.write_bytes(os.urandom(4096))
    assert optimize_main(args) == 0
    assert right(home / "good.tracea.onnx", home / "good.onnx")


# ---- the compiler ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('[ "$1" = --version ] || exit 0', "wrote no object"),
        ('for a; do [ "$a" = -c ] && { echo junk > unit.o; exit 0; }; done', "failed"),
        ('for a; do [ "$a" = -shared ] && exit 0; done', "wrote no library"),
        ('[ "$1" = --version ] || kill -9 $$', "exit code -9"),
    ],
    ids=["no object", "no code", "no library", "killed"],
)
def test_a_compiler_that_lies(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    line: str, said: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("CXX", compiler(home, line))
    if said == "wrote no library":
        cache_with_runtime(Path("cache"))
    assert optimize_main(["good.onnx", *SCALAR, "--cache", "cache"]) == 4
    err = complaints(capsys.readouterr().err)
    assert err.startswith("error: ") and err.count("\n") == 1 and said in err
    assert not Path("good.tracea.onnx").exists()


def test_a_compiler_that_hangs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler(home, '[ "$1" = --version ] || sleep 100'))
    monkeypatch.setitem(build_library.__kwdefaults__, "seconds", 1.0)
    monkeypatch.setattr("tracea_graph.kernels.cpu.library_build.COMPILE_SECONDS", 1.0)
    with pytest.raises(BuildError, match="took longer than"):
        optimize("good.onnx", Options(keep="all", cache=Path("cache")))
    assert not Path("good.tracea.onnx").exists()


# ---- generated kernels -------------------------------------------------------------------

FAULTS = {
    "crash": "__builtin_trap();",
    "stray write": "*(volatile int*)8 = 1;",
    "endless loop": "for (volatile int i = 1; i;) i = 1;",
    "exit": 'asm volatile("syscall" :: "a"(231L), "D"(0L) : "rcx", "r11", "memory");',
}


@pytest.mark.parametrize(
    "fault",
    [
        # another signal that ends the worker, as the crash's does
        pytest.param(fault, marks=[pytest.mark.slow] if fault == "stray write" else [])
        for fault in FAULTS
    ],
)
def test_a_kernel_that_goes_wrong_is_dropped(
    home: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The kernel at fault goes, with what uses it; the rest, and the tool, live on."""
    injected = FAULTS[fault].replace("&", "\\&")
    pattern = r"s|^\(TRACEA_API void tracea_f32_chain_[^{]*{\)|\1 " + injected + "|"
    line = f"[ -f unit.cpp ] && sed -i '{pattern}' unit.cpp"
    monkeypatch.setenv("CXX", compiler(home, line))
    monkeypatch.setattr(reference_outputs, "PATIENCE", 0.3)
    cache = cache_with_runtime(home / "cache")
    report = optimize("good.onnx", Options(keep="all", target="cpu:scalar", cache=cache))
    assert report.kernels == 0 or report.status == "passed"
    assert "the worker" in report.to_json()
    assert right(Path(report.output), home / "good.onnx")


def test_a_library_that_cannot_be_loaded_is_said_at_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs a library that is missing: no rewrite is the culprit, so there is no bisection."""
    gone, built = home / "libgone.so", list[Path | None]()
    subprocess.run(
        ["g++", "-shared", "-o", gone, "-Wl,-soname,libgone.so", "-x", "c++", "/dev/null"],
        check=True,
    )
    line = f'for a; do [ "$a" = -shared ] && set -- "$@" -Wl,--no-as-needed {gone}; done'
    monkeypatch.setenv("CXX", compiler(home, line))
    write = CandidateBuilder.write

    def noted(*args: Any, **more: Any) -> BuiltModel:
        made = write(*args, **more)
        built.append(made.library)
        return made

    monkeypatch.setattr(CandidateBuilder, "write", noted)
    cache = cache_with_runtime(home / "cache")
    report = optimize("good.onnx", Options(keep="all", target="cpu:scalar", cache=cache))
    assert (report.outcome, report.library, len(built)) == ("kept original", None, 1)
    assert report.code is Code.FAILED_TO_RUN and "libgone.so" in report.reason


# ---- two runs, other libraries -----------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_two_runs_at_once(home: Path) -> None:
    cache = cache_with_runtime(home / "cache")
    command = [*COMMAND, home / "good.onnx", *SCALAR, "-q", "--cache", cache]
    runs = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [run.wait(1200) for run in runs] == [0, 0]
    assert right(home / "good.tracea.onnx", home / "good.onnx")
    api.session(home / "good.tracea.onnx")
    assert {p.suffix for p in home.iterdir() if p.name != "cache"} == {".onnx", ".so", ".json"}


def test_two_runs_in_one_process(home: Path) -> None:
    errors = list[BaseException]()

    def run() -> None:
        try:
            optimize(home / "good.onnx", Options(keep="all", verify=False))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert right(home / "good.tracea.onnx", home / "good.onnx")


@pytest.mark.parametrize("fault", ["of another model", "missing"])
def test_bodies_run_where_the_library_does_not_fit(home: Path, fault: str) -> None:
    """Plain ONNX Runtime with whatever library there is: the answers stay right."""
    result, other = (
        Path(optimize(model, Options(keep="all", verify=False)).output)
        for model in (home / "good.onnx", product(home / "other.onnx", 48, 16, copies=1))
    )
    library = result.with_suffix(".so")
    if fault == "missing":
        library.unlink()
        assert api.session(result) is not None
    else:
        shutil.copy(other.with_suffix(".so"), library)
        assert right(result, home / "good.onnx")
