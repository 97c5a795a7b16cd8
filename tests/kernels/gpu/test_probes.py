"""Measuring a GPU: probes compile everywhere, and figures follow from times of a stand-in driver.

``make test-gpu`` measures a real one.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tracea_graph.config import Environment
from tracea_graph.errors import BuildError
from tracea_graph.hardware import Measurements, disk_cache
from tracea_graph.hardware.gpu import Gpu
from tracea_graph.kernels.gpu import backend, device_main, machine_model
from tracea_graph.kernels.gpu import gpu_measurement as measuring
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.kernels.gpu.gpu_measurement import (
    EARLY,
    HOST_NODE,
    PLAIN,
    SMS,
    measure_gpu,
    nominal,
)
from tracea_graph.kernels.gpu.gpu_probes import GpuProbe, probe_source, probes
from tracea_graph.kernels.gpu.machine_model import GpuDiagnostics, machine_of, measured_machine
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.policy import PolicyEngine
from tracea_graph.views.doctor import _figures as figures_table

H100 = Gpu("NVIDIA", "NVIDIA H100", "9.0", 132, 227 << 10, 50 << 20, 80 << 30, "580 (CUDA 13.0)",
           ("f16", "bf16"))  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_probes_compile_and_spill_nothing(name: str) -> None:
    """A probe that keeps its sums in memory would measure the memory."""
    found = [probe_source(p, ARCHITECTURES[name]) for p in probes(ARCHITECTURES[name])]
    assert len({s.symbol for s in found}) == len(found)
    for built in compile_sources(found, [name]):
        assert built.refused is None, built.refused


# ---- a driver whose times are told ----------------------------------------------------------

SMS_THERE, GHZ = 100, 2.0
SECONDS_OF = {"multiply": 1e-6, "wgmma": 2e-6, "read": 4e-6, "step": 1e-6}
"""Seconds that a kernel of a kind takes a round, or whole."""


class TimedDriver:
    """What the worker asks of ``cuda.bindings.driver``: kernels take the seconds of their kind."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=SimpleNamespace(name="CUDA_SUCCESS"))
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=SMS_THERE,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=32 << 20,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=9,
    )
    CUlaunchConfig = SimpleNamespace
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUtensorMapDataType = SimpleNamespace(CU_TENSOR_MAP_DATA_TYPE_FLOAT16=6)
    CUtensorMapInterleave = SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE=0)
    CUtensorMapSwizzle = SimpleNamespace(CU_TENSOR_MAP_SWIZZLE_128B=3)
    CUtensorMapL2promotion = SimpleNamespace(CU_TENSOR_MAP_L2_PROMOTION_L2_256B=3)
    CUtensorMapFloatOOBfill = SimpleNamespace(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE=0)
    cuuint32_t = cuuint64_t = int

    def __init__(self, broken: str = "") -> None:
        self.broken, self.now, self.graph = broken, 0.0, list[float]()
        self.capturing = False
        self.seconds_of = dict[str, float]()

    def CUlaunchAttribute(self) -> Any:
        return SimpleNamespace(value=SimpleNamespace())

    def _spend(self, seconds: float) -> None:
        if self.capturing:
            self.graph.append(seconds)
        else:
            self.now += seconds

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> tuple[Any, ...]:
            return self._answer(name, arguments)

        return answer

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        good = self.CUresult.CUDA_SUCCESS
        if name == self.broken:
            return (SimpleNamespace(name="CUDA_ERROR_UNKNOWN"),)
        values: tuple[Any, ...] = {
            "cuDeviceGetAttribute": lambda: arguments[:1],
            "cuMemGetInfo": lambda: (64 << 30, 80 << 30),
            "cuModuleGetFunction": lambda: (arguments[1].decode(),),
            **dict.fromkeys(("cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col"),
                            lambda: (SimpleNamespace(opaque=range(16)),)),
            "cuMemAlloc": lambda: (4096,), "cuMemHostAlloc": lambda: (8192,),
        }.get(name, lambda: (0,))()  # fmt: skip
        if name == "cuLaunchKernelEx":
            self._spend(self._seconds(arguments[1], arguments[2]))
        elif name.endswith("Async"):
            self._spend(arguments[2] / 10e9)
        elif name == "cuStreamBeginCapture":
            self.capturing, self.graph = True, []
        elif name == "cuStreamEndCapture":
            self.capturing, values = False, (tuple(self.graph),)
        elif name == "cuGraphInstantiate":
            values = arguments[:1]
        elif name == "cuGraphLaunch":
            self.now += sum(arguments[0])
        elif name == "cuEventRecord":
            arguments[0].at = self.now
        elif name == "cuEventCreate":
            values = (SimpleNamespace(at=0.0),)
        elif name == "cuEventElapsedTime":
            values = (1e3 * (arguments[1].at - arguments[0].at),)
        elif name == "cuMemcpyDtoH":
            held = (ctypes.c_uint64 * 2).from_address(arguments[0])
            held[0], held[1] = int(GHZ * 1000), 1000
        return (good, *values)

    def _seconds(self, symbol: str, parameters: int) -> float:
        if "probe" not in symbol:
            return self.seconds_of.get(symbol, 1e-6)
        kind = "wgmma" if "wgmma" in symbol else "step" if "step" in symbol else "multiply"
        kind = "read" if "shared" in symbol or "memory" in symbol else kind
        places = (ctypes.c_void_p * 2).from_address(parameters)
        rounds = ctypes.c_int.from_address(places[1]).value if kind != "step" else 1
        return SECONDS_OF[kind] * rounds


def jobs_in(folder: Path, found: tuple[GpuProbe, ...]) -> dict[str, GpuProbe]:
    """Write a worker's jobs; return the probes by symbol."""
    sources = [probe_source(p, ARCHITECTURES["sm_90a"]) for p in found]
    rows = []
    for i, (probe, source) in enumerate(zip(found, sources, strict=True)):
        (folder / f"{i}.cubin").write_bytes(b"")
        rows.append({"kind": probe.kind, "symbol": source.symbol, "file": f"{i}.cubin",
                     "work": probe.work, "threads": probe.threads, "blocks": probe.blocks,
                     "shared": probe.shared})  # fmt: skip
    (folder / "jobs.json").write_text(json.dumps(rows))
    return {s.symbol: p for s, p in zip(sources, found, strict=True)}


@pytest.fixture
def answered(tmp_path: Path) -> Measurements:
    """The figures of the stand-in, through the worker's answer."""
    named = jobs_in(tmp_path, probes(ARCHITECTURES["sm_90a"]))
    gpu = device_main.DeviceDriver(TimedDriver())
    answer = json.loads(json.dumps(device_main.run_all_probes(gpu, tmp_path)))
    return measuring._read(answer, named, "sm_90a")


def test_rates_are_work_over_time(answered: Measurements) -> None:
    for probe in probes(ARCHITECTURES["sm_90a"]):
        if probe.work and probe.dtype:
            wanted = SMS_THERE * probe.blocks * probe.work / SECONDS_OF[probe.kind] * 1e-9
            found = answered.peak(probe.dtype, f"sm_90a {probe.name}")
            assert found == pytest.approx(wanted, rel=1e-6), probe
    assert answered.bandwidth.l2 == pytest.approx((32 << 18) / 4e-6 * 1e-9 * 1, rel=0.01)
    assert answered.bandwidth.dram == pytest.approx((256 << 20) / 4e-6 * 1e-9, rel=0.01)
    assert answered.ghz == pytest.approx(GHZ) and not answered.notes
    assert answered.figure(SMS) == SMS_THERE
    assert answered.figure(PLAIN) == answered.figure(EARLY) == pytest.approx(1.0)
    assert answered.figure("copy to the device") == pytest.approx(10.0)
    assert answered.figure(HOST_NODE) > 0
    assert Measurements.from_json(json.loads(json.dumps(asdict(answered)))) == answered


def test_a_probe_that_fails_is_told(tmp_path: Path) -> None:
    jobs_in(tmp_path, probes(ARCHITECTURES["sm_90a"]))
    gpu = device_main.DeviceDriver(TimedDriver(broken="cuModuleLoadData"))
    answer = device_main.run_all_probes(gpu, tmp_path)
    assert len(answer["notes"]) == len(probes(ARCHITECTURES["sm_90a"])) and not answer["rates"]
    assert "cuModuleLoadData returned CUDA_ERROR_UNKNOWN" in answer["notes"][0]
    with pytest.raises(RuntimeError, match="cuInit returned"):
        device_main.DeviceDriver(TimedDriver(broken="cuInit"))


# ---- what is kept, and who reads it ---------------------------------------------------------


def test_a_gpu_is_measured_once(
    answered: Measurements, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = list[int]()

    def fake(*arguments: object) -> Measurements:
        runs.append(1)
        return answered

    monkeypatch.setattr(measuring, "_measured", fake)
    environment = Environment(cache=tmp_path / "cache")
    first = measure_gpu(H100, "sm_90a", environment)
    assert first == measure_gpu(H100, "sm_90a", environment) and first.device == "NVIDIA H100"
    assert len(runs) == 1
    measure_gpu(H100, "sm_90a", environment, refresh=True)
    measure_gpu(replace(H100, driver="another"), "sm_90a", environment)
    assert len(runs) == 3
    (kept, *_) = sorted((tmp_path / "cache" / "doctor").iterdir())
    assert kept.name.startswith("gpu-") and disk_cache.load_cached(kept.parent, "gpu", "0") is None


def test_what_cannot_be_measured_is_a_typical_device_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> Measurements:
        raise BuildError("the worker died")

    monkeypatch.setattr(measuring, "_measured", fails)
    found = measure_gpu(H100, "sm_90a", Environment(cache=tmp_path))
    assert not found.measured and found.peaks == nominal("sm_90a").peaks
    assert found.notes == ("nothing was measured: the worker died",)
    assert not (tmp_path / "doctor").exists()


@pytest.fixture
def there(answered: Measurements, monkeypatch: pytest.MonkeyPatch) -> Measurements:
    """This machine has an H100 with the stand-in's figures."""
    monkeypatch.setattr(machine_model, "gpus", lambda: (H100,))
    monkeypatch.setattr(backend, "gpus", lambda: (H100,))
    monkeypatch.setattr(
        machine_model, "measure_gpu", lambda *a, **k: replace(answered, device="an H100")
    )
    return answered


def test_the_cost_model_reads_what_was_measured(there: Measurements, tmp_path: Path) -> None:
    environment = Environment(cache=tmp_path)
    found = GPU.machine(("sm_80", "sm_90a"), environment)
    assert found == machine_of(H100, there, "sm_90a")
    sums = there.peak("tf32", "sm_90a mma") / 3
    assert found.gflops == max(sums, there.peak("f32", "sm_90a fma"))
    assert (found.l2_bytes, found.dram_gbytes) == (H100.l2, there.bandwidth.dram)
    assert found.step_us == pytest.approx(1.0)
    assert GPU.machine(("sm_80",), environment) == measured_machine(("sm_90a",), None)


def test_the_doctor_shows_a_gpus_figures(there: Measurements, tmp_path: Path) -> None:
    found = GpuDiagnostics().measure(Environment(cache=tmp_path))
    assert found is not None and GpuDiagnostics().features == ("f16", "bf16")
    console = Console(width=80)
    with console.capture() as capture:
        console.print(figures_table(found))
    shown = capture.get()
    assert "an H100, measured in" in shown and EARLY in shown and "f8 multiply-add" in shown
    assert "sm_90a wgmma" in shown and "Top/s" in shown and max(map(len, shown.splitlines())) <= 80


def test_modelled_times_are_of_the_gpu_that_is_there(there: Measurements) -> None:
    slow = replace(there, peaks=tuple(replace(p, gops=p.gops / 1e3) for p in there.peaks))
    catalog = GPU.catalog
    fast, lame, table = (
        PolicyEngine(catalog, ("sm_90a",), f).plan_kernel("gemm", (4096, 4096, 4096), "f16").us
        for f in (there, slow, None)
    )
    assert fast is not None and lame is not None and table is not None and lame > 10 * fast
    other = PolicyEngine(catalog, ("sm_80",), slow).plan_kernel("gemm", (4096, 4096, 4096), "f16")
    assert other.us is not None and other.us < lame, "figures are of another architecture"


def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_model, "gpus", tuple)

    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("nothing is compiled or run")

    monkeypatch.setattr(subprocess, "run", never)
    assert GpuDiagnostics().measure(Environment()) is None and GpuDiagnostics().features == ()
