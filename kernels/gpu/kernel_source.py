"""Source of one generated kernel."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.kernels import generated_source

__all__ = ["KernelSource"]


@dataclass(frozen=True)
class KernelSource(generated_source.Source):
    """Source of a kernel: symbol and text, threads of a block, and its shared memory in bytes."""

    threads: int
    shared: int = 0
