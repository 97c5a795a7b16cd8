"""Nominal constants of a CPU core, for models that rank candidate schedules."""

from __future__ import annotations

from functools import cache

from tracea_graph.hardware import profile_cpu
from tracea_graph.kernels.cpu.isa_levels import isa_of
from tracea_graph.kernels.cpu.processor_families import pipes_of
from tracea_graph.kernels.cpu.variants import PANEL

__all__ = [
    "DRAM_GBS",
    "FMA_LATENCY",
    "GHZ",
    "HIDDEN",
    "L2_BYTES",
    "L2_GBS",
    "L3_GBS",
    "TASK_US",
    "units_of",
    "vectors_per_panel",
]

GHZ = 4.0
FMA_LATENCY = 4
"""Latency of a fused multiply-add in cycles."""
DRAM_GBS, L3_GBS, L2_GBS = 30.0, 60.0, 120.0
"""One core's share of each level's bandwidth, GB/s."""
L2_BYTES = 1 << 20
HIDDEN = 0.6
"""Share of the memory time that the processor hides without software prefetching."""
TASK_US = 0.15


@cache
def units_of(isa: str) -> float:
    """Return the vector multiply-adds that a core of this machine starts per cycle."""
    return pipes_of(profile_cpu(), isa_of(isa).width)


def vectors_per_panel(isa: str) -> int:
    """Vectors per 16-wide panel or block."""
    return PANEL // isa_of(isa).width
