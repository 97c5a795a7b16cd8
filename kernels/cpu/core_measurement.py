"""Measure a core: peak throughput, bandwidths, clock, and the cost of waking threads.

One small program per multiply-add instruction is compiled and run in its own process with a time
limit; a crash loses only that program's figure.  Complete results are cached per hardware,
compiler and program text.  Units: 1e9 operations/s (a multiply-add counts as two), GB/s of reads,
GHz, µs.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from tracea_graph.config import Environment
from tracea_graph.errors import BuildError
from tracea_graph.hardware import disk_cache
from tracea_graph.hardware.core_topology import read_topology
from tracea_graph.hardware.cpu import CpuProfile
from tracea_graph.hardware.machine_measurements import Bandwidth, Measurements, NamedFigure, Peak
from tracea_graph.kernels.cpu import peak_probes
from tracea_graph.kernels.cpu.core_groups import CoreGroups, find_groups
from tracea_graph.kernels.cpu.isa_levels import fingerprint, isa_of, levels_of
from tracea_graph.kernels.cpu.peak_probes import PROBES, Probe, probe_source
from tracea_graph.kernels.cpu.processor_families import nominal_ghz, pipes_of
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.toolchain.compilers import Compiler, find_compiler

__all__ = [
    "FAR_LINES",
    "GROUPS",
    "HANDOVER",
    "NEAR_LINES",
    "SECONDS",
    "assumed_figures",
    "compiler_key",
    "measure_core",
]

SECONDS = 5.0
"""Time limit in seconds of all measurements together, compiling included."""
HANDOVER = "hand-over"
"""How the names of times between two processors begin, in which one sees what the other wrote."""
GROUPS = "groups of an L3 and a memory node"
"""Name of their number, where there are several."""
_COMPILE_SHARE = 0.7
_WHOLE = "machine"
"""Name under which complete figures are cached."""
_LATE = "there was no time left; tracea doctor --refresh tries again"
_RUN_SECONDS = 2.0
_TEMPLATES = Path(peak_probes.__file__).resolve().parent
_KIB, _MIB = 1 << 10, 1 << 20
_SAID = 160
_FEW = 4
_LOADS, _OPS = 2, 2
"""Vector loads of a core in a cycle, and operations per multiply-add."""
_BYTES_PER_CYCLE = {"l2": 32.0, "l3": 16.0, "dram": 4.0}
_GHZ = 2.5
_SHARED = {
    "core": "threads of a core", "L2": "cores of an L2", "L3": "cores of an L3",
    "node": "L3s of a memory node", "machine": "memory nodes",
}  # fmt: skip
"""Words for what two processors share, by level of :meth:`ProcessorTopology.nearest`."""
_LINES = "lines"
NEAR_LINES = f"{_LINES}, {_SHARED['L3']}"
FAR_LINES = (f"{_LINES}, {_SHARED['node']}", f"{_LINES}, {_SHARED['machine']}")
"""Names of rates at which a core reads what another has written: of one group, and of two."""
_TURN_SECONDS, _MOST_CORES = 1.5, 64
"""Seconds in which hand-overs between each two of so many cores are measured, at most."""


def measure_core(
    cpu: CpuProfile,
    environment: Environment | None = None,
    *,
    refresh: bool = False,
    seconds: float = SECONDS,
    only: str = "",
) -> Measurements:
    """Return the machine's figures; measure them if the cache lacks them, or if ``refresh``.

    If ``only`` names a type, peaks of other types may be missing, to save time.  Never
    fails: figures that cannot be measured are derived from the instruction set, with a note of the
    reason.  Results without fp32 peaks and bandwidths are not cached.
    """
    environment = environment or Environment()
    folder = environment.cache / "doctor"
    key = disk_cache.cache_key(fingerprint(cpu), compiler_key(environment), _text_key())
    for name in (_WHOLE, *filter(None, (only,))):
        if not refresh and (found := _recalled(folder, name, key)) is not None:
            return found
    fresh = _measure(cpu, environment, seconds, only)
    if fresh.measured:
        disk_cache.store_cached(folder, only or _WHOLE, key, asdict(fresh))
    return fresh


def assumed_figures(cpu: CpuProfile, cpuinfo: Path = Path("/proc/cpuinfo")) -> Measurements:
    """Return figures of a core from the processor's family and instruction sets, unmeasured.

    Peaks are computed from the core's multiply-add units (two if the family is unknown) and its
    clock, which is read from ``cpuinfo``; if it is not there, it is the family's nominal clock, or
    2.5 GHz.  Bandwidths are 32, 16 and 4 bytes per cycle from L2, L3 and DRAM.
    """
    ghz = _told_ghz(cpuinfo) or nominal_ghz(cpu) or _GHZ
    lanes = {name: isa_of(name).width for name in levels_of(cpu)}
    peaks = tuple(
        Peak("f32", name, pipes_of(cpu, width) * _OPS * width * ghz)
        for name, width in lanes.items()
    )
    levels = {level: per_cycle * ghz for level, per_cycle in _BYTES_PER_CYCLE.items()}
    l1 = _LOADS * 4.0 * max(lanes.values()) * ghz
    bandwidth = Bandwidth(l1=l1, dram_all=levels["dram"], **levels)
    return Measurements(peaks, bandwidth, ghz, measured=False)


def compiler_key(environment: Environment) -> list[Any]:
    """Return a cache key that changes if another compiler would be used; runs no compiler."""
    words = _words(environment.compiler or "")
    zig = importlib.util.find_spec("ziglang")
    places = [shutil.which(name) for name in (*words[:1], "g++", "clang++")]
    return [
        words,
        *map(disk_cache.file_version, places),
        disk_cache.file_version(zig.origin if zig else None),
    ]


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return [command]


def _recalled(folder: Path, name: str, key: str) -> Measurements | None:
    data = disk_cache.load_cached(folder, name, key)
    try:
        return Measurements.from_json(data) if data is not None else None
    except (KeyError, TypeError, ValueError):
        return None  # a damaged cache file: measure again


def _text_key() -> list[str]:
    return [
        (_TEMPLATES / name).read_text(encoding="utf-8") for name in peak_probes.template_names()
    ]


def _told_ghz(cpuinfo: Path) -> float:
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    told = [line.partition(":")[2].strip() for line in lines if line.startswith("cpu MHz")]
    mhz = max((float(t) for t in told if t.replace(".", "", 1).isdigit()), default=0.0)
    return mhz / 1000.0


# ---- measuring -------------------------------------------------------------------------


def _measure(cpu: CpuProfile, environment: Environment, seconds: float, only: str) -> Measurements:
    """Measure everything, or the peaks of one type.

    Figures of programs that cannot be built or run are derived.
    """
    start = time.monotonic()
    end = start + seconds
    try:
        compiler = find_compiler(environment, seconds)
    except (BuildError, ValueError) as error:
        return replace(assumed_figures(cpu), notes=(f"nothing was measured: {error}",))
    with ScratchFolder("doctor") as name:
        probes = [p for p in PROBES if _runs(p, cpu) and only in ("", p.dtype)]
        notes = _compile(
            compiler, probes, Path(name), start + seconds * _COMPILE_SHARE, cpu.threads
        )
        peaks, more = _peaks([p for p in probes if p not in notes], Path(name), end)
        notes |= more
        top = next(p for p in reversed(probes) if not p.feature)
        memory = dict[str, float]()
        why = notes.get(top, "")  # its program also measures memory and pairs of processors
        further: tuple[NamedFigure, ...] = ()
        cores: CoreGroups | None = None
        if not why:
            memory, why = _figures(Path(name), top, _memory_arguments(cpu), end)
            further = _between(Path(name), top, end)
            cores = _core_groups(Path(name), top, end)
    texts = tuple(f"{p.dtype} with {p.name} was not measured: {w}" for p, w in notes.items())
    if why:
        texts += (f"memory was not measured: {why}",)
        return replace(assumed_figures(cpu), compiler=_first_line(compiler), notes=texts)
    known = {f.name for f in fields(Bandwidth)}
    return Measurements(
        peaks,
        Bandwidth(**{k: v for k, v in memory.items() if k in known}),
        memory["ghz"],
        memory.get("wake_sleeping", 0.0),
        memory.get("wake_spinning", 0.0),
        _first_line(compiler),
        round(time.monotonic() - start, 2),
        notes=texts,
        further=(*further, *_of_groups(cores)),
        core_groups=str(cores or ""),
    )


def _between(folder: Path, probe: Probe, end: float) -> tuple[NamedFigure, ...]:
    """Times to hand over a cache line and to wake a thread, and rates of reading what another core
    has written, by what two processors share.
    """
    topology = read_topology()
    pairs = topology.pairs()
    if not pairs:
        return ()
    names = [_SHARED[level] for level in pairs]
    processors = (str(processor) for pair in pairs.values() for processor in pair)
    figures, _ = _figures(folder, probe, ("pairs", *processors), end)
    kinds = {
        "handover": (HANDOVER, "µs"), "wake": ("wake-up", "µs"), "lines": (_LINES, "GB/s"),
    }  # fmt: skip
    found = tuple(
        NamedFigure(f"{what}, {name}", figures[key], unit)
        for word, (what, unit) in kinds.items()
        for index, name in enumerate(names)
        if (key := f"{word}_{index}") in figures
    )
    groups = topology.groups
    return (*found, NamedFigure(GROUPS, float(groups), "")) if groups > 1 else found


def _core_groups(folder: Path, probe: Probe, end: float) -> CoreGroups | None:
    """Groups of cores by the hand-over between each two; of many cores some, evenly spread."""
    cores = [min(core) for core in read_topology().levels["core"]]
    count = min(len(cores), _MOST_CORES)
    cores = [cores[i * len(cores) // count] for i in range(count)]
    limit = min(_TURN_SECONDS, 0.8 * (end - time.monotonic()))
    if count < 2 or limit <= 0:
        return None
    figures, _ = _figures(folder, probe, ("turns", f"{limit:.3f}", *map(str, cores)), end)
    pairs = ((name.split("_")[1:], us) for name, us in figures.items())
    us = {(int(a), int(b)): value for (a, b), value in pairs}
    return find_groups(us) if us else None


def _of_groups(cores: CoreGroups | None) -> tuple[NamedFigure, ...]:
    if cores is None:
        return ()
    names = ("core to core, nearest tenth of the pairs", "core to core, farthest tenth")
    if len(cores.groups) > 1:
        names = (f"{HANDOVER}, measured groups of cores", f"{HANDOVER}, between these groups")
    found = tuple(
        NamedFigure(name, round(us, 4), "µs")
        for name, us in zip(names, (cores.near_us, cores.far_us), strict=True)
    )
    if not cores.one_core:
        return found
    words = " ".join(f"{a}-{b}" for a, b in cores.one_core[:_FEW])
    name = f"pairs that seem to share a core now: {words}"
    return (*found, NamedFigure(name, float(len(cores.one_core)), ""))


def _runs(probe: Probe, cpu: CpuProfile) -> bool:
    return probe.isa in levels_of(cpu) and (not probe.feature or probe.feature in cpu.flags)


def _compile(
    compiler: Compiler, probes: Sequence[Probe], folder: Path, end: float, threads: int
) -> dict[Probe, str]:
    """Build the programs in parallel; return the reasons of those that failed."""
    with ThreadPoolExecutor(threads) as pool:
        whys = pool.map(partial(_build, compiler, folder, end), probes)
        return {p: why for p, why in zip(probes, whys, strict=True) if why}


def _build(compiler: Compiler, folder: Path, end: float, probe: Probe) -> str:
    source = probe_source(probe)
    (folder / f"{source.symbol}.cpp").write_text(source.text, encoding="utf-8")
    files = (f"-I{_TEMPLATES}", f"{source.symbol}.cpp", "-o", source.symbol, "-pthread")
    try:
        compiler.run((*source.flags, *files), folder, max(0.1, end - time.monotonic()))
    except BuildError as error:
        return _LATE if time.monotonic() >= end else str(error)
    return ""


def _peaks(
    probes: Iterable[Probe], folder: Path, end: float
) -> tuple[tuple[Peak, ...], dict[Probe, str]]:
    peaks, notes = [], {}
    for p in probes:
        figures, why = _figures(folder, p, ("peak",), end)
        if why:
            notes[p] = why
        else:
            peaks.append(Peak(p.dtype, p.name, figures["gops"]))
    return tuple(peaks), notes


def _figures(
    folder: Path, probe: Probe, arguments: Sequence[str], end: float
) -> tuple[dict[str, float], str]:
    """The figures that a program prints, or the reason why there are none."""
    limit = min(_RUN_SECONDS, end - time.monotonic())
    command = [str(folder / f"probe_{probe.dtype}_{probe.name}"), *arguments]
    if limit <= 0:
        return {}, _LATE
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=True
        )
        return _parse(done.stdout.decode()), ""
    except subprocess.TimeoutExpired:
        return {}, f"it took over {limit:.0f} s" if limit == _RUN_SECONDS else _LATE
    except subprocess.CalledProcessError as error:
        return {}, f"it ended with code {error.returncode}"
    except (OSError, ValueError) as error:
        return {}, str(error)[:_SAID]


def _parse(text: str) -> dict[str, float]:
    """Parse ``name value`` lines.  Raises ValueError for other text and figures not above 0."""
    figures = {name: float(value) for name, value in (line.split() for line in text.splitlines())}
    if not figures or min(figures.values()) <= 0:
        raise ValueError("it gave no usable figures")
    return figures


def _memory_arguments(cpu: CpuProfile) -> tuple[str, ...]:
    """The arguments for measuring memory: bytes to read per level, and the thread count.

    Half of each cache, and several times the last one for DRAM; 0 skips a level.
    """
    l3 = min(cpu.l3 // 2, 16 * _MIB) if cpu.l3 > 2 * cpu.l2 else 0
    dram = max(64 * _MIB, min(4 * cpu.l3, 512 * _MIB))
    fits = dram <= _free_bytes() // 4
    sizes = (cpu.l1d // 2 or 16 * _KIB, cpu.l2 // 2, l3, dram if fits else 0)
    return ("memory", *map(str, sizes), str(cpu.threads))


def _free_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes of available memory, page cache included; 0 if unknown."""
    try:
        found = re.search(
            r"^MemAvailable: +(\d+) kB$", meminfo.read_text(encoding="utf-8"), re.MULTILINE
        )
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


def _first_line(compiler: Compiler) -> str:
    text = compiler.identity.splitlines()
    return f"zig c++ ({text[0]})" if compiler.family == "zig" and text else "".join(text[:1])
