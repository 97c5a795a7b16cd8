"""Capabilities of the hardware."""

from __future__ import annotations

from tracea_graph.hardware.cpu import CpuProfile, fingerprint_hash, profile_cpu
from tracea_graph.hardware.diagnostics import Diagnostics, Tracing
from tracea_graph.hardware.measurements import Measurements

__all__ = [
    "CpuProfile",
    "Diagnostics",
    "Measurements",
    "Tracing",
    "fingerprint_hash",
    "profile_cpu",
]
