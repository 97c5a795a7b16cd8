"""Shared memory of a warpgroup kernel's tile: the ring, strips, vectors and barriers."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.kernels.gpu.semantic.multistage_pipeline import BarrierMode, Ring
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import LINE
from tracea_graph.kernels.gpu.semantic.wgmma_descriptors import HalvedOperand, MatrixOperand

__all__ = ["ROWS", "STRIP", "WORD", "Tile", "Vector"]

ROWS = 64
"""Number of rows that one instruction multiplies."""
_WARPS = 8
"""Number of warps that multiply."""
STRIP = 16 * 128
"""Bytes of shared memory through which a warp exchanges a tensor of the epilogue."""
_MOST_SUMS = 128
"""Maximum sums of a thread that leave registers for the addresses of an epilogue."""
_FOR_FLOATS = 24
"""Registers of a thread for an epilogue that reads and stores float32 matrices."""
_BARRIER, WORD = 8, 4


@dataclass(frozen=True)
class Vector:
    """An epilogue operand that varies along the columns only, staged in shared memory.

    ``element`` is its type in global memory, ``held`` that in shared memory.
    """

    name: str
    element: str
    held: str
    size: int
    at: int


@dataclass(frozen=True)
class Tile:
    """Shared memory of a variant's tile: the ring, epilogue strips, vectors and barriers."""

    m: int
    n: int
    stages: int
    pingpong: bool
    by_depth: bool
    size: int = 2
    split: bool = False
    depths: int = 1
    gated: bool = False
    first: int = 0
    """Columns of the first of two products that a block computes; its result is a of the next."""
    normed: bool = False
    """Whether rows of the result are normalised: both warpgroups have ``n`` columns of the same
    rows, and two blocks of a cluster have all columns of a row.
    """
    half_depth: bool = False
    """Whether a block computes half of the first product's depth, and not half of its columns."""
    halves: bool = False
    """Whether two halves of a stage's depth are copied from different places."""

    @property
    def columns(self) -> int:
        """Number of columns of the result that a block finishes.

        They are some of those whose depth it shares with others, or half of those of two matrices.
        """
        return self.n // self.depths // (1 + self.gated)

    @property
    def cluster(self) -> int:
        """Number of blocks that share the depth, or the rows, of a tile."""
        return 2 if self.normed else self.depths

    @property
    def received(self) -> int:
        """Bytes of the sums that a block gets from those that share the depth with it.

        Where rows are normalised, of the moments of the four warpgroups of a cluster.
        """
        if self.normed:
            return 2 * self.cluster * self.m * 2 * WORD
        return (self.depths - 1) * self.m * self.columns * WORD

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage; what tf32 numbers of w leave of w takes as much room as w itself.

        Where the first of two products is before this one, stages hold operands of either.
        """
        if self.first:
            return max(self.a.nbytes + self.first * LINE, self.b.nbytes)
        return self.a.nbytes + self.b.nbytes * (1 + self.split) * (1 + self.normed)

    @property
    def barriers(self) -> int:
        """Number of barriers of a stage."""
        return 2 + self.split

    @property
    def all_barriers(self) -> int:
        """Number of barriers, with one for the sums of other blocks, or for what they are."""
        return self.barriers * self.stages + (self.cluster > 1 or self.first > 0)

    @property
    def held(self) -> int:
        """Registers of a thread for operands, the sums of a stage, or float32 results."""
        if self.split:
            return 32 + self.n // 2
        return _FOR_FLOATS if self.size == WORD else 0

    @property
    def depth(self) -> int:
        """Number of elements along the depth that a stage holds: those of 128 bytes."""
        return LINE // self.size

    @property
    def a(self) -> MatrixOperand | HalvedOperand:
        if self.halves:
            return HalvedOperand(self.m)
        return MatrixOperand(self.m, self.depth, True, self.size)

    @property
    def b(self) -> MatrixOperand | HalvedOperand:
        if self.halves:
            return HalvedOperand(self.n)
        return MatrixOperand(self.n, self.depth, self.by_depth, self.size)

    @property
    def ring(self) -> Ring:
        """The stages of both warpgroups, or of one where each has its own."""
        alone = self.first and not self.half_depth
        return Ring(self.stages // 2 if alone else self.stages, BarrierMode.MBARRIER)

    @property
    def tall(self) -> int:
        """Number of instructions along the rows that one warpgroup computes."""
        return self.m // ROWS // (1 if self.pingpong or self.normed else 2)

    @property
    def crowded(self) -> bool:
        """Whether so many sums are held by a thread that few registers are left."""
        return self.tall * self.n // 2 > _MOST_SUMS

    @property
    def middle(self) -> int:
        """Bytes of the result of the first of two products, those of two blocks."""
        return self.m * self.first * self.size * (1 if self.half_depth else 2)

    @property
    def strips_at(self) -> int:
        return self.stages * self.stage_bytes + self.received + self.middle

    @property
    def barriers_at(self) -> int:
        return self.strips_at + max(_WARPS * STRIP, self.m * self.first * WORD)

    @property
    def vectors_at(self) -> int:
        return self.barriers_at + -(-self.all_barriers * _BARRIER // 16) * 16
