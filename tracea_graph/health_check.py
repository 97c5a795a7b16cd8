"""The doctor: describe this machine and the kernels it would run."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

from tracea_graph.config import Environment
from tracea_graph.context import Context
from tracea_graph.errors import UsageError
from tracea_graph.hardware import disk_cache, gpu
from tracea_graph.hardware.cpu import CpuProfile, fingerprint_hash, profile_cpu
from tracea_graph.hardware.gpu import Gpu, Gpus
from tracea_graph.hardware.health_report import BackendHealth, Health, RuntimeHealth
from tracea_graph.hardware.machine_measurements import Measurements
from tracea_graph.policy import KernelPlan
from tracea_graph.target import BACKENDS, Backend, host_fingerprint, read_environment

__all__ = ["Doctor"]

_RUNTIMES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-rocm",
    "onnxruntime-openvino",
    "onnxruntime-directml",
)
_ASK_RUNTIME = """
import json, onnxruntime
print(json.dumps([onnxruntime.__version__, onnxruntime.get_available_providers()]))
"""
_ASK_SECONDS = 120.0


class Doctor:
    """Examines this machine, each part on first request.

    The first measurement takes up to five seconds; its results are cached until ``refresh``.
    """

    def __init__(self, environment: Environment | None = None, *, refresh: bool = False) -> None:
        self._environment = environment or read_environment()
        self._refresh = refresh
        self._figures = dict[str, Measurements | None]()

    @cached_property
    def cpu(self) -> CpuProfile:
        """The processor as the operating system describes it."""
        return profile_cpu()

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels of the host's backend that this machine supports, lowest first."""
        return BACKENDS[0].levels("", "fp32")

    @property
    def figures(self) -> Measurements:
        """Measured peaks, bandwidths and thread wake-up costs of the host's backend."""
        if (found := self._measured(BACKENDS[0])) is None:
            raise UsageError(f"{BACKENDS[0].name} has no diagnostics for this machine")
        return found

    @cached_property
    def backends(self) -> tuple[BackendHealth, ...]:
        """What each backend says about this machine."""
        return tuple(
            BackendHealth(
                backend.name,
                levels := backend.levels("", "fp32"),
                backend.diagnostics.features if backend.diagnostics else (),
                backend.unmeasured(levels).partition(": ")[0],  # the rest is about results
                self._measured(backend),
            )
            for backend in BACKENDS
        )

    def _measured(self, backend: Backend) -> Measurements | None:
        if backend.diagnostics is None:
            return None
        if backend.name not in self._figures:
            self._figures[backend.name] = backend.diagnostics.measure(
                self._environment, refresh=self._refresh
            )
        return self._figures[backend.name]

    @cached_property
    def runtime(self) -> RuntimeHealth:
        """Version and providers of ONNX Runtime, queried in a separate process."""
        found = _installed()
        key = disk_cache.cache_key(found, sys.executable, sys.path)
        answer = self._recall("runtime", key)
        if not (isinstance(answer, list) and len(answer) == 2):
            answer = _ask_runtime()
            if answer[0]:
                disk_cache.store_cached(self._environment.cache / "doctor", "runtime", key, answer)
        names = tuple(f"{name} {version}" for name, version in found.items())
        return RuntimeHealth(str(answer[0]), tuple(answer[1]), names, *_conflict(found))

    @cached_property
    def gpus(self) -> Gpus:
        """Graphics processors; only found ones are cached."""
        traces = gpu.nvidia_driver_signs()
        key = disk_cache.cache_key(
            traces,
            gpu.visible_devices_setting(),
            list(map(disk_cache.file_version, gpu.vendor_tools())),
        )
        answer = self._recall("gpus", key)
        try:
            if answer is not None:
                return Gpus(tuple(map(Gpu.of, answer)))
        except (KeyError, TypeError, ValueError):
            answer = None  # cached by another version
        found = gpu.find_gpus()
        if found.devices:
            rows = [asdict(device) for device in found.devices]
            disk_cache.store_cached(self._environment.cache / "doctor", "gpus", key, rows)
        return found

    def health(self) -> Health:
        """Return all findings."""
        fingerprint = fingerprint_hash(host_fingerprint())
        return Health(fingerprint, self.cpu, self.backends, self.runtime, self.gpus)

    def plan_kernel(
        self, op: str, shape: Sequence[int] | None = None, precision: str = "fp32"
    ) -> KernelPlan:
        """Return the kernel that this machine runs for a problem, as ``Context.plan_kernel``."""
        return Context(environment=self._environment).plan_kernel(op, shape, precision)

    def _recall(self, name: str, key: str) -> Any | None:
        if self._refresh:
            return None
        return disk_cache.load_cached(self._environment.cache / "doctor", name, key)


def _installed() -> dict[str, str]:
    """Versions of the distributions that provide ONNX Runtime."""
    found = {}
    for name in _RUNTIMES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _conflict(installed: dict[str, str]) -> tuple[str, str]:
    """Return a warning and its repair if distributions overwrite each other; else empty."""
    if len(installed) < 2:
        return "", ""
    special = [name for name in installed if name != "onnxruntime"]
    keep, python = special[0], sys.executable
    return (
        f"{' and '.join(installed)} are installed together and overwrite each other's files: "
        "providers disappear without an error",
        f"{python} -m pip uninstall -y {' '.join(installed)} && "
        f"{python} -m pip install {keep}=={installed[keep]}",
    )


def _ask_runtime() -> list[Any]:
    """Return version and providers; the version is empty if ONNX Runtime cannot be imported."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _ASK_RUNTIME],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_SECONDS,
            check=True,
        )
        version, providers = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ["", []]
    return [version, providers]
