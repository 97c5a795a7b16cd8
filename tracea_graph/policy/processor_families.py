"""Families of processors: sizes of their memories, and tiles known to suit them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ProcessorFamily"]


@dataclass(frozen=True)
class ProcessorFamily:
    """One family of processors.

    * ``near``: bytes available to a tile's operands (L1 of a core, shared memory of a block);
    * ``far``: bytes available in the next level (L2);
    * ``flops``: fp32 operations per cycle;
    * ``lanes``: fp32 lanes of a vector, or of a warp;
    * ``registers``: vector registers of a core, or 32-bit registers of an SM;
    * ``known_good``: configurations of a matrix product that perform well, by kind of shape
      (``square`` and ``flat``).
    """

    name: str
    device: str
    near: int
    far: int
    flops: int
    lanes: int
    registers: int
    known_good: Mapping[str, tuple[Mapping[str, int], ...]] = field(default_factory=dict)
