"""Names of targets, for parsers; ``target`` loads the backends, this module does not."""

from __future__ import annotations

from tracea_graph.kernels.cpu.names import PROBLEMS
from tracea_graph.kernels.cpu.names import TARGETS as _CPU
from tracea_graph.kernels.gpu.names import TARGETS as _GPU

__all__ = ["HOST", "PROBLEMS", "TARGETS"]

HOST = "host"
"""This machine, with all its levels."""

TARGETS = (HOST, *_CPU, *_GPU)
"""Names of all targets."""
