"""What the hardware can do."""

from __future__ import annotations

from tracea_graph.hardware.cpu import CpuProfile, fingerprint, fingerprint_hash, profile_cpu
from tracea_graph.hardware.doctor import Doctor, Health
from tracea_graph.hardware.measure import Measurements
from tracea_graph.hardware.selection import Decision, plan_kernel

__all__ = [
    "CpuProfile",
    "Decision",
    "Doctor",
    "Health",
    "Measurements",
    "fingerprint",
    "fingerprint_hash",
    "plan_kernel",
    "profile_cpu",
]
