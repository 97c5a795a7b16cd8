"""Fragment layouts: which matrix element each lane holds in each register of a matrix instruction.

A layout is linear over bits: each bit of the lane number and of the element number adds a step of
rows and columns.  Layouts come from the PTX ISA, sections "Matrix Fragments for mma" and "Register
Fragments for wgmma".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ATOMS", "WARP", "Atom", "LaneMap", "MatrixLoad", "wgmma_accumulator"]

WARP = 32

Array = npt.NDArray[Any]
Step = tuple[int, int]


@dataclass(frozen=True)
class LaneMap:
    """Layout of a ``rows`` × ``cols`` fragment over the registers of the lanes.

    Setting bit i of the lane number advances by ``lane[i]`` (rows, columns); setting bit i of the
    element number advances by ``element[i]``.  A lane holds ``count`` elements, in the order of
    its registers.
    """

    rows: int
    cols: int
    lane: tuple[Step, ...]
    element: tuple[Step, ...]
    count: int

    @property
    def lanes(self) -> int:
        return 1 << len(self.lane)

    def at(self, lane: int, element: int) -> Step:
        """Return row and column of an element of a lane."""
        row, col = 0, 0
        for number, steps in ((lane, self.lane), (element, self.element)):
            for bit, (down, right) in enumerate(steps):
                if number >> bit & 1:
                    row, col = row + down, col + right
        return row, col

    def indices(self) -> npt.NDArray[np.int64]:
        """Return row and column of every element, shape ``[lanes, count, 2]``."""
        held = [[self.at(i, e) for e in range(self.count)] for i in range(self.lanes)]
        return np.array(held, np.int64)

    def split(self, matrix: Array) -> Array:
        """Split a matrix into the fragments of the lanes, shape ``[lanes, count]``."""
        indices = self.indices()
        return matrix[indices[..., 0], indices[..., 1]]

    def join(self, fragments: Array) -> Array:
        """Assemble the matrix from fragments of shape ``[lanes, count]``."""
        indices = self.indices()
        matrix = np.zeros((self.rows, self.cols), fragments.dtype)
        matrix[indices[..., 0], indices[..., 1]] = fragments
        return matrix

    def row(self, lane: str, element: int = 0) -> str:
        """Return the row as a C expression of the lane number."""
        return _expression(lane, [down for down, _ in self.lane], self.at(0, element)[0])

    def col(self, lane: str, element: int = 0) -> str:
        """Return the column as a C expression of the lane number."""
        return _expression(lane, [right for _, right in self.lane], self.at(0, element)[1])


def _expression(lane: str, steps: list[int], offset: int) -> str:
    """Return a sum of bit fields; consecutive bits whose steps double form one field."""
    terms, bit = list[str](), 0
    while bit < len(steps):
        if not steps[bit]:
            bit += 1
            continue
        end = bit + 1
        while end < len(steps) and steps[end] == 2 * steps[end - 1]:
            end += 1
        run = f"({lane} >> {bit})" if bit else lane
        if end < len(steps):
            run = f"({run} & {(1 << (end - bit)) - 1})"
        terms.append(run if steps[bit] == 1 else f"{run} * {steps[bit]}")
        bit = end
    if offset or not terms:
        terms.append(str(offset))
    return " + ".join(terms)


@dataclass(frozen=True)
class Atom:
    """One matrix instruction of a warp: ``d[m, n] = a[m, k] · b[k, n] + d``.

    ``kind`` is the element type of ``a`` and ``b``, ``since`` the lowest compute capability.
    """

    name: str
    kind: str
    m: int
    n: int
    k: int
    a: LaneMap
    b: LaneMap
    d: LaneMap
    since: int


_D = LaneMap(16, 8, ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)), ((0, 1), (8, 0)), 4)
_A16 = LaneMap(16, 16, ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)), ((0, 1), (8, 0), (0, 8)), 8)
_B16 = LaneMap(16, 8, ((2, 0), (4, 0), (0, 1), (0, 2), (0, 4)), ((1, 0), (8, 0)), 4)
_A8 = LaneMap(16, 8, ((0, 1), (0, 2), (1, 0), (2, 0), (4, 0)), ((8, 0), (0, 4)), 4)
_B8 = LaneMap(8, 8, ((1, 0), (2, 0), (0, 1), (0, 2), (0, 4)), ((4, 0),), 2)
_A_BYTES = LaneMap(
    16, 32, ((0, 4), (0, 8), (1, 0), (2, 0), (4, 0)), ((0, 1), (0, 2), (8, 0), (0, 16)), 16
)
_B_BYTES = LaneMap(32, 8, ((4, 0), (8, 0), (0, 1), (0, 2), (0, 4)), ((1, 0), (2, 0), (16, 0)), 8)

ATOMS: Mapping[str, Atom] = MappingProxyType(
    {
        atom.name: atom
        for atom in (
            Atom("m16n8k16.f16", "f16", 16, 8, 16, _A16, _B16, _D, 75),
            Atom("m16n8k16.bf16", "bf16", 16, 8, 16, _A16, _B16, _D, 80),
            Atom("m16n8k8.tf32", "tf32", 16, 8, 8, _A8, _B8, _D, 80),
            Atom("m16n8k32.s8", "i8", 16, 8, 32, _A_BYTES, _B_BYTES, _D, 80),
        )
    }
)
"""Instructions by name.  On compute capability 7.5 the fp16 instruction has only half of k, so two
instructions are needed: on the first and on the second half of these layouts' registers.
"""


def wgmma_accumulator(n: int) -> LaneMap:
    """Return the accumulator layout of ``wgmma.m64n<n>`` over the 128 threads of a warpgroup.

    Raises ValueError unless n is a multiple of 8 up to 256.
    """
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"n of wgmma must be 8, 16, … 256, not {n}")
    steps = tuple((0, 8 << bit) for bit in range(max(0, (n // 8 - 1).bit_length())))
    warps = ((16, 0), (32, 0))
    return LaneMap(64, n, (*_D.lane, *warps), (*_D.element, *steps), n // 2)


@dataclass(frozen=True)
class MatrixLoad:
    """``ldmatrix``: loads ``blocks`` of 8 × 8 16-bit elements, each from 8 rows of 16 bytes.

    ``blocks`` holds the first row and column of each block as stored.  A lane gets two elements of
    each block, from one stored row, or from one stored column if ``transposed``.  Lane ``8·i + j``
    supplies the address of row ``j`` of block ``i``.
    """

    blocks: tuple[Step, ...]
    transposed: bool = False

    def address(self, lane: int) -> Step:
        """Return stored row and first stored column of the address that a lane supplies."""
        row, col = self.blocks[lane // 8 % len(self.blocks)]
        return row + lane % 8, col

    def got(self, lane: int, element: int) -> Step:
        """Return stored row and column of an element that a lane receives."""
        row, col = self.blocks[element // 2]
        across, along = lane // 4, lane % 4 * 2 + element % 2
        return (row + along, col + across) if self.transposed else (row + across, col + along)
