"""What the hardware can do."""

from tracea_graph.hardware.cpu import CpuProfile, fingerprint, fingerprint_hash, profile_cpu

__all__ = ["CpuProfile", "fingerprint", "fingerprint_hash", "profile_cpu"]
