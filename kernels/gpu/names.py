"""Words for the command line: the GPU targets one can name.  Light, as parsers read it first."""

from __future__ import annotations

from tracea_graph.kernels.gpu.architecture import ARCHITECTURES

__all__ = ["TARGETS"]

TARGETS = ("cuda", *(f"cuda:{name.rstrip('a')}" for name in ARCHITECTURES))
"""This machine's GPU, then every architecture, oldest first."""
