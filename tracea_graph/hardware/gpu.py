"""GPUs of this machine, queried through their vendors' tools.

NVIDIA's are queried through cuda-python in a subprocess that runs this file, which isolates the
caller from a driver that crashes or hangs.  For that reason this file imports only the standard
library.  Sizes are bytes.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "Gpu",
    "Gpus",
    "find_gpus",
    "nvidia_driver_signs",
    "query_nvidia_devices",
    "tensor_core_dtypes",
    "vendor_tools",
    "visible_devices_setting",
]

_SECONDS = 10.0
_TOOLS = ("rocminfo", "rocm-smi", "system_profiler")
_TRACES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
"""Files that indicate an NVIDIA driver on Linux, the last one inside WSL."""
_MIN_CAPABILITY = (("f16", 70), ("i8", 72), ("bf16", 80), ("tf32", 80), ("f8", 89), ("f4", 100))
_DOUBLE = (80, 90, 100)
"""CUDA capabilities whose tensor cores also multiply f64."""


@dataclass(frozen=True)
class Gpu:
    """One device; unknown fields are 0 or empty.

    ``capability`` is CUDA's ``9.0`` or AMD's ``gfx942``; ``units`` are streaming multiprocessors
    or compute units; ``shared_memory`` is the maximum of one block.
    """

    vendor: str
    name: str
    capability: str = ""
    units: int = 0
    shared_memory: int = 0
    l2: int = 0
    memory: int = 0
    driver: str = ""
    tensor_dtypes: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Gpu:
        """Read from JSON; raises KeyError, TypeError or ValueError for anything else."""
        fields: dict[str, Any] = dict(row)
        return cls(**{**fields, "tensor_dtypes": tuple(fields["tensor_dtypes"])})


@dataclass(frozen=True)
class Gpus:
    """The GPUs of this machine, and sentences that say why others could not be found."""

    devices: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()


def find_gpus(root: Path = Path("/")) -> Gpus:
    """Return every GPU that the tools of its vendor report."""
    found, notes = find_nvidia_gpus(root)
    return Gpus((*found, *_amd(), *_apple()), notes)


def nvidia_driver_signs(root: Path = Path("/")) -> list[str]:
    """Return signs of an NVIDIA driver, including its version."""
    there = [p for p in _TRACES if (root / p.lstrip("/")).exists()]
    version = root / _TRACES[0].lstrip("/")
    return (
        [*there, version.read_text(encoding="utf-8") if _TRACES[0] in there else ""]
        if there
        else []
    )


def find_nvidia_gpus(root: Path = Path("/")) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Return NVIDIA's devices, or a sentence that says why there are none."""
    if not nvidia_driver_signs(root):
        return (), ("no NVIDIA GPU: this machine has no NVIDIA driver",)
    done = _output([sys.executable, "-P", __file__])
    try:
        answer: dict[str, Any] = json.loads(done)
    except ValueError:
        answer = {"error": f"the query answered {done[:80]!r}" if done else "the query died"}
    if "error" in answer:
        return (), (f"no NVIDIA GPU can be used: {answer['error']}",)
    return tuple(Gpu.of(row) for row in answer["devices"]), ()


def visible_devices_setting() -> str | None:
    """Return the value of ``CUDA_VISIBLE_DEVICES``, which can hide devices; None if unset."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def vendor_tools() -> list[str]:
    """Return the installed tools of other vendors."""
    return [path for name in _TOOLS if (path := shutil.which(name))]


def tensor_core_dtypes(major: int, minor: int) -> tuple[str, ...]:
    """Return the types that the tensor cores of a CUDA capability multiply."""
    level = 10 * major + minor
    plain = tuple(name for name, least in _MIN_CAPABILITY if level >= least)
    return (*plain, "f64") if level in _DOUBLE else plain


# ---- in the subprocess -----------------------------------------------------------------


def query_nvidia_devices(driver: Any, nvml: Any | None) -> list[Gpu]:
    """Return all NVIDIA devices.

    ``driver`` is the module ``cuda.bindings.driver``; ``nvml``, ``cuda.bindings.nvml`` or None.
    Raises RuntimeError with CUDA's name of the error.
    """
    _checked(driver, driver.cuInit(0))
    version = _driver_version(driver, nvml)
    count = _checked(driver, driver.cuDeviceGetCount())
    return [_device(driver, i, version) for i in range(count)]


def _device(driver: Any, index: int, version: str) -> Gpu:
    device = _checked(driver, driver.cuDeviceGet(index))
    name = _checked(driver, driver.cuDeviceGetName(256, device))
    kinds = driver.CUdevice_attribute

    def attribute(which: str) -> int:
        kind = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{which}")
        return int(_checked(driver, driver.cuDeviceGetAttribute(kind, device)))

    major, minor = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    return Gpu(
        vendor="NVIDIA",
        name=name.split(b"\0")[0].decode(errors="replace"),
        capability=f"{major}.{minor}",
        units=attribute("MULTIPROCESSOR_COUNT"),
        shared_memory=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        l2=attribute("L2_CACHE_SIZE"),
        memory=int(_checked(driver, driver.cuDeviceTotalMem(device))),
        driver=version,
        tensor_dtypes=tensor_core_dtypes(major, minor),
    )


def _checked(driver: Any, answer: Any) -> Any:
    """Value of a ``(result, value)`` answer; raises RuntimeError unless it succeeded."""
    result = answer[0]
    if result != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver answered {getattr(result, 'name', result)}")
    return answer[1] if len(answer) > 1 else None


def _driver_version(driver: Any, nvml: Any | None) -> str:
    """``580.65 (CUDA 13.0)``; the CUDA version alone without NVML."""
    number = _checked(driver, driver.cuDriverGetVersion())
    cuda = f"CUDA {number // 1000}.{number % 1000 // 10}"
    if nvml is None:
        return cuda
    nvml.init_v2()
    version = nvml.system_get_driver_version()
    return f"{version} ({cuda})"


def _load(name: str) -> Any | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def main() -> None:
    """Write the devices, or an error, as JSON to stdout."""
    driver, nvml = _load("cuda.bindings.driver"), _load("cuda.bindings.nvml")
    if driver is None:
        answer: dict[str, Any] = {"error": "cuda-python is missing; pip install cuda-python"}
    else:
        try:
            answer = {"devices": [asdict(gpu) for gpu in query_nvidia_devices(driver, nvml)]}
        except RuntimeError as error:  # also raised for a missing library of the driver
            answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))


# ---- other vendors ---------------------------------------------------------------------


def _amd() -> tuple[Gpu, ...]:
    if tool := shutil.which("rocminfo"):
        return parse_rocminfo(_output([tool]))
    if tool := shutil.which("rocm-smi"):
        return parse_rocm_smi(_output([tool, "--showproductname", "--json"]))
    return ()


def parse_rocminfo(text: str) -> tuple[Gpu, ...]:
    """Return the GPU agents in ``rocminfo``'s text."""
    found = []
    for agent in re.split(r"^\*+\s*\n\s*Agent \d+", text, flags=re.MULTILINE)[1:]:
        facts = dict(re.findall(r"^  (\w[\w ]*?):\s+(.*?)\s*$", agent, flags=re.MULTILINE))
        if facts.get("Device Type") == "GPU":
            units = facts.get("Compute Unit", "0")
            name = facts.get("Marketing Name") or facts.get("Name", "")
            number = int(units) if units.isdigit() else 0
            found.append(Gpu("AMD", name, facts.get("Name", ""), number))
    return tuple(found)


def parse_rocm_smi(text: str) -> tuple[Gpu, ...]:
    """Return the cards in the JSON of ``rocm-smi --showproductname --json``."""
    try:
        cards = json.loads(text)
    except ValueError:
        return ()
    rows = [card for card in cards.values() if isinstance(card, dict)]
    return tuple(Gpu("AMD", r.get("Card Series", ""), r.get("GFX Version", "")) for r in rows)


def _apple() -> tuple[Gpu, ...]:
    tool = shutil.which("system_profiler")
    return parse_system_profiler(_output([tool, "SPDisplaysDataType", "-json"])) if tool else ()


def parse_system_profiler(text: str) -> tuple[Gpu, ...]:
    """Return the displays in ``system_profiler``'s JSON."""
    try:
        rows = json.loads(text)["SPDisplaysDataType"]
    except (ValueError, KeyError):
        return ()
    return tuple(
        Gpu("Apple", row.get("sppci_model", ""), units=int(row.get("sppci_cores", 0)))
        for row in rows
        if "Apple" in row.get("sppci_model", "")
    )


def _output(command: Sequence[str]) -> str:
    """Output of a command; empty if it fails or hangs."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


if __name__ == "__main__":
    main()
