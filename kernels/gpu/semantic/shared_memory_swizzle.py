"""Swizzled layouts of tiles in shared memory: 16-byte runs are permuted within a row.

The swizzle spreads one column of eight rows over eight different runs of the 128 bytes that the
banks hold, so that an ``ldmatrix`` has no bank conflicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["LINE", "RUN", "Layout", "SwizzleMode"]

RUN = 16
"""Bytes of the unit that swizzling keeps together."""
LINE = 128
"""Bytes of one line over all banks: 32 banks of 4 bytes."""


class SwizzleMode(Enum):
    """Swizzle: the index of a 16-byte run is xored with the line number modulo ``ways``.

    ``xor`` modes are for tiles that threads store.  ``tma`` modes are those of tensor maps
    (``CU_TENSOR_MAP_SWIZZLE_32B`` and following); a row then has exactly ``ways`` runs.
    """

    NONE = "none"
    XOR2 = "xor 2"
    XOR4 = "xor 4"
    XOR8 = "xor 8"
    TMA32 = "tma 2"
    TMA64 = "tma 4"
    TMA128 = "tma 8"

    @property
    def ways(self) -> int:
        return 1 if self is SwizzleMode.NONE else int(self.value[4:])

    @property
    def by_tensor_map(self) -> bool:
        return self.value.startswith("tma")


@dataclass(frozen=True)
class Layout:
    """Layout of rows of ``pitch`` bytes in shared memory.

    Short rows share a line of 128 bytes; the swizzle depends on the line, not on the row.  Raises
    ValueError if the mode does not support the pitch.
    """

    pitch: int
    mode: SwizzleMode = SwizzleMode.NONE

    def __post_init__(self) -> None:
        span = self.mode.ways * RUN
        if self.mode is SwizzleMode.NONE:
            return
        if self.mode.by_tensor_map and self.pitch != span:
            raise ValueError(f"tensor map rows in mode {self.mode.name} must have {span} bytes")
        if self.pitch % span or (self.pitch < LINE and LINE % self.pitch):
            raise ValueError(f"rows of {self.pitch} bytes cannot be swizzled in spans of {span}")

    @property
    def rows_of_a_line(self) -> int:
        return max(1, LINE // self.pitch)

    def offset(self, row: int, column: int) -> int:
        """Return the offset of byte ``column`` of a row."""
        key = row // self.rows_of_a_line % self.mode.ways
        return row * self.pitch + (column // RUN ^ key) * RUN + column % RUN

    def expression(self, row: str, run: str) -> str:
        """Return the offset of a 16-byte run as a C expression of row and run."""
        if self.mode is SwizzleMode.NONE:
            return f"({row}) * {self.pitch} + ({run}) * {RUN}"
        shift = self.rows_of_a_line.bit_length() - 1
        line = f"(({row}) >> {shift})" if shift else f"({row})"
        return f"({row}) * {self.pitch} + ((({run}) ^ ({line} & {self.mode.ways - 1})) * {RUN})"

    def moved(self, offset: str, runs: str) -> str:
        """Return the C expression of a run's offset after an even number of further runs.

        The first run must be aligned so that the addition carries into no higher bit; in swizzled
        layouts the advance is then an xor.  Rows whose numbers differ by a multiple of 16 have the
        same swizzle.
        """
        return f"({offset} {'+' if self.mode is SwizzleMode.NONE else '^'} ({runs}) * {RUN})"
