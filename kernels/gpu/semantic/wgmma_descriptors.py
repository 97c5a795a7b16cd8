"""Operands of ``wgmma`` in shared memory: descriptors, and a proof that they address the operands.

A tensor map writes a tile as rows of 128 swizzled bytes; a descriptor tells the tensor cores how
such rows form a matrix (PTX ISA, "Matrix Descriptor" and "Shared Memory Matrix Layout").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from tracea_graph.errors import GraphError
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import LINE, RUN, Layout, SwizzleMode

__all__ = ["DEPTH", "HalvedOperand", "Instruction", "MatrixOperand", "SparseOperand", "prove_read"]

DEPTH = 16
"""Depth of one ``wgmma`` on 16-bit elements; it is twice as deep on bytes."""
_GROUP = 8
"""Rows that the hardware addresses as one group."""
_LINES = Layout(LINE, SwizzleMode.TMA128)
_HALF_LINES = Layout(LINE // 2, SwizzleMode.TMA64)
_SWIZZLED = 1 << 62
"""Descriptor bits of the 128-byte swizzle."""


@dataclass(frozen=True)
class Instruction:
    """A ``wgmma`` on ``n`` columns of b; operand a is in registers or in shared memory.

    ``by_depth`` tells whether b is contiguous along the depth.  A ``sparse`` one is twice as deep;
    a, in shared memory, has two of every four numbers.  ``name`` is that of the function: equal
    sums by matrices of different order need two.
    """

    n: int
    registers: bool
    by_depth: bool
    sparse: bool = False
    name: str = "multiply_group"


@dataclass(frozen=True)
class MatrixOperand:
    """A tile of ``extent`` rows (of a) or columns (of b) by ``depth`` elements of ``size`` bytes.

    ``by_depth`` tells whether the depth is contiguous in memory, as it must be for bytes.  If not,
    the tile is a sequence of panels of 64 rows or columns.  Raises ValueError for a tile that has
    no such layout.
    """

    extent: int
    depth: int
    by_depth: bool
    size: int = 2
    pitch: ClassVar[int] = LINE

    def __post_init__(self) -> None:
        wide = LINE // self.size
        fits = self.depth == wide if self.by_depth else self.depth % DEPTH == 0 and self.size == 2
        if not fits or self.extent % (_GROUP if self.by_depth else wide):
            raise ValueError(f"no tile of {self.extent} by {self.depth} has rows of {LINE} bytes")

    @property
    def instruction_depth(self) -> int:
        """Number of elements along the depth that one instruction multiplies."""
        return 2 * DEPTH // self.size

    @property
    def layout(self) -> Layout:
        return _LINES

    @property
    def box(self) -> tuple[int, int]:
        """Number of rows that one tensor-map copy stores, and of elements in each row."""
        return (self.extent, self.depth) if self.by_depth else (self.depth, LINE // 2)

    @property
    def copies(self) -> int:
        """Number of tensor-map copies that the tile consists of."""
        return 1 if self.by_depth else self.extent // (LINE // 2)

    @property
    def panel(self) -> int:
        """Number of bytes that one copy stores."""
        return self.box[0] * LINE

    @property
    def nbytes(self) -> int:
        return self.copies * self.panel

    @property
    def step(self) -> int:
        """Bytes from the operand of one instruction to that of the next, along the depth."""
        return 2 * DEPTH if self.by_depth else DEPTH * LINE

    def instruction_offset(self, step: int) -> int:
        """Return the offset of the operand of an instruction along the depth."""
        return step * self.step

    def slice(self, k: str) -> str:
        """Return what the C expression ``k`` of an instruction adds to a descriptor."""
        return f"{k} * {self.step // RUN}"

    @property
    def bits(self) -> int:
        """Descriptor bits without the start address, which the kernel adds as ``address >> 4``."""
        leading = RUN if self.by_depth else self.panel
        return _SWIZZLED | (_GROUP * LINE >> 4) << 32 | leading >> 4 << 16

    def read(self, start: int, at: int, k: int) -> int:
        """Return the offset from which the hardware reads row or column ``at`` at depth ``k``.

        ``start`` is the offset of the instruction's operand.
        """
        leading = (self.bits >> 16 & 0x3FFF) << 4
        stride = (self.bits >> 32 & 0x3FFF) << 4
        group, within = divmod(at if self.by_depth else k, _GROUP)
        along = k if self.by_depth else at % (LINE // 2)
        linear = start + group * stride + within * LINE + self.size * along
        linear += 0 if self.by_depth else at // (LINE // 2) * leading
        return linear ^ (linear // LINE % _GROUP) * RUN

    def written(self, at: int, k: int) -> int:
        """Return the offset to which tensor-map copies write row or column ``at``, depth ``k``."""
        if self.by_depth:
            return self.layout.offset(at, self.size * k)
        panel, column = divmod(at, LINE // 2)
        return panel * self.panel + self.layout.offset(k, 2 * column)


class _HalfLines:
    """What operands of rows of 64 bytes of 16-bit numbers have in common."""

    by_depth: ClassVar[bool] = True
    size: ClassVar[int] = 2
    instruction_depth: ClassVar[int] = DEPTH
    pitch: ClassVar[int] = LINE // 2

    @property
    def bits(self) -> int:
        """Descriptor bits without the start address, with the 64-byte swizzle."""
        return 2 * _SWIZZLED | (_GROUP * self.pitch >> 4) << 32 | RUN >> 4 << 16

    def read(self, start: int, at: int, k: int) -> int:
        """Return the offset from which the hardware reads stored number ``k`` of row ``at``."""
        linear = start + at * self.pitch + 2 * k
        return linear ^ (linear // LINE % (_GROUP // 2)) * RUN


@dataclass(frozen=True)
class SparseOperand(_HalfLines):
    """The stored half of ``extent`` rows by 64 steps of a 2:4 sparse operand: 64 bytes a row.

    Tensor maps copy lines of two rows, in which runs of 16 bytes are permuted beforehand (see
    ``two_of_four_storage.py``).
    """

    extent: int
    depth: ClassVar[int] = LINE // 4
    step: ClassVar[int] = 2 * DEPTH
    """Bytes from the operand of one instruction, of 32 steps, to that of the next."""

    @property
    def nbytes(self) -> int:
        return self.extent * self.pitch

    def instruction_offset(self, step: int) -> int:
        """Return the offset of the operand of an instruction along the depth."""
        return step * self.step

    def written(self, at: int, k: int) -> int:
        """Return the offset to which a copy writes stored number ``k`` of row ``at``."""
        return _HALF_LINES.offset(at, 2 * k)


@dataclass(frozen=True)
class HalvedOperand(_HalfLines):
    """A tile of ``extent`` rows or columns by 64 numbers of 16 bits, in two panels of 32 each.

    A panel has rows of 64 bytes and is copied for itself: what it holds may lie apart in memory.
    """

    extent: int
    depth: ClassVar[int] = LINE // 2

    @property
    def box(self) -> tuple[int, int]:
        """Number of rows that one tensor-map copy stores, and of elements in each row."""
        return self.extent, self.depth // 2

    @property
    def panel(self) -> int:
        """Number of bytes that one copy stores."""
        return self.extent * self.pitch

    @property
    def nbytes(self) -> int:
        return 2 * self.panel

    def instruction_offset(self, step: int) -> int:
        """Return the offset of the operand of an instruction along the depth."""
        return step // 2 * self.panel + step % 2 * 2 * DEPTH

    def slice(self, k: str) -> str:
        """Return what the C expression ``k`` of an instruction adds to a descriptor."""
        return f"({k} / 2 * {self.panel // RUN} + {k} % 2 * {2 * DEPTH // RUN})"

    def written(self, at: int, k: int) -> int:
        """Return the offset to which tensor-map copies write row or column ``at``, depth ``k``."""
        half, own = divmod(k, self.depth // 2)
        return half * self.panel + _HALF_LINES.offset(at, 2 * own)


@cache  # many tiles have equal operands, and every element is looked at
def prove_read(operand: MatrixOperand | SparseOperand | HalvedOperand, rows: int) -> None:
    """Prove that instructions on ``rows`` rows or columns read the elements that were copied.

    Raises GraphError with the first element that is read from a wrong offset.
    """
    deep = operand.instruction_depth
    for first in range(0, operand.extent, rows):
        for step in range(operand.depth // deep):
            start = operand.instruction_offset(step) + (
                first * operand.pitch if operand.by_depth else 0
            )
            if isinstance(operand, MatrixOperand) and not operand.by_depth:
                start += first // (LINE // 2) * operand.panel
            for at in range(rows):
                for k in range(deep):
                    found = operand.read(start, at, k)
                    if found != operand.written(first + at, step * deep + k):
                        raise GraphError(
                            f"Element {first + at}, {step * deep + k} is read at offset {found}."
                        )
