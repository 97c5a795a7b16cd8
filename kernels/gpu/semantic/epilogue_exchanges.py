"""Matrices of an epilogue as they pass through shared memory: runs of 16 bytes, and fragments."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.kernels.gpu.semantic.bank_conflicts import Access
from tracea_graph.kernels.gpu.semantic.fragment_layouts import WARP
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import Layout, SwizzleMode

__all__ = ["Exchange"]


@dataclass(frozen=True)
class Exchange:
    """An epilogue matrix, moved between global memory and registers through shared memory.

    Global memory is accessed in runs of 16 bytes, registers hold fragments.  16 rows of ``wide``
    columns are converted at a time; ``ahead`` is how many such strips are prefetched.
    """

    name: str
    element: str
    held: str
    size: int
    wide: int
    ahead: int = 0

    @property
    def layout(self) -> Layout:
        pitch = self.wide * self.size
        modes = {32: SwizzleMode.XOR2, 64: SwizzleMode.XOR4}
        return Layout(pitch, modes.get(pitch, SwizzleMode.XOR8))

    @property
    def runs(self) -> int:
        """Number of runs of 16 bytes in a row."""
        return self.layout.pitch // 16

    @property
    def rounds(self) -> int:
        """Number of runs per lane."""
        return 16 * self.runs // WARP

    @property
    def pair(self) -> str:
        """C expression of an offset: of a lane's two values in block j, half h, from its first."""
        block = 8 * self.size
        place = self.layout.expression("h * 8", f"j * {block} / 16")
        return f"({place} + j * {block} % 16)"

    @property
    def round(self) -> str:
        """C expression of the offset from a lane's first run to its run of round p."""
        return f"({self.layout.expression(f'p * {WARP // self.runs}', '0')})"

    def accesses(self) -> list[Access]:
        """Return all shared-memory accesses of a warp: to pairs of columns, and to runs."""
        found = []
        for j in range(self.wide // 8):
            for top in (0, 8):
                cols = [(j * 8 + lane % 4 * 2) * self.size for lane in range(WARP)]
                at = tuple(self.layout.offset(top + i // 4, c) for i, c in enumerate(cols))
                found.append(Access(f"pairs of {self.name}", 2 * self.size, at))
        for first in range(0, 16 * self.runs, WARP):
            both = [divmod(first + lane, self.runs) for lane in range(WARP)]
            at = tuple(self.layout.offset(row, run * 16) for row, run in both)
            found.append(Access(f"runs of {self.name}", 16, at))
        return found
