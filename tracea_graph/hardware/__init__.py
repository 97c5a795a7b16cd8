"""Capabilities of the hardware."""

from __future__ import annotations

from tracea_graph.hardware.cpu import CpuProfile, fingerprint_hash, profile_cpu
from tracea_graph.hardware.diagnostics_protocol import Diagnostics, Tracing
from tracea_graph.hardware.machine_measurements import Measurements

__all__ = [
    "CpuProfile",
    "Diagnostics",
    "Measurements",
    "Tracing",
    "fingerprint_hash",
    "profile_cpu",
]
