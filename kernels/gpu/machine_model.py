"""A GPU as the cost model and the doctor see it, from measurements by short kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tracea_graph.config import Environment
from tracea_graph.hardware import Measurements
from tracea_graph.hardware.gpu import Gpu, find_nvidia_gpus
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.gpu_measurement import (
    EARLY,
    HOST_NODE,
    PLAIN,
    measure_gpu,
    peak_level,
)
from tracea_graph.policy import Machine

__all__ = ["GpuDiagnostics", "gpus", "level_of", "machine_of", "measured_machine"]

_NOMINAL = Machine(
    gflops=30e3, l2_gbytes=6e3, l3_gbytes=6e3, dram_gbytes=3e3, l2_bytes=40 << 20,
    l3_bytes=50 << 20, node_us=30.0, step_us=0.8,
)  # fmt: skip
"""Cost model of one H100; ``node_us`` includes copies to and from it, and the final wait."""
_PARTS = 3
"""Number of tf32 products that one float32 product takes."""


@cache
def gpus() -> tuple[Gpu, ...]:
    """List this machine's GPUs; the driver is queried once per process, in a child process."""
    return find_nvidia_gpus()[0]


def level_of(capability: str) -> str:
    """Return the newest architecture whose kernels a device can run, or "" if there is none."""
    major, _, minor = capability.partition(".")
    number = 10 * int(major) + int(minor or 0)
    fitting = [
        a.name for a in ARCHITECTURES.values()
        if (a.capability == number) or (a.capability // 10 == int(major) and
                                        a.capability <= number and not a.name.endswith("a"))
    ]  # fmt: skip
    return fitting[-1] if fitting else ""


def machine_of(gpu: Gpu, figures: Measurements, level: str) -> Machine:
    """Build the machine model of a GPU from its figures."""
    exact = figures.peak("f32", peak_level(level, "fma"))
    sums = figures.peak("tf32", peak_level(level, "mma")) / _PARTS
    dram = figures.bandwidth.dram
    l2 = max(figures.bandwidth.l2, dram)
    return Machine(
        max(exact, sums) or _NOMINAL.gflops, l2, l2, dram, gpu.l2, gpu.l2,
        node_us=figures.figure(HOST_NODE) or _NOMINAL.node_us,
        step_us=figures.figure(EARLY) or figures.figure(PLAIN) or _NOMINAL.step_us,
    )  # fmt: skip


def measured_machine(levels: Sequence[str], environment: Environment | None) -> Machine:
    """Return the cost model of this machine's first GPU, from measurements.

    The model is nominal if ``levels`` do not include that GPU's architecture.  It is also nominal
    without an environment, for plans that must not depend on the machine.
    """
    found = gpus()
    if environment is None or not found or level_of(found[0].capability) not in levels:
        return _NOMINAL
    level = level_of(found[0].capability)
    return machine_of(found[0], measure_gpu(found[0], level, environment), level)


class GpuDiagnostics:
    """Diagnostics of this machine's first GPU, for the doctor and the policy."""

    @property
    def features(self) -> tuple[str, ...]:
        """Return the element types that the tensor cores multiply."""
        found = gpus()
        return found[0].tensor_dtypes if found else ()

    def measure(self, environment: Environment, refresh: bool = False) -> Measurements | None:
        """Return cached or newly measured figures; None if there is no supported GPU."""
        found = gpus()
        if not found or not (level := level_of(found[0].capability)):
            return None
        return measure_gpu(found[0], level, environment, refresh=refresh)
