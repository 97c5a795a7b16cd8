"""Capabilities of the hardware."""

from __future__ import annotations

from tracea_graph.hardware.cpu import CpuProfile, fingerprint_hash, profile_cpu
from tracea_graph.hardware.diagnostics_protocol import (
    CallWorkQueries,
    MachineDiagnostics,
    TaskRecording,
)
from tracea_graph.hardware.machine_measurements import Measurements

__all__ = [
    "CallWorkQueries",
    "CpuProfile",
    "MachineDiagnostics",
    "Measurements",
    "TaskRecording",
    "fingerprint_hash",
    "profile_cpu",
]
