"""One core as the models that rank drivers see it: a usual one, for they only rank."""

from __future__ import annotations

__all__ = [
    "DRAM_GBS",
    "FMA_LATENCY",
    "GHZ",
    "HIDDEN",
    "L2_BYTES",
    "L2_GBS",
    "L3_GBS",
    "TASK_US",
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


def vectors_of(isa: str) -> int:
    """Vectors per 16-wide panel or block."""
    return {"scalar": 16, "avx2": 2}.get(isa, 1)
