"""Names of the GPU targets for the command line; imports little, as every parser loads it."""

from __future__ import annotations

from tracea_graph.kernels.gpu.architecture import ARCHITECTURES

__all__ = ["TARGETS"]

TARGETS = ("cuda", *(f"cuda:{name.rstrip('a')}" for name in ARCHITECTURES))
"""This machine's GPU first, then every architecture, oldest first."""
