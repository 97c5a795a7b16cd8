"""Names of targets and operations, for parsers; ``target`` loads the backends, not this."""

from __future__ import annotations

from tracea_graph.kernels.cpu.names import OPERATIONS
from tracea_graph.kernels.cpu.names import TARGETS as _CPU
from tracea_graph.kernels.gpu.names import TARGETS as _GPU

__all__ = ["HOST", "OPERATIONS", "TARGETS"]

HOST = "host"
"""This machine, with all its levels."""

TARGETS = (HOST, *_CPU, *_GPU)
"""Names of all targets."""
