"""Storage of a 2:4 sparse matrix on GPUs: two of every four numbers along K, and their positions.

The sparse operand of ``wgmma.mma_async.sp`` and ``mma.sp`` is the left one, so the matrix
``[K, N]`` is stored by columns.  Both arrays are cut into slices of 64 steps of k, and N is padded
to a multiple of 128 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import LINE, RUN, Layout, SwizzleMode
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.weight_layouts import Floats, Numbers, WeightLayout

__all__ = ["BLOCK_ROWS", "COLUMNS", "STEPS", "TWO_OF_FOUR", "TwoOfFour"]

STEPS = 64
"""Steps of k in a slice: those of two instructions, whose positions one register holds."""
COLUMNS = 128
"""Number of columns to a multiple of which N is padded."""
BLOCK_ROWS = 16
"""Columns of the matrix, rows of the left operand, whose numbers and positions lie together."""
_GROUP, _KEPT = 4, 2
_QUAD = 4
"""Lanes that hold the positions of rows i and i + 8 of 16."""
_HELD = STEPS // _GROUP * _KEPT
"""Numbers of a column in a slice."""
_PER_RUN = 8
"""Numbers of 16 bits in a run of 16 bytes."""


def _order() -> npt.NDArray[np.intp]:
    """Return which run of 16 columns is stored at each position of their 1024 bytes.

    Tensor maps copy lines of 128 bytes and swizzle them by 128 bytes (``TMA128``).  The operand of
    the tensor cores has rows of 64 bytes and their swizzle (``TMA64``).  Runs are stored such that
    the first swizzle makes the second layout.
    """
    lines = Layout(LINE, SwizzleMode.TMA128)
    operand = Layout(LINE // 2, SwizzleMode.TMA64)
    copied = {lines.offset(line, RUN * run): line * LINE // RUN + run
              for line in range(BLOCK_ROWS // 2) for run in range(LINE // RUN)}  # fmt: skip
    order = np.empty(BLOCK_ROWS * _HELD // _PER_RUN, np.intp)
    runs = _HELD // _PER_RUN
    for row in range(BLOCK_ROWS):
        for run in range(runs):
            order[copied[operand.offset(row, RUN * run)]] = row * runs + run
    return order


_ORDER = _order()


def _compressed(matrix: Floats) -> tuple[Floats, npt.NDArray[np.uint8]]:
    """Return the kept numbers ``[rows, groups, 2]`` of ``[rows, K]``, and their positions.

    A group with fewer than two nonzeros keeps zeros: the two positions of a group are different
    and ascending.  Raises ValueError for a group with more nonzeros.
    """
    groups = matrix.reshape(len(matrix), -1, _GROUP)
    kept = groups != 0
    count = np.count_nonzero(kept, axis=2)
    if count.size and count.max() > _KEPT:
        raise ValueError("more than two of four numbers are not zero")
    # nonzeros first, then zeros, each in order; the two that are kept in order again
    first = np.sort(np.argsort(~kept, axis=2, kind="stable")[:, :, :_KEPT], axis=2)
    return np.take_along_axis(groups, first, 2), first.astype(np.uint8)


@dataclass(frozen=True)
class TwoOfFour(WeightLayout):
    """Two of every four numbers along K: ``values`` and ``positions``.

    * ``values [K / 64, N' / 2, 64]``: in each slice, two columns share a line of 128 bytes; the
      runs of 16 bytes of 16 columns are permuted such that tensor maps store them in shared memory
      as tensor cores read them.
    * ``positions [K / 64, N' / 16, 128]``: bytes of the metadata registers of 32 lanes.  Lane
      4i + 2h + q holds for rows i (low 16 bits) and i + 8 (high 16 bits) the positions, of two
      bits each, of the eight numbers in k = 32h + 16q … 32h + 16q + 15.  The sparsity selector h
      takes the lanes of the first or second 32 steps (PTX ISA, "Matrix fragments for sparse
      mma.m16n8k32 with .f16 and .bf16 types" and "Matrix fragments for warpgroup-level
      multiply-accumulate operation with sparse matrix A").
    """

    name: ClassVar[str] = "two_of_four"
    operands: ClassVar[int] = 2

    def check(self, k: int, n: int) -> None:
        super().check(k, n)
        if k % STEPS:
            raise ValueError(f"K={k} is not a multiple of {STEPS}")

    @staticmethod
    def padded(n: int) -> int:
        """Return the number of columns that are stored."""
        return -(-n // COLUMNS) * COLUMNS

    def shapes(self, k: int, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of both arrays."""
        slices, columns = k // STEPS, self.padded(n)
        return (slices, columns // 2, STEPS), (slices, columns // BLOCK_ROWS, LINE)

    def packed(self, matrix: Floats) -> tuple[Floats, npt.NDArray[np.uint8]]:
        """Return both arrays of ``[K, N]``.  Raises ValueError if it is not 2:4 sparse."""
        k, n = matrix.shape
        rows = np.pad(matrix.T, ((0, self.padded(n) - n), (0, 0)))
        values, positions = _compressed(np.ascontiguousarray(rows))
        first, second = self.shapes(k, n)
        blocks = len(rows) // BLOCK_ROWS
        runs = values.reshape(blocks, BLOCK_ROWS, k // STEPS, -1, _PER_RUN)
        runs = runs.transpose(2, 0, 1, 3, 4).reshape(k // STEPS, blocks, -1, _PER_RUN)
        held = np.ascontiguousarray(runs[:, :, _ORDER], np.float32).reshape(first)
        # [block, half of the rows, row, slice, lane of four, pair of groups, four positions]
        two = positions.reshape(blocks, 2, 8, k // STEPS, _QUAD, 2, 4)
        bits = (two << np.arange(0, 8, 2, dtype=np.uint8)).sum(-1, dtype=np.uint8)
        return held, np.ascontiguousarray(bits.transpose(3, 0, 2, 4, 1, 5)).reshape(second)

    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        values, bits = np.asarray(stored[0]), np.asarray(stored[1])
        slices, blocks = k // STEPS, self.padded(n) // BLOCK_ROWS
        runs = values.reshape(slices, blocks, -1, _PER_RUN)[:, :, np.argsort(_ORDER)]
        numbers = runs.reshape(slices, blocks * BLOCK_ROWS, -1, _KEPT).swapaxes(0, 1)
        two = bits.reshape(slices, blocks, 8, _QUAD, 2, 2)[..., None] >> np.arange(0, 8, 2) & 3
        at = two.transpose(1, 4, 2, 0, 3, 5, 6).reshape(numbers.shape)
        whole = np.zeros((*numbers.shape[:-1], _GROUP), values.dtype)
        np.put_along_axis(whole, at.astype(np.intp), numbers, -1)
        made: Any = whole.reshape(blocks * BLOCK_ROWS, k)[:n].T
        return np.asarray(made)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        slices, blocks = k // STEPS, self.padded(n) // BLOCK_ROWS
        rows, groups = blocks * BLOCK_ROWS, k // _GROUP
        runs = b("Reshape", stored[0], b.ints(slices, blocks, len(_ORDER), _PER_RUN))
        runs = b("Gather", runs, b.ints(*np.argsort(_ORDER).tolist()), axis=2)
        numbers = b("Reshape", runs, b.ints(slices, rows, STEPS // _GROUP, _KEPT))
        numbers = b("Transpose", numbers, perm=(1, 0, 2, 3))
        bits = b("Cast", stored[1], to=DType.I64.onnx)
        bits = b("Reshape", bits, b.ints(slices, blocks, 8, _QUAD, 2, 2, 1))
        two = b("Mod", b("Div", bits, b.ints(1, 4, 16, 64)), b.ints(4))
        at = b("Transpose", two, perm=(1, 4, 2, 0, 3, 5, 6))
        shape = b.ints(rows, groups, _KEPT, 1)
        here = b("Equal", b("Reshape", at, shape), b.ints(0, 1, 2, 3))
        spread = b("Mul", b("Reshape", numbers, shape), b("Cast", here, to=DType.F32.onnx))
        parts = b("Add", b.slice_last(spread, 0, 1, -2), b.slice_last(spread, 1, 2, -2))
        whole = b("Transpose", b("Reshape", parts, b.ints(rows, k)), perm=(1, 0))
        return b.slice_last(whole, 0, n) if n != rows else whole


TWO_OF_FOUR = TwoOfFour()
