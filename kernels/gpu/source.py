"""One generated kernel, and the record of how it is launched."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.kernels import source

__all__ = ["KernelSource"]


@dataclass(frozen=True)
class KernelSource(source.Source):
    """A kernel's text: its symbol, the threads of a block, bytes of shared memory it asks for."""

    threads: int
    shared: int = 0
