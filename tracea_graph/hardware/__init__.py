"""What the hardware can do."""

from __future__ import annotations

from tracea_graph.hardware.cpu import CpuProfile, fingerprint, fingerprint_hash, profile_cpu
from tracea_graph.hardware.decision import Decision
from tracea_graph.hardware.measurements import Measurements

__all__ = [
    "CpuProfile",
    "Decision",
    "Measurements",
    "fingerprint",
    "fingerprint_hash",
    "profile_cpu",
]
