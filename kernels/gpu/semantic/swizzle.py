"""Where shared memory keeps a tile of rows: runs of 16 bytes change places within a row.

Eight rows of one column then lie in eight different runs of the 128 bytes that all banks hold, so
that a matrix load meets no bank twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["LINE", "RUN", "Layout", "SwizzleMode"]

RUN = 16
"""Bytes that stay together."""
LINE = 128
"""Bytes of all banks: 32 of 4."""


class SwizzleMode(Enum):
    """How many runs change places: of ``ways`` runs, each goes to its place xor the line's number.

    ``xor`` modes are for tiles that threads store; ``tma`` modes are those of tensor maps
    (``CU_TENSOR_MAP_SWIZZLE_32B`` and on), whose rows are as long as their span.
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
    """Rows of ``pitch`` bytes in shared memory.

    Rows shorter than a line share one: the xor takes the number of the line, not of the row.
    Raises ValueError for a pitch that the mode cannot have.
    """

    pitch: int
    mode: SwizzleMode = SwizzleMode.NONE

    def __post_init__(self) -> None:
        span = self.mode.ways * RUN
        if self.mode is SwizzleMode.NONE:
            return
        if self.mode.by_tensor_map and self.pitch != span:
            raise ValueError(f"a tensor map's rows under {self.mode.name} have {span} bytes")
        if self.pitch % span or (self.pitch < LINE and LINE % self.pitch):
            raise ValueError(f"rows of {self.pitch} bytes cannot turn runs of {span}")

    @property
    def rows_of_a_line(self) -> int:
        return max(1, LINE // self.pitch)

    def offset(self, row: int, column: int) -> int:
        """The byte at which byte ``column`` of a row lies."""
        key = row // self.rows_of_a_line % self.mode.ways
        return row * self.pitch + (column // RUN ^ key) * RUN + column % RUN

    def expression(self, row: str, run: str) -> str:
        """The offset of a run of 16 bytes as an expression in C over row and run."""
        if self.mode is SwizzleMode.NONE:
            return f"({row}) * {self.pitch} + ({run}) * {RUN}"
        shift = self.rows_of_a_line.bit_length() - 1
        line = f"(({row}) >> {shift})" if shift else f"({row})"
        return f"({row}) * {self.pitch} + ((({run}) ^ ({line} & {self.mode.ways - 1})) * {RUN})"

    def moved(self, offset: str, runs: str) -> str:
        """What an offset of a run becomes an even number of runs further on in its row, in C.

        The run it starts from lies so that the sum carries into no further bit: then runs that
        change places are xored.  Whole multiples of 16 rows leave places alone.
        """
        return f"({offset} {'+' if self.mode is SwizzleMode.NONE else '^'} ({runs}) * {RUN})"
