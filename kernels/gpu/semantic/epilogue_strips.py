"""Shared-memory layouts for converting sums from fragments (column pairs) to runs of rows."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.kernels.gpu.semantic.bank_conflicts import Access
from tracea_graph.kernels.gpu.semantic.fragment_layouts import ATOMS, WARP

__all__ = ["EpilogueStrip", "TransposedStrip"]

_ROWS = 16
_D = ATOMS["m16n8k16.f16"].d


@dataclass(frozen=True)
class EpilogueStrip:
    """Layout of 16 rows of ``cols`` float32 numbers; ``cols`` is a multiple of 32.

    The pitch exceeds ``cols`` by 8 words, so that storing column pairs of four rows uses every
    bank once.  Groups of four numbers are swizzled, so that loading every second group is free of
    bank conflicts.
    """

    cols: int

    @property
    def pitch(self) -> int:
        return self.cols + 8

    @property
    def words(self) -> int:
        return _ROWS * self.pitch

    def offset(self, row: int, col: int) -> int:
        """Return the word offset of a number."""
        four = col // 4
        return row * self.pitch + (four ^ (four >> 3 ^ row) & 1) * 4 + col % 4

    def expression(self, row: str, col: str) -> str:
        """Return the word offset of a number as a C expression."""
        four = f"(({col}) / 4)"
        turned = f"({four} ^ (({four} / 8 ^ ({row})) & 1))"
        return f"({row}) * {self.pitch} + {turned} * 4 + ({col}) % 4"

    def accesses(self, run: int) -> list[Access]:
        """Return all stores of column pairs, and all loads of runs, four numbers at a time."""
        found = []
        for block in range(0, self.cols, 8):
            for e in (0, 2):
                places = [_D.at(lane, e) for lane in range(WARP)]
                at = tuple(4 * self.offset(row, block + col) for row, col in places)
                found.append(Access(f"store of block {block}", 8, at))
        lanes = self.cols // run
        for first in range(0, _ROWS * lanes, WARP):
            for q in range(0, run, 4):
                both = [divmod(first + lane, lanes) for lane in range(WARP)]
                at = tuple(4 * self.offset(row, col * run + q) for row, col in both)
                found.append(Access(f"load {q} of run {first}", 16, at))
        return found


@dataclass(frozen=True)
class TransposedStrip:
    """Layout of ``rows`` rows of ``cols`` float32 sums whose fragments hold the transpose.

    ``cols`` is a multiple of 16, at most 64.  The pitch exceeds it by 4 words, so that storing
    8 columns of every second of 8 rows uses every bank once.  From column 32 on groups of four
    numbers are swapped in pairs, so that loading every second group is free of bank conflicts.
    """

    rows: int
    cols: int

    @property
    def pitch(self) -> int:
        return self.cols + 4

    @property
    def words(self) -> int:
        return self.rows * self.pitch

    def offset(self, row: int, col: int) -> int:
        """Return the word offset of a number."""
        return row * self.pitch + (col // 4 ^ col // 32 & 1) * 4 + col % 4

    def expression(self, row: str, col: str) -> str:
        """Return the word offset of a number as a C expression."""
        four = f"(({col}) / 4 ^ (({col}) / 32 & 1))"
        return f"(({row}) * {self.pitch} + {four} * 4 + ({col}) % 4)"

    def accesses(self, run: int) -> list[Access]:
        """Return all stores of a warp's sums, and all loads of runs, four numbers at a time."""
        found = []
        for block in range(0, self.cols, _ROWS):
            for e in range(4):
                spots = [_D.at(lane, e) for lane in range(WARP)]
                at = tuple(4 * self.offset(col, block + row) for row, col in spots)
                found.append(Access(f"store of block {block}", 4, at))
        lanes = self.cols // run
        for first in range(0, self.rows * lanes, WARP):
            for q in range(0, run, 4):
                both = [divmod(first + lane, lanes) for lane in range(WARP)]
                at = tuple(4 * self.offset(row, col * run + q) for row, col in both)
                found.append(Access(f"load {q} of run {first}", 16, at))
        return found
