"""One core as the models that rank schedules see it: a usual one, for they only rank."""

from __future__ import annotations

from functools import cache

from tracea_graph.hardware import profile_cpu
from tracea_graph.kernels.cpu.architectures import architecture_of
from tracea_graph.kernels.cpu.levels import isa_of

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
    "vectors_of",
]

GHZ = 4.0
FMA_LATENCY = 4
"""Cycles that two multiply-add units must be kept busy for, in registers of results each."""
DRAM_GBS, L3_GBS, L2_GBS = 30.0, 60.0, 120.0
"""One core's share of each level's bandwidth."""
L2_BYTES = 1 << 20
HIDDEN = 0.6
"""Share of the memory time that the processor hides without being told what comes next."""
TASK_US = 0.15


@cache
def units_of(isa: str) -> float:
    """Vectors this machine's core multiplies and adds a cycle at a level: two, but for wide ones
    that a core of this family takes in halves."""
    known = architecture_of(profile_cpu())
    return min(2.0, known.flops / (2 * isa_of(isa).width)) if known else 2.0


def vectors_of(isa: str) -> int:
    """Vectors per 16-wide panel or block."""
    return {"scalar": 16, "avx2": 2}.get(isa, 1)
