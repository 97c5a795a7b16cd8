"""Measure a GPU by short kernels: rates of instructions, bandwidths, and the cost of a launch.

Kernels are compiled by NVRTC and run in a process of their own with a time limit.  Complete
results are cached per device, compiler and text of the kernels.  Figures that cannot be measured
are replaced by those of a typical device of the architecture.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tracea_graph.config import Environment
from tracea_graph.errors import BuildError
from tracea_graph.hardware import Measurements, disk_cache
from tracea_graph.hardware.gpu import Gpu
from tracea_graph.hardware.machine_measurements import Bandwidth, NamedFigure, Peak
from tracea_graph.kernels.gpu import device_main
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES, Architecture
from tracea_graph.kernels.gpu.gpu_probes import GpuProbe, probe_source, probes
from tracea_graph.kernels.gpu.nvrtc import compile_sources, find_nvrtc
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.toolchain.compilers import run_command

__all__ = [
    "EARLY", "HOST_NODE", "PLAIN", "SMS", "figures_for", "measure_gpu", "nominal", "peak_level",
]  # fmt: skip

EARLY = "kernel after kernel in a graph, started early"
PLAIN = "kernel after kernel in a graph"
HOST_NODE = "graph of a kernel and copies both ways, waited for"
SMS = "multiprocessors"
"""Names of the figures that the cost model reads."""
_COMPILE_SECONDS, _RUN_SECONDS = 60.0, 30.0
_NODE, _STEP, _EARLY_STEP = 25.0, 1.1, 0.8
"""Launch costs of a typical device in µs."""


@dataclass(frozen=True)
class Nominal:
    """Data-sheet figures of a typical device of an architecture.

    * ``sms``: number of SMs; ``ghz``: clock
    * ``narrow``: dense 16-bit operations of tensor cores per SM and cycle
    * ``wide``: float32 operations outside of tensor cores per SM and cycle
    * ``l2``: bytes of L2; ``l2_gbytes``: GB/s that L2 reaches in practice
    * ``gbytes``: GB/s of memory
    """

    sms: int
    ghz: float
    narrow: int
    wide: int
    l2: int
    l2_gbytes: float
    gbytes: float


NOMINAL: Mapping[str, Nominal] = MappingProxyType(
    {
        "sm_75": Nominal(40, 1.59, 1024, 128, 4 << 20, 1000, 320),
        "sm_80": Nominal(108, 1.41, 2048, 128, 40 << 20, 4000, 1555),
        "sm_86": Nominal(82, 1.70, 512, 256, 6 << 20, 2000, 936),
        "sm_89": Nominal(128, 2.52, 512, 256, 72 << 20, 4000, 1008),
        "sm_90a": Nominal(132, 1.76, 4096, 256, 50 << 20, 5500, 3350),
        "sm_100": Nominal(148, 1.85, 8192, 256, 126 << 20, 10000, 8000),
        "sm_120": Nominal(170, 2.41, 1024, 256, 96 << 20, 6000, 1792),
    }
)
"""T4, A100, RTX 3090, RTX 4090, H100 SXM, B200, RTX 5090."""
_MMA_SHARE = 0.62
"""Share of the peak that ``mma.sync`` reaches where ``wgmma`` or ``tcgen05`` exist."""


def peak_level(architecture: str, instruction: str) -> str:
    """Return the level name of a peak rate, from an architecture and an instruction."""
    return f"{architecture} {instruction}"


def nominal(name: str) -> Measurements:
    """Return the figures of a typical device of an architecture, without measuring."""
    device, architecture = NOMINAL[name], ARCHITECTURES[name]
    rate = device.sms * device.ghz
    newer = architecture.capability in (90, 100)
    narrow = rate * device.narrow * (_MMA_SHARE if newer else 1.0)
    peaks = {("f32", "fma"): rate * device.wide, ("f16", "mma"): narrow}
    if architecture.has("bf16"):
        peaks |= {("bf16", "mma"): narrow, ("tf32", "mma"): narrow / 2, ("i8", "mma"): narrow * 2}
    if architecture.has("wgmma"):
        shares = {"f16": 1.0, "bf16": 1.0, "tf32": 0.5, "f8": 2.0, "i8": 2.0}
        peaks |= {(dtype, "wgmma"): rate * device.narrow * s for dtype, s in shares.items()}
    step = NamedFigure(EARLY, _EARLY_STEP, "µs") if architecture.has("dependents") else None
    return Measurements(
        tuple(Peak(d, peak_level(name, how), gops) for (d, how), gops in peaks.items()),
        Bandwidth(l2=device.l2_gbytes, dram=device.gbytes),
        device.ghz, measured=False, device=f"a typical GPU of {name}",
        further=(NamedFigure(SMS, device.sms, ""), NamedFigure(PLAIN, _STEP, "µs"),
                 *((step,) if step else ()), NamedFigure(HOST_NODE, _NODE, "µs")),
    )  # fmt: skip


def figures_for(name: str, figures: Measurements | None) -> Measurements:
    """Return ``figures`` if they belong to the architecture, else those of a typical device."""
    own = figures is not None and any(p.level.startswith(f"{name} ") for p in figures.peaks)
    return figures if figures is not None and own else nominal(name)


def measure_gpu(
    gpu: Gpu, level: str, environment: Environment, *, refresh: bool = False
) -> Measurements:
    """Return a GPU's figures: cached, or measured if not in the cache or if ``refresh`` is set.

    Never fails: if nothing can be measured, the figures are those of a typical device, and a note
    gives the reason.
    """
    architecture = ARCHITECTURES[level]
    folder, found = environment.cache / "doctor", probes(architecture)
    try:
        nvrtc = asdict(find_nvrtc())
    except BuildError as error:
        return replace(nominal(level), notes=(f"nothing was measured: {error}",))
    texts = [probe_source(probe, architecture).text for probe in found]
    worker = Path(device_main.__file__).read_text(encoding="utf-8")
    key = disk_cache.cache_key(asdict(gpu), nvrtc, texts, worker)
    try:
        if not refresh and (known := disk_cache.load_cached(folder, "gpu", key)) is not None:
            return Measurements.from_json(known)
    except (KeyError, TypeError, ValueError):
        pass  # a damaged cache file: measure again
    start = time.monotonic()
    try:
        fresh = _measured(found, architecture, environment)
    except (BuildError, ValueError) as error:
        return replace(nominal(level), notes=(f"nothing was measured: {error}",))
    made = replace(fresh, device=gpu.name, compiler=f"NVRTC {nvrtc['cuda'][0]}.{nvrtc['cuda'][1]}",
                   seconds=round(time.monotonic() - start, 2))  # fmt: skip
    if not made.notes:
        disk_cache.store_cached(folder, "gpu", key, asdict(made))
    return made


def _measured(
    found: tuple[GpuProbe, ...], architecture: Architecture, environment: Environment
) -> Measurements:
    """Compile and run probes.  Raises BuildError if that fails, ValueError for invalid answers."""
    sources = [probe_source(probe, architecture) for probe in found]
    built = compile_sources(sources, [architecture.name], environment, _COMPILE_SECONDS)
    jobs = []
    with ScratchFolder("probes") as name:
        folder = Path(name)
        for i, (probe, one) in enumerate(zip(found, built, strict=True)):
            (folder / f"{i}.cubin").write_bytes(one.data)
            jobs.append({"kind": probe.kind, "symbol": one.source.symbol, "file": f"{i}.cubin",
                         "work": probe.work, "threads": probe.threads, "blocks": probe.blocks,
                         "shared": probe.shared})  # fmt: skip
        (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
        command = (sys.executable, "-P", device_main.__file__, str(folder))
        answer = json.loads(run_command(command, folder, _RUN_SECONDS))
    symbols = {one.source.symbol: probe for one, probe in zip(built, found, strict=True)}
    return _read(answer, symbols, architecture.name)


def _read(answer: Mapping[str, Any], probes: Mapping[str, GpuProbe], level: str) -> Measurements:
    """Parse a worker's answer.  Raises ValueError unless memory and arithmetic were measured."""
    rates = {name: float(value) for name, value in answer["rates"].items()}
    peaks = tuple(
        Peak(probe.dtype, peak_level(level, probe.name), rates[symbol])
        for symbol, probe in probes.items()
        if probe.dtype and symbol in rates
    )
    notes = tuple(map(str, answer["notes"]))
    if not peaks or not {"l2", "dram"} <= set(rates):
        raise ValueError("; ".join(notes) or "the GPU has too little free memory")
    shared = (rates[s] for s, p in probes.items() if p.name == "shared" and s in rates)
    further = (
        *(NamedFigure("read shared memory", gbytes, "GB/s") for gbytes in shared),
        *(NamedFigure(str(name), float(v), str(unit)) for name, v, unit in answer["figures"]),
    )
    return Measurements(
        peaks, Bandwidth(l2=rates["l2"], dram=rates["dram"]), float(answer["ghz"]),
        notes=notes, further=further,
    )  # fmt: skip
