"""Processors that tests make up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tracea_graph.kernels.cpu.isa_levels import isa_of

__all__ = ["flags_of", "write_sysfs"]


def flags_of(*levels: str) -> frozenset[str]:
    """The flags of a processor that has these levels."""
    return frozenset(flag for level in levels for flag in isa_of(level).features)


def write_sysfs(sysfs: Path, processor: int, files: Mapping[str, str]) -> None:
    """Write what Linux would say of a processor."""
    for name, text in files.items():
        path = sysfs / f"cpu{processor}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
