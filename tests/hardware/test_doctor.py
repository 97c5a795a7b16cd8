"""Measuring this machine, keeping what was measured, and saying what is wrong with it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.processors import flags_of
from tracea_graph import health_check as doctor_module
from tracea_graph.config import Environment
from tracea_graph.hardware import CpuProfile, Measurements, profile_cpu
from tracea_graph.hardware.core_topology import read_topology
from tracea_graph.hardware.machine_measurements import Bandwidth, Peak
from tracea_graph.health_check import Doctor
from tracea_graph.kernels.cpu import core_measurement as measuring
from tracea_graph.kernels.cpu import peak_probes as probes
from tracea_graph.kernels.cpu.core_measurement import assumed_figures, measure_core
from tracea_graph.kernels.cpu.emitter import CompilationUnit
from tracea_graph.kernels.cpu.isa_levels import families_with_level, family_of, levels_of
from tracea_graph.kernels.cpu.peak_probes import PROBES, Probe, probe_source
from tracea_graph.toolchain import find_compiler
from tracea_graph.toolchain.object_cache import write_atomically
from tracea_graph.views.doctor import render_health

HERE = profile_cpu()
FIGURES = Measurements(
    (Peak("f32", "scalar", 4.0), Peak("f32", "avx2", 64.0)),
    Bandwidth(200.0, 100.0, 50.0, 20.0, 30.0),
    ghz=4.0,
    compiler="a compiler",
)
PLAIN = CpuProfile("Test CPU", frozenset(), 1, 1, 32 << 10, 256 << 10, 0)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that knows this machine, however long that takes."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "_RUN_SECONDS", 120.0)
        patch.setattr(measuring, "_free_bytes", lambda: 1 << 40)
        measure_core(HERE, Environment(cache=folder), seconds=600.0)
    return folder


def text_of(what: object) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


# ---- this machine ----------------------------------------------------------------------


def test_this_machine_is_measured(cache: Path) -> None:
    found = measure_core(HERE, Environment(cache=cache))
    assert found.measured and found.compiler and not found.notes
    assert {(p.dtype, p.level) for p in found.peaks} >= {("f32", isa) for isa in levels_of(HERE)}
    assert all(p.gops > 0 for p in found.peaks) and found.ghz > 0
    band = found.bandwidth
    assert min(band.l1, band.l2, band.dram, band.l3 or band.dram) > 0
    assert found != assumed_figures(HERE)


def test_a_hit_is_equal_and_runs_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment(cache=cache)
    first = measure_core(HERE, environment)

    def never(*args: object, **options: object) -> None:
        raise AssertionError("what is known is not measured, and no compiler is asked")

    for module, name in ((measuring, "_measure"), (subprocess, "run"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, never)
    assert measure_core(HERE, environment) == first


def test_all_of_it_as_table_and_json(cache: Path) -> None:
    health = Doctor(Environment(cache=cache)).health()
    data = json.loads(health.to_json())
    host, other = data["backends"]
    levels = dict.fromkeys((*levels_of(HERE), *levels_of(HERE, "int8")))
    if "avx512vnni" in levels:  # which a library has in its place (Zen 5 has both)
        levels.pop("avxvnni", None)
    assert (host["name"], host["levels"]) == ("cpu", list(levels))
    assert host["figures"]["bandwidth"]["dram"] > 0 and not host["problem"]
    assert other["name"] == "cuda" and other["levels"] and other["figures"] is None
    assert health.runtime.version and "CPUExecutionProvider" in health.runtime.providers
    shown = text_of(render_health(health))
    assert HERE.model in shown and "GB/s" in shown and health.runtime.version in shown
    assert all(backend.problem in shown.replace("\n", " ") for backend in health.backends)


OTHERS = [
    probe
    for probe in PROBES
    if not measuring._runs(probe, HERE) and family_of(HERE) in families_with_level(probe.isa)
]
"""Probes for processors of this family that have more than this one."""


@pytest.mark.compiler
@pytest.mark.parametrize("probe", OTHERS, ids=str)
def test_programs_for_other_machines_compile(probe: Probe, tmp_path: Path) -> None:
    source = probe_source(probe)
    (tmp_path / "p.cpp").write_text(source.text)
    headers = Path(probes.__file__).resolve().parent
    flags = (*source.flags, "-Wall", "-Wextra", "-Werror", f"-I{headers}")
    find_compiler().run((*flags, "-fsyntax-only", "p.cpp"), tmp_path)


@pytest.mark.compiler
def test_hand_over_and_wake_up_of_every_kind_of_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_RUN_SECONDS", 60.0)  # others may use the processors
    probe = next(p for p in PROBES if measuring._runs(p, HERE) and not p.feature)
    assert not measuring._build(find_compiler(), tmp_path, time.monotonic() + 60, probe)
    found = measuring._between(tmp_path, probe, time.monotonic() + 60)
    kinds = [measuring._SHARED[level] for level in read_topology().pairs()]
    whats = ("hand-over", "wake-up", "lines")
    assert [figure.name for figure in found] == [f"{w}, {kind}" for w in whats for kind in kinds]
    assert all(figure.value > 0 for figure in found)
    units = {figure.name.partition(",")[0]: figure.unit for figure in found}
    assert units == ({"hand-over": "µs", "wake-up": "µs", "lines": "GB/s"} if kinds else {})


@pytest.mark.compiler
def test_hand_over_between_each_two_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_RUN_SECONDS", 60.0)
    monkeypatch.setattr(measuring, "_TURN_SECONDS", 20.0)
    probe = next(p for p in PROBES if measuring._runs(p, HERE) and not p.feature)
    assert not measuring._build(find_compiler(), tmp_path, time.monotonic() + 60, probe)
    found = measuring._core_groups(tmp_path, probe, time.monotonic() + 60)
    cores = {min(core) for core in read_topology().levels["core"]}
    assert (found is None) == (len(cores) < 2)
    if found is not None:
        assert {p for group in found.groups for p in group} == cores
        assert 0 < found.near_us <= found.far_us


# ---- what is kept ----------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Measuring costs nothing, and each time adds an entry."""
    calls: list[int] = []

    def fake(cpu: CpuProfile, environment: Environment, seconds: float, only: str) -> Measurements:
        calls.append(1)
        return FIGURES

    monkeypatch.setattr(measuring, "_measure", fake)
    return calls


def kept(folder: Path) -> Path:
    (file,) = (folder / "doctor").iterdir()
    return file


def test_equal_machines_are_measured_once(counted: list[int], tmp_path: Path) -> None:
    environment = Environment(cache=tmp_path)
    assert measure_core(PLAIN, environment) == measure_core(PLAIN, environment) == FIGURES
    assert len(counted) == 1
    measure_core(PLAIN, environment, refresh=True)
    measure_core(replace(PLAIN, l2=1), environment)
    assert len(counted) == 3


def test_planning_measures_one_type_unless_all_are_known(
    counted: list[int], tmp_path: Path
) -> None:
    environment = Environment(cache=tmp_path)
    for _ in range(2):
        measure_core(PLAIN, environment, only="f32")
    assert len(counted) == 1
    for _ in range(2):
        measure_core(PLAIN, environment)
    measure_core(replace(PLAIN), environment, only="f32")
    assert len(counted) == 2


@pytest.mark.parametrize("name", ["micro/probe.cpp.in", "micro/vec_scalar.h"])
def test_another_program_text_is_another_key(
    name: str, counted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment(cache=tmp_path / "cache")
    measure_core(PLAIN, environment)
    (tmp_path / "micro").mkdir()
    for file in probes.template_names():
        (tmp_path / file).write_text((measuring._TEMPLATES / file).read_text())
    (tmp_path / name).write_text("// changed")
    monkeypatch.setattr(measuring, "_TEMPLATES", tmp_path)
    measure_core(PLAIN, environment)
    assert len(counted) == 2


def test_another_compiler_is_another_key(counted: list[int], tmp_path: Path) -> None:
    compiler = tmp_path / "cxx"
    write_atomically(compiler, b"1", mode=0o755)
    environment = Environment(cache=tmp_path / "cache", compiler=str(compiler))
    measure_core(PLAIN, environment)
    write_atomically(compiler, b"22", mode=0o755)
    measure_core(PLAIN, environment)
    assert len(counted) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[1, 2]",
        lambda text: text.replace('"key": "', '"key": "0'),
        lambda text: text.replace('"ghz"', '"mhz"'),
        lambda text: text.replace("64.0", "-64.0"),
        lambda text: text.replace("64.0", '"fast"'),
    ],
)
def test_a_spoilt_file_is_measured_anew(
    spoil: Callable[[str], str], counted: list[int], tmp_path: Path
) -> None:
    environment = Environment(cache=tmp_path)
    measure_core(PLAIN, environment)
    file = kept(tmp_path)
    before = file.read_text()
    file.write_text(spoil(before))
    assert measure_core(PLAIN, environment) == FIGURES
    assert len(counted) == 2
    assert kept(tmp_path).read_text() == before


def test_a_cache_that_cannot_be_written_is_no_error(counted: list[int], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert measure_core(PLAIN, Environment(cache=tmp_path / "file")) == FIGURES


# ---- what goes wrong -------------------------------------------------------------------


def test_without_a_compiler_figures_are_derived_and_not_kept(tmp_path: Path) -> None:
    found = measure_core(HERE, Environment(cache=tmp_path, compiler="/nonexistent/cxx"))
    assert not found.measured
    assert "nothing was measured" in found.notes[0]
    assert {p.level for p in found.peaks} == set(levels_of(HERE))
    assert not (tmp_path / "doctor").exists()


def test_memory_that_files_occupy_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemFree:  12 kB\nMemAvailable:    3000 kB\nCached: 1 kB\n")
    assert measuring._free_bytes(tmp_path / "meminfo") == 3000 << 10
    assert measuring._free_bytes(tmp_path / "none") == 0 < measuring._free_bytes()


def test_derived_figures_follow_lanes_and_clock(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("cpu MHz\t: 2000.0\ncpu MHz\t: 3000.0\n")
    cpu = replace(PLAIN, flags=flags_of("avx512"))
    found = assumed_figures(cpu, tmp_path / "cpuinfo")
    assert [p.gops for p in found.peaks] == [12.0, 96.0, 192.0]  # 2 units · 2 · lanes · 3 GHz
    assert found.bandwidth.l2 == 96.0
    assert assumed_figures(cpu, tmp_path / "none").ghz == 2.5


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], CpuProfile]:
    """A processor with one more instruction, whose program has the given ``main``."""

    def make(body: str) -> CpuProfile:
        def source(probe: Probe) -> CompilationUnit:
            if not probe.feature:
                return probe_source(probe)
            return CompilationUnit("probe_i8_extra", f"int main() {{ {body} }}", ())

        extra = Probe("i8", "scalar", "extra")
        monkeypatch.setattr(measuring, "PROBES", (PROBES[0], extra))
        monkeypatch.setattr(measuring, "probe_source", source)
        return replace(PLAIN, flags=frozenset({"extra"}))

    return make


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the broken program is given little time; the others may meet a busy machine."""
    figures = measuring._figures

    def limited(folder: Path, probe: Probe, *more: Any) -> Any:
        monkeypatch.setattr(measuring, "_RUN_SECONDS", 1.0 if probe.feature else 120.0)
        return figures(folder, probe, *more)

    monkeypatch.setattr(measuring, "_figures", limited)


@pytest.mark.compiler
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("__builtin_trap();", "ended with code -"),
        ("for (volatile int i = 0;;) i = 1;", "took over"),
        ("return 2;", "ended with code 2"),
        ("return 0;", "no usable figures"),
        ("syntax error", "failed with exit code"),
    ],
)
def test_a_bad_program_loses_its_own_figure_only(
    body: str, why: str, broken: Callable[[str], CpuProfile], tmp_path: Path
) -> None:
    found = measure_core(broken(body), Environment(cache=tmp_path), seconds=600.0)
    assert found.measured and [p.level for p in found.peaks] == ["scalar"]
    assert len(found.notes) == 1 and why in found.notes[0]


@pytest.mark.compiler
def test_no_time_means_derived_figures(tmp_path: Path) -> None:
    found = measure_core(PLAIN, Environment(cache=tmp_path), seconds=0.0)
    assert not found.measured and found.notes
    assert not (tmp_path / "doctor").exists()


@pytest.mark.compiler
def test_what_ran_out_of_time_says_how_to_try_again(
    broken: Callable[[str], CpuProfile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, named = broken("for (volatile int i = 0;;) i = 1;"), find_compiler()
    monkeypatch.setattr(measuring, "find_compiler", lambda environment, seconds: named)
    found = measure_core(cpu, Environment(cache=tmp_path), seconds=2.0)
    assert found.notes[0].endswith("tracea doctor --refresh tries again")


def test_two_onnx_runtimes_are_found_and_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.30.0"}
    monkeypatch.setattr(doctor_module, "_installed", lambda: both)
    monkeypatch.setattr(doctor_module, "_ask_runtime", lambda: ["1.31.1", []])
    runtime = Doctor(Environment(cache=tmp_path)).runtime
    assert "onnxruntime and onnxruntime-gpu are installed together" in runtime.warning
    assert "pip uninstall -y onnxruntime onnxruntime-gpu && " in runtime.repair
    assert runtime.repair.endswith("pip install onnxruntime-gpu==1.30.0")


def test_an_onnx_runtime_that_fails_is_told_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **options: object) -> None:
        raise subprocess.CalledProcessError(1, "python")

    monkeypatch.setattr(subprocess, "run", fails)
    assert Doctor(Environment(cache=tmp_path)).runtime.version == ""
    assert not (tmp_path / "doctor").exists()


def test_figures_survive_json() -> None:
    assert Measurements.from_json(json.loads(json.dumps(asdict(FIGURES)))) == FIGURES
