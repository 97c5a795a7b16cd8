"""Targets by name, for parsers: ``target`` loads the backends, this module only their words."""

from __future__ import annotations

from tracea_graph.kernels.cpu.names import PROBLEMS
from tracea_graph.kernels.cpu.names import TARGETS as _CPU
from tracea_graph.kernels.gpu.names import TARGETS as _GPU

__all__ = ["HOST", "PROBLEMS", "TARGETS"]

HOST = "host"
"""The target that is this machine, with all it has."""

TARGETS = (HOST, *_CPU, *_GPU)
"""Every target one can name."""
