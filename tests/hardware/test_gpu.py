"""GPUs behind fake bindings, and the texts of other vendors' tools."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tracea_graph.config import Environment
from tracea_graph.hardware import gpu
from tracea_graph.hardware.gpu import (
    Gpu,
    Gpus,
    find_nvidia_gpus,
    query_nvidia_devices,
    tensor_core_dtypes,
)
from tracea_graph.health_check import Doctor
from tracea_graph.views.doctor import _gpus


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100


ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "L2_CACHE_SIZE": 60 << 20,
}


class Driver:
    """``cuda.bindings.driver`` with some equal devices, or one that answers with an error."""

    CUresult = Result
    CUdevice_attribute = SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{n}": n for n in ATTRIBUTES})

    def __init__(self, count: int = 1, init: Result = Result.CUDA_SUCCESS) -> None:
        self.count, self.init = count, init

    def cuInit(self, flags: int) -> tuple[Result]:
        return (self.init,)

    def cuDriverGetVersion(self) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, 13010

    def cuDeviceGetCount(self) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, self.count

    def cuDeviceGet(self, index: int) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, index

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Result, bytes]:
        return Result.CUDA_SUCCESS, f"NVIDIA Test {device}".encode().ljust(length, b"\0")

    def cuDeviceGetAttribute(self, which: str, device: int) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, ATTRIBUTES[which]

    def cuDeviceTotalMem(self, device: int) -> tuple[Result, int]:
        return Result.CUDA_SUCCESS, 140 << 30


NVML = SimpleNamespace(init_v2=lambda: None, system_get_driver_version=lambda: "580.65.06")
WITH_DRIVER = "NVRM version: NVIDIA UNIX Module  580.65.06"


def test_devices_are_read_through_the_driver() -> None:
    first, second = query_nvidia_devices(Driver(2), NVML)
    assert (first.name, second.name) == ("NVIDIA Test 0", "NVIDIA Test 1")
    assert (first.capability, first.units, first.shared_memory) == ("9.0", 132, 232448)
    assert (first.l2, first.memory) == (60 << 20, 140 << 30)
    assert first.driver == "580.65.06 (CUDA 13.1)"
    assert {"bf16", "f8", "f64"} <= set(first.tensor_dtypes)


def test_without_nvml_the_cuda_version_is_told() -> None:
    assert query_nvidia_devices(Driver(), None)[0].driver == "CUDA 13.1"


def test_the_drivers_own_word_for_a_failure_is_kept() -> None:
    with pytest.raises(RuntimeError, match="CUDA_ERROR_NO_DEVICE"):
        query_nvidia_devices(Driver(init=Result.CUDA_ERROR_NO_DEVICE), NVML)


@pytest.mark.parametrize(
    ("capability", "has", "lacks"),
    [
        ((6, 1), set(), {"f16"}),
        ((7, 0), {"f16"}, {"i8", "bf16"}),
        ((7, 5), {"f16", "i8"}, {"bf16"}),
        ((8, 0), {"bf16", "tf32", "f64"}, {"f8"}),
        ((8, 6), {"bf16", "tf32"}, {"f64", "f8"}),
        ((8, 9), {"f8"}, {"f64", "f4"}),
        ((10, 0), {"f4", "f8"}, set()),
        ((12, 0), {"f4", "f8"}, {"f64"}),
    ],
)
def test_tensor_cores_follow_the_capability(
    capability: tuple[int, int], has: set[str], lacks: set[str]
) -> None:
    found = set(tensor_core_dtypes(*capability))
    assert has <= found and not lacks & found


def test_no_driver_is_one_clear_sentence(tmp_path: Path) -> None:
    assert find_nvidia_gpus(tmp_path) == (
        (),
        ("no NVIDIA GPU: this machine has no NVIDIA driver",),
    )


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A file system with traces of a driver."""
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(WITH_DRIVER)
    return tmp_path


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        ('{"error": "the driver answered CUDA_ERROR_NO_DEVICE"}', "CUDA_ERROR_NO_DEVICE"),
        ("", "the query died"),
        ("Traceback", "answered 'Traceback'"),
    ],
)
def test_a_failing_query_is_one_clear_sentence(
    answer: str, note: str, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_output", lambda command: answer)
    found, notes = find_nvidia_gpus(driver)
    assert found == ()
    assert len(notes) == 1 and note in notes[0]


def test_what_the_process_writes_is_what_is_read(
    driver: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bindings: dict[str, Any] = {"cuda.bindings.driver": Driver(1), "cuda.bindings.nvml": NVML}
    monkeypatch.setattr(gpu, "_load", bindings.get)
    gpu.main()
    answer = capsys.readouterr().out
    monkeypatch.setattr(gpu, "_output", lambda command: answer)
    assert find_nvidia_gpus(driver) == (tuple(query_nvidia_devices(Driver(1), NVML)), ())


def test_missing_bindings_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "_load", lambda name: None)
    gpu.main()
    assert "pip install cuda-python" in json.loads(capsys.readouterr().out)["error"]


def test_found_devices_are_kept_and_failures_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, calls = query_nvidia_devices(Driver(), NVML)[0], list[int]()
    answers = [Gpus((), ("not now",)), Gpus((device,))]
    monkeypatch.setattr(gpu, "find_gpus", lambda: calls.append(1) or answers[len(calls) - 1])
    monkeypatch.setattr(gpu, "nvidia_driver_signs", lambda: [WITH_DRIVER])
    environment = Environment(cache=tmp_path)
    found = [Doctor(environment).gpus for _ in range(3)]
    assert [len(f.devices) for f in found] == [0, 1, 1]
    assert len(calls) == 2
    assert found[2].devices == (device,)


def test_rocminfo_names_its_gpus() -> None:
    text = """\
*******
Agent 1
*******
  Name:                    AMD EPYC
  Device Type:             CPU
  Compute Unit:            32
*******
Agent 2
*******
  Name:                    gfx942
  Marketing Name:          AMD Instinct MI300X
  Device Type:             GPU
  Compute Unit:            304
"""
    assert gpu.parse_rocminfo(text) == (Gpu("AMD", "AMD Instinct MI300X", "gfx942", 304),)
    assert gpu.parse_rocminfo("") == ()


def test_rocm_smi_and_system_profiler() -> None:
    cards = {"card0": {"Card Series": "Radeon PRO", "GFX Version": "gfx1100"}, "system": "x"}
    assert gpu.parse_rocm_smi(json.dumps(cards)) == (Gpu("AMD", "Radeon PRO", "gfx1100"),)
    row = {"sppci_model": "Apple M3 Max", "sppci_cores": "40"}
    found = gpu.parse_system_profiler(json.dumps({"SPDisplaysDataType": [row]}))
    assert found == (Gpu("Apple", "Apple M3 Max", units=40),)
    assert gpu.parse_rocm_smi("no JSON") == gpu.parse_system_profiler("no JSON") == ()


def test_the_table_shows_sizes_and_tensor_cores() -> None:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(_gpus(tuple(query_nvidia_devices(Driver(), NVML))))
    assert "NVIDIA NVIDIA" not in capture.get()
    for part in ("NVIDIA Test 0", "9.0", "132", "227 KiB", "140 GiB", "bf16"):
        assert part in capture.get()


def test_devices_survive_json() -> None:
    device = query_nvidia_devices(Driver(), NVML)[0]
    assert Gpu.of(json.loads(json.dumps(asdict(device)))) == device
