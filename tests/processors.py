"""Processors that tests make up."""

from __future__ import annotations

from tracea_graph.kernels.cpu.levels import isa_of

__all__ = ["flags_of"]


def flags_of(*levels: str) -> frozenset[str]:
    """The flags of a processor that has these levels."""
    return frozenset(flag for level in levels for flag in isa_of(level).features)
