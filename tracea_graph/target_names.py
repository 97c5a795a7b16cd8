"""Names of targets and operations, for parsers; unlike ``target``, this loads no backends."""

from __future__ import annotations

from tracea_graph.kernels.cpu.named_targets import OPERATIONS
from tracea_graph.kernels.cpu.named_targets import TARGETS as _CPU
from tracea_graph.kernels.gpu.named_targets import TARGETS as _GPU

__all__ = ["BOTH", "HOST", "OPERATIONS", "TARGETS"]

HOST = "host"
"""This machine, with all its levels."""

BOTH = "cpu,"
"""Start of the name of a target whose function bodies call kernels for this machine's CPU."""

TARGETS = (HOST, *_CPU, *_GPU, *(f"{BOTH}{name}" for name in _GPU))
"""Names of all targets."""
